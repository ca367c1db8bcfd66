"""Retention in the thread that appends, while a sync or retention of another thread waits."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from recovery import platform
from recovery.log import FileStore, LogReader, LogWriteError, LogWriter, MemoryStore, verify
from tests.unit.recovery.log.logs import SESSION, Log, S, read_all, read_stream, segments

RENEWING = {"segment_bytes": 4096, "retention_bytes": 5000, "reserve": 1000}


def fill(log, count=400):
    for _ in range(count):
        log.append()
        log.now_ns += S


def bytes_of(store):
    return sum(len(store.read(name)) for name in segments(store))


def shorten(log, **options):
    return log.writer.shorten(log.now_ns, **options)


def test_it_deletes_the_oldest_segments_and_says_whether_it_did():
    log = Log(segment_bytes=4096, retention_bytes=10_000)
    fill(log)
    assert shorten(log)
    assert 4096 < bytes_of(log.store) == log.writer.bytes <= 10_000
    assert not shorten(log)
    kept = read_all(log.reader())
    assert log.written[-len(kept) :] == kept


@pytest.mark.parametrize("bounds", [{"retention_bytes": 0}, {"retention_age": 1e-9}])
def test_it_begins_no_segment_and_keeps_the_newest(bounds):
    log = Log(segment_bytes=4096, segment_age=1, **bounds)
    fill(log)
    newest = segments(log.store)[-1]
    shorten(log)
    assert segments(log.store) == [newest]


def test_one_that_is_read_stays():
    log = Log(segment_bytes=4096, retention_bytes=1)
    fill(log)
    reader, names = log.reader(), segments(log.store)
    assert read_stream(reader, "a", 0, 1)
    shorten(log)
    assert segments(log.store) == names
    reader.close()
    assert shorten(log)
    assert segments(log.store) == names[-1:]


def test_a_sync_that_waits_meanwhile_has_not_failed():
    log = Log(segment_bytes=4096, retention_bytes=5000)
    fill(log, 200)
    pending = log.writer.begin_sync()
    fill(log, 200)  # so that all which the sync has begun with is too old
    assert shorten(log)
    assert log.writer.unsynced_bytes == log.writer.bytes
    pending.wait()
    log.writer.end_sync(pending)
    assert log.writer.unsynced_bytes == log.writer.bytes
    log.writer.sync()
    assert log.writer.unsynced_bytes == 0
    log.crash()
    kept = read_all(log.reader())
    assert log.written[-len(kept) :] == kept != []


@pytest.mark.parametrize("which", [0, -1], ids=["the first", "the last"])
def test_a_file_that_is_deleted_while_it_is_forced_to_the_disk_is_no_failure(
    tmp_path, monkeypatch, which
):
    log = Log(FileStore(tmp_path), directory=tmp_path, segment_bytes=4096, retention_bytes=1)
    fill(log, 200)
    log.writer.sync()
    log.append_each(200)
    pending = log.writer.begin_sync()
    fill(log)
    calls, sync_data = [], platform.sync_data
    at = range(len(pending.parts))[which]

    def sync_and_delete(fd):
        if len(calls) == at:
            assert shorten(log)
        calls.append(fd)
        sync_data(fd)

    monkeypatch.setattr(platform, "sync_data", sync_and_delete)
    pending.wait()
    log.writer.end_sync(pending)
    assert not log.writer.has_failed
    log.writer.sync()
    log.close()
    assert [*verify(tmp_path)] == []
    assert log.open().clean


def test_a_sync_passes_over_what_a_retention_deleted_that_nobody_has_ended():
    log = Log(segment_bytes=4096, retention_bytes=5000)
    fill(log, 200)
    pending, deleting = log.writer.begin_sync(), log.writer.begin_expire(log.now_ns)
    deleting.wait()  # and then an interrupt came
    pending.wait()
    log.writer.end_sync(pending)
    assert not log.writer.has_failed
    shorten(log)
    assert log.writer.bytes == bytes_of(log.store) <= 5000


def test_one_that_somebody_else_deletes_is_a_failure(tmp_path):
    log = Log(FileStore(tmp_path), directory=tmp_path)
    log.append()
    pending = log.writer.begin_sync()
    (tmp_path / segments(log.store)[-1]).unlink()
    pending.wait()
    with pytest.raises(LogWriteError) as raised:
        log.writer.end_sync(pending)
    assert raised.value.is_final


@pytest.mark.parametrize("is_written_before", [True, False])
def test_where_a_rare_stream_goes_on_is_not_lost_to_a_sync_that_reserves(is_written_before):
    log = Log(**RENEWING)
    log.append("rare", 7)
    log.append("a", 900)
    pending = log.writer.begin_sync()
    assert pending.renewal is not None
    fill(log, 99)  # no more, or else `append` would reserve, too
    if is_written_before:
        pending.wait()
    assert shorten(log)
    if not is_written_before:
        pending.wait()
    log.writer.end_sync(pending)
    assert log.writer.earliest(SESSION, "rare") is None
    log.kill()
    log.open()
    assert log.writer.next(SESSION, "rare") == 7


def test_no_sequence_is_used_that_is_not_reserved_on_the_disk():
    log = Log(**RENEWING)
    log.append("rare", 7)
    log.append("a", 900)
    pending = log.writer.begin_sync()
    fill(log, 80)
    pending.wait()  # more are reserved now
    fill(log, 19)
    assert shorten(log)
    assert log.writer.earliest(SESSION, "rare") is None
    log.writer.end_sync(pending)
    log.append("a", 700)
    last = log.next[SESSION, "a"]
    log.crash()
    assert log.writer.next(SESSION, "a") >= last


def test_it_does_what_another_thread_has_begun_and_has_not_done():
    log = Log(segment_bytes=4096, retention_bytes=10_000)
    log.append("rare")
    fill(log)
    pending = log.writer.begin_expire(log.now_ns)
    fill(log)
    assert shorten(log)
    assert log.writer.bytes == bytes_of(log.store) <= 10_000
    names = segments(log.store)
    pending.wait()
    log.writer.end_expire(pending)
    assert segments(log.store) == names
    assert log.writer.bytes == bytes_of(log.store)
    assert log.writer.next(SESSION, "rare") == 1
    kept = read_all(log.reader())
    assert log.written[-len(kept) :] == kept


def test_it_waits_for_another_thread_that_is_deleting(monkeypatch):
    store = MemoryStore()
    log = Log(store, segment_bytes=4096, retention_bytes=10_000)
    log.writer._make_lock = threading.Lock
    fill(log)
    pending = log.writer.begin_expire(log.now_ns)
    is_deleting, goes_on = threading.Event(), threading.Event()
    remove = store.remove_unshared

    def remove_slowly(name):
        is_deleting.set()
        assert goes_on.wait(60)
        return remove(name)

    monkeypatch.setattr(store, "remove_unshared", remove_slowly)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(pending.wait)
        assert is_deleting.wait(60)
        shortened = pool.submit(shorten, log)
        goes_on.set()
        assert shortened.result(60)
        waiting.result(60)
    log.writer.end_expire(pending)
    assert log.writer.bytes == bytes_of(store) <= 10_000


def test_without_waiting_it_takes_part_in_what_another_thread_has_begun():
    log = Log(segment_bytes=4096, retention_bytes=10_000)
    fill(log)
    pending = log.writer.begin_expire(log.now_ns)
    fill(log)
    names = segments(log.store)
    assert shorten(log, waits=False)
    assert segments(log.store) == names[1:]
    assert log.writer.bytes == bytes_of(log.store)
    pending.wait()
    log.writer.end_expire(pending)
    assert segments(log.store) == names[len(pending.segments) :]
    assert log.writer.bytes == bytes_of(log.store)
    while shorten(log, waits=False):
        pass
    assert log.writer.bytes == bytes_of(log.store) <= 10_000


def test_without_waiting_it_does_not_wait_for_a_state_that_another_thread_writes(monkeypatch):
    log = Log(segment_bytes=4096, retention_bytes=10_000)
    log.writer._make_lock = threading.Lock
    log.append("rare")
    fill(log)
    pending = log.writer.begin_expire(log.now_ns)
    is_writing, goes_on = threading.Event(), threading.Event()
    write = pending.tails.write

    def write_slowly():
        is_writing.set()
        return goes_on.wait(60) and write()

    monkeypatch.setattr(pending.tails, "write", write_slowly)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pending.wait)
        assert is_writing.wait(60)
        assert not shorten(log, waits=False)
        goes_on.set()
        waiting.result(60)
    log.writer.end_expire(pending)
    assert log.writer.bytes == bytes_of(log.store) <= 10_000


def test_without_waiting_it_writes_no_state_and_deletes_one_at_a_time():
    log = Log(segment_bytes=4096, retention_bytes=0)
    fill(log)
    names = segments(log.store)
    with log.failing({"replace": OSError(errno.EIO, "waited"), "sync": OSError(errno.EIO, "")}):
        assert shorten(log, waits=False)
        assert segments(log.store) == names[1:]
        while shorten(log, waits=False):
            pass
        assert segments(log.store) == names[-1:]
    log.append("rare")
    fill(log)
    names = segments(log.store)
    assert not shorten(log, waits=False)
    assert segments(log.store) == names  # it alone says where "rare" goes on
    log.writer.expire(log.now_ns)
    assert segments(log.store) == names[-1:]


def test_a_full_disk_on_which_no_segment_can_be_begun_is_shortened_all_the_same():
    log = Log(segment_bytes=4096, retention_age=100, segment_age=1)
    fill(log)
    with log.failing({"open": OSError(errno.ENOSPC, "No space left on device")}):
        log.now_ns += 10 * S  # a new segment is due by its age
        log.writer.expire(log.now_ns)
    assert log.writer.bytes == bytes_of(log.store) < 20_000
    log.writer.expire(log.now_ns)
    kept = read_all(log.reader())
    assert log.written[-len(kept) :] == kept


def test_a_reader_that_follows_finds_nothing_damaged_where_a_segment_was_deleted():
    log = Log(segment_bytes=4096, retention_bytes=0)
    fill(log)
    reader = log.writer.reader()
    frames = reader.follow(SESSION, "a", 0)
    next(frames)
    reader.close()
    shorten(log)
    assert [kept.start for kept in frames][-1] == 399
    assert not reader.corrupt


def test_what_was_given_up_or_closed_is_not_shortened():
    log = Log(segment_bytes=4096, retention_bytes=0)
    fill(log)
    names = segments(log.store)
    log.writer.abandon()
    assert not shorten(log)
    assert segments(log.store) == names


def test_unsynced_bytes_are_of_what_is_kept():
    log = Log(segment_bytes=4096, retention_bytes=10_000)
    fill(log, 1000)
    log.writer.expire(log.now_ns)
    assert log.writer.unsynced_bytes == log.writer.bytes
    log.writer.sync()
    assert log.writer.unsynced_bytes == 0
    store = log.store
    log.kill()
    writer = LogWriter(log.config, session=SESSION, now_ns=log.now_ns, store=store)
    assert writer.unsynced_bytes == 0
    assert LogReader("log", store=store).session == SESSION
