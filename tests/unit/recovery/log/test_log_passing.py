"""Errors that pass: only a failed fsync is final, everything else is tried again."""

import contextlib
import errno
import os
import re
from contextlib import nullcontext
from unittest import mock

import pytest

from p2pmsg.publisher.log import OVERDUE_NS, SYNC_RETRY_NS, PublisherLog
from p2pmsg.publisher.steps import run_steps
from recovery.log import FileStore, LogConfig, LogReader, LogWriteError, MemoryStore, Tail
from recovery.log.index import index_name
from recovery.log.store import allocate
from tests.descriptors import no_descriptor_left
from tests.unit.recovery.log.logs import SESSION, Log, read_all, read_stream, segments

PASSING = ["EMFILE", "ENFILE", "ENOENT", "ENOSPC", "EDQUOT", "EINTR", "ENOMEM", "EAGAIN"]


def error_of(name):
    return OSError(getattr(errno, name), os.strerror(getattr(errno, name)))


def publisher_log(store, **options):
    return PublisherLog(LogConfig("log", **options), session=1, wall_ns=0, store=store)


def append(log, count=1):
    start = log.next("t")
    log.append("t", start, count, b"frame %d" % start, 0, 0)


def kept(store):
    return [one[:2] for one in LogReader("log", store=store).frames(1, "t", 0, 10**9, 10**6)]


@pytest.mark.parametrize("on_error", ["raise", "continue"])
@pytest.mark.parametrize("fsync", ["interval", "always"])
@pytest.mark.parametrize("operation", ["open", "replace"])
@pytest.mark.parametrize("name", PASSING)
def test_a_sync_that_meets_a_passing_error_is_tried_again(name, operation, fsync, on_error):
    store = MemoryStore()
    log = publisher_log(store, fsync=fsync, on_error=on_error, reserve=10)
    assert log.sync(nullcontext())
    append(log, 8)  # within its mark, but a sync would reserve more
    store.failing[operation] = error_of(name)
    log.next_deadline_ns(now_ns=0)
    log.sync(nullcontext())
    assert (log.broken, log.failed) == (None, None)
    if operation == "open" or fsync == "interval":
        assert log.stats().errors == 1
        assert error_of(name).strerror in log.stats().retrying
    assert log.next_deadline_ns(now_ns=7) in (None, 7 + SYNC_RETRY_NS)
    store.failing.clear()
    append(log, 2)
    assert log.sync(nullcontext())
    assert (log.put_off, log.stats().retrying) == (None, None)
    append(log, 4)
    assert log.sync(nullcontext())
    store.crash()
    assert kept(store) == [(0, 8), (8, 10), (10, 14)]


@pytest.mark.parametrize("name", PASSING)
def test_a_failed_fsync_is_final_whatever_it_fails_with(name):
    store = MemoryStore()
    log = publisher_log(store, fsync="always")
    append(log)
    store.failing["sync"] = error_of(name)
    assert not log.sync(nullcontext())
    assert error_of(name).strerror in log.broken
    store.failing.clear()
    assert not log.sync(nullcontext())


def test_messages_go_to_the_disk_though_no_mark_can_be_reserved():
    log = Log(reserve=10)
    log.append("a", 8)
    log.store.failing["replace"] = error_of("ENOSPC")
    log.writer.sync()
    assert log.writer.unsynced_bytes == 0
    log.append("a", 2)
    with pytest.raises(LogWriteError, match="No space left"):
        log.append("a", 2)
    log.store.failing.clear()
    log.append("a", 2)
    log.writer.sync()
    log.crash()
    assert read_all(log.reader()) == log.written
    assert log.writer.next(SESSION, "a") >= 12


def test_marks_that_cannot_be_reserved_do_not_grow_by_each_try():
    log = Log(reserve=10)
    log.append("a", 8)
    log.store.failing["replace"] = error_of("ENOSPC")
    for _ in range(20):
        log.writer.sync()
    log.store.failing.clear()
    log.writer.sync()
    log.crash()
    assert log.writer.next(SESSION, "a") == 18


@pytest.mark.parametrize("is_away", [True, False], ids=["one is away", "none can be opened"])
def test_segments_that_cannot_be_reached_for_a_moment_are_synced_later(is_away):
    log = Log(segment_bytes=4096)
    log.append_each(60, size=100)
    first, last = segments(log.store)[0], segments(log.store)[-1]
    assert first != last
    files = log.store._files
    if is_away:
        away = files.pop(first)
    else:
        log.store.failing["open"] = error_of("EMFILE")
    with pytest.raises(LogWriteError, match="now"):
        log.writer.sync()
    assert log.writer.unsynced_bytes
    log.store.failing.clear()
    if is_away:
        files[first] = away
    log.writer.sync()
    assert log.writer.unsynced_bytes == 0
    log.store.crash()
    assert [kept[0] for kept in read_stream(log.reader())] == list(range(60))


