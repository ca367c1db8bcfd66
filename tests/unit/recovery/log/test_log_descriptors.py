"""A process without a descriptor left: what the log does then, and that it is over afterwards."""

import contextlib
import os
import resource

import pytest

from recovery.log import FileStore, LogReader
from tests.unit.recovery.log.logs import Log, read_stream


@contextlib.contextmanager
def no_descriptor_left():
    """Let every `open` of this process fail, as strangers' connections make it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def open_log(directory, **config):
    return Log(FileStore(directory), directory=directory, **config)


def test_what_was_written_is_synced_without_opening_it(tmp_path):
    log = open_log(tmp_path)
    log.append(count=3)
    with no_descriptor_left():
        log.writer.sync()
    assert log.writer.unsynced_bytes == 0
    log.close()


def test_segments_and_the_state_come_from_the_reserve(tmp_path):
    log = open_log(tmp_path, segment_bytes=4096, reserve=10)
    with no_descriptor_left():
        for _ in range(60):
            log.append(size=100)
            log.writer.sync()
    log.append_each(60, size=100)
    log.close()
    reader = LogReader(tmp_path)
    assert [kept[0] for kept in read_stream(reader)] == list(range(120))
    reader.close()
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_without_a_reserve_the_former_segment_goes_on(tmp_path):
    log = open_log(tmp_path, segment_bytes=4096, reserve=100_000)
    log.append()
    while log.store._spares:
        path, file = log.store._spares.pop()
        path.unlink()
        file.close()
    with no_descriptor_left():
        log.append_each(100, size=100)
    assert os.listdir(tmp_path).count("0" * 20 + ".log") <= 1
    log.append_each(100, size=100)
    log.close()
    log.open()
    log.append()
    log.close()
    reader = LogReader(tmp_path)
    assert [kept[0] for kept in read_stream(reader)] == list(range(202))
    reader.close()


def test_what_cannot_be_read_for_want_of_a_descriptor_is_not_missing(tmp_path):
    log = open_log(tmp_path)
    log.append(count=3)
    reader = log.writer.reader()
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        read_stream(reader)
    assert not reader.corrupt
    assert [kept[0] for kept in read_stream(reader)] == [0]
    reader.close()
    log.close()


def test_a_forked_child_leaves_the_reserve_of_its_parent(tmp_path):
    log = open_log(tmp_path)
    before = sorted(os.listdir(tmp_path))
    if (child := os.fork()) == 0:
        log.store.unlock()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(os.listdir(tmp_path)) == before
    log.close()
