"""Errors that pass: only a failed fsync is final, everything else is tried again."""

import errno
import os

import pytest

from p2pmsg.publisher.log import PublisherLog
from recovery.log import FileStore, LogConfig, MemoryStore, Tail
from recovery.log.store import allocate
from tests.descriptors import no_descriptor_left
from tests.unit.p2pmsg.publisher.served import run_steps
from tests.unit.recovery.log.logs import Log, read_stream, segments

PASSING = ["EMFILE", "ENFILE", "ENOENT", "ENOSPC", "EDQUOT", "EINTR", "ENOMEM", "EAGAIN"]


def error_of(name):
    return OSError(getattr(errno, name), os.strerror(getattr(errno, name)))


def publisher_log(store, **options):
    return PublisherLog(LogConfig("log", **options), session=1, wall_ns=0, store=store)


def append(log, count=1):
    start = log.next("t")
    log.append("t", start, count, b"frame %d" % start, 0, 0)


@pytest.mark.parametrize("name", PASSING)
def test_a_failed_fsync_is_final_whatever_it_fails_with(name):
    store = MemoryStore()
    log = publisher_log(store, fsync="always")
    append(log)
    store.failing["sync"] = error_of(name)
    assert not run_steps(log.sync_steps())
    assert error_of(name).strerror in log.broken
    store.failing.clear()
    assert not run_steps(log.sync_steps())


@pytest.mark.parametrize("name", PASSING)
def test_retention_that_cannot_delete_says_so_and_does_it_later(name, caplog):
    store = MemoryStore()
    log = publisher_log(store, segment_bytes=4096, retention_bytes=5000)
    for _ in range(400):
        append(log)
    before = segments(store)
    store.failing["remove"] = error_of(name)
    run_steps(log.sync_steps(wall_ns=0))
    assert segments(store) == before
    assert log.stats().errors == 1
    assert error_of(name).strerror in caplog.text
    store.failing.clear()
    run_steps(log.sync_steps(wall_ns=0))
    assert len(segments(store)) < len(before)
    assert log.stats().retrying is None


def test_the_tail_is_given_its_place_where_the_system_cannot_allocate(tmp_path, monkeypatch):
    """Some file systems, and C libraries, have no fallocate: what is mapped is written first."""

    def refuse(fd, start, count):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    store = FileStore(tmp_path)
    store.lock()
    tail = Tail(store, 100_000)
    slot = tail.take()
    slot.begin(1, b"t", 0, 0, 1)
    status = os.stat(tmp_path / "tail")
    assert status.st_blocks * 512 >= status.st_size > 200_000
    store.unlock()


def test_what_could_not_be_allocated_is_given_back(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)

    def half(fd, start, count):
        os.pwrite(fd, b"\0", start + count // 2)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", half)
    with open(path, "r+b") as file, pytest.raises(OSError, match="No space left"):
        allocate(file.fileno(), 4096, 8192)
    assert path.stat().st_size == 1000


def open_log(directory, **config):
    return Log(FileStore(directory), directory=directory, **config)


def test_what_cannot_be_read_for_lack_of_a_descriptor_is_not_missing(tmp_path):
    log = open_log(tmp_path)
    log.append(count=3)
    reader = log.writer.reader()
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        read_stream(reader)
    assert not reader.corrupt
    assert [kept[0] for kept in read_stream(reader)] == [0]
    reader.close()
    log.close()