def test_a_log_is_not_given_up_for_a_sync_that_is_late_but_its_messages_are_not_waited_for():
    """With `on_error="continue"` a gated log that cannot be synced for long is gone on without."""
    for on_error in ("raise", "continue"):
        store = MemoryStore()
        log = publisher_log(store, fsync="always", on_error=on_error)
        assert log.sync(nullcontext())
        append(log)
        store.failing["open"] = error_of("ENOENT")
        for now_ns in (0, OVERDUE_NS - 1):
            log.next_deadline_ns(now_ns=now_ns)
            assert not log.sync(nullcontext())
            assert (log.overdue, log.failed) == (None, None)
        log.next_deadline_ns(now_ns=OVERDUE_NS)
        gone_on = log.sync(nullcontext())
        if on_error == "continue":
            assert gone_on
            assert log.failed
        else:
            assert not gone_on
            assert (log.failed, log.broken) == (None, None)
            assert "No such file" in log.overdue


def test_what_goes_wrong_is_said_once_a_minute_and_when_it_is_over(caplog):
    store = MemoryStore()
    log = publisher_log(store)
    append(log)
    log.sync(nullcontext())
    store.failing["open"] = error_of("EMFILE")
    for second in range(125):
        append(log)
        log.next_deadline_ns(now_ns=second * 10**9)
        assert not log.sync(nullcontext())
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "Too many open files" in caplog.text
    assert "125" in caplog.records[-1].message or "121" in caplog.records[-1].message
    store.failing.clear()
    assert log.sync(nullcontext())
    assert len(caplog.records) == 4
    assert "again" in caplog.records[-1].message
    assert log.stats().errors == 125


@pytest.mark.parametrize("name", PASSING)
def test_retention_that_cannot_delete_says_so_and_does_it_later(name, caplog):
    store = MemoryStore()
    log = publisher_log(store, segment_bytes=4096, retention_bytes=5000)
    for _ in range(400):
        append(log)
    before = segments(store)
    store.failing["remove"] = error_of(name)
    run_steps(log.expire_steps(nullcontext(), now_ns=0, wall_ns=0))
    assert segments(store) == before
    assert log.stats().errors == 1
    assert error_of(name).strerror in caplog.text
    store.failing.clear()
    run_steps(log.expire_steps(nullcontext(), now_ns=10**10, wall_ns=0))
    assert len(segments(store)) < len(before)
    assert log.stats().retrying is None


def test_an_index_that_could_not_be_deleted_is_deleted_later(monkeypatch):
    log = Log(segment_bytes=4096, retention_bytes=5000)
    log.append_each(400)
    first = index_name(0)
    assert first in log.store.names()
    remove = log.store.remove

    def fail(name):
        if name.endswith(".idx"):
            raise error_of("EMFILE")
        remove(name)

    monkeypatch.setattr(log.store, "remove", fail)
    with pytest.raises(LogWriteError, match="cannot be shortened"):
        log.writer.expire(log.now_ns)
    monkeypatch.undo()
    log.writer.expire(log.now_ns)
    names = [re.sub(r"\.(log|idx)$", "", name) for name in log.store.names()]
    indexes = {name[:-4] for name in log.store.names() if name.endswith(".idx")}
    assert names
    assert indexes <= {name[:-4] for name in segments(log.store)}


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


def test_a_system_without_fallocate_has_a_log(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")
    store = FileStore(tmp_path)
    store.lock()
    Tail(store, 1000).note_end(0, 5)
    assert (tmp_path / "tail").stat().st_size == 4096
    store.unlock()


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


@contextlib.contextmanager
def greedy_others():
    """Have others take each descriptor as soon as it is free, as a thread that accepts does."""
    taken = []
    close = os.close

    def close_and_lose(fd):
        close(fd)
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))

    with mock.patch.object(os, "close", close_and_lose):
        yield
    for fd in taken:
        close(fd)


@pytest.mark.parametrize("spares", range(5))
def test_whatever_is_left_in_reserve_what_was_written_can_be_synced(tmp_path, spares):
    """The spare one was closed, for its descriptor to be the copy's: a connection took it."""
    log = open_log(tmp_path, segment_bytes=4096, reserve=100_000)
    log.append()
    with no_descriptor_left(), greedy_others():
        while len(log.store._spares) > spares:
            path, file = log.store._spares.pop()
            path.unlink()
            file.close()
        for _ in range(100):
            log.append(size=100)
            log.writer.sync()
    log.close()
    reader = LogReader(tmp_path)
    assert [kept[0] for kept in read_stream(reader)] == list(range(101))
    reader.close()


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


@pytest.mark.long
def test_a_forked_child_leaves_the_reserve_of_its_parent(tmp_path):
    log = open_log(tmp_path)
    before = sorted(os.listdir(tmp_path))
    if (child := os.fork()) == 0:
        log.store.unlock()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(os.listdir(tmp_path)) == before
    log.close()
