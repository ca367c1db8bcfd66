"""Forcing the log to the disk, while more is appended, and what of it is kept in memory."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from recovery.log import LogConfig, LogWriteError, LogWriter
from tests.unit.recovery.log.logs import (
    OTHER,
    SESSION,
    Log,
    boundaries,
    read_all,
    read_stream,
    segments,
)


def test_no_sequence_is_used_twice_and_the_skipped_range_is_exact():
    log = Log(reserve=100)
    log.append("a", 5)
    log.writer.sync()
    log.append("a", 4)  # handed out, perhaps sent, and gone

    report = log.crash()
    assert report.skipped == ((SESSION, "a", 5, 100),)
    assert log.writer.next(SESSION, "a") == 100
    assert log.writer.skips(SESSION, "a") == log.reader().skips(SESSION, "a") == [(5, 100)]
    assert log.writer.floor == 100
    assert log.writer.next(SESSION, "new") == 100
    assert log.writer.skips(SESSION, "new") == [(0, 100)]
    with pytest.raises(ValueError, match="start >= 100"):
        log.writer.append(SESSION, "new", 99, 1, b"", timestamp_ns_max=0, now_ns=log.now_ns)
    log.writer.append(SESSION, "new", 100, 1, b"new", timestamp_ns_max=0, now_ns=log.now_ns)
    assert log.reader().skips(SESSION, "new") == [(0, 100)]


def test_a_reserve_is_renewed_before_it_is_used_up():
    log = Log(reserve=10)
    log.append("a", 8)
    log.writer.sync()
    log.store.failing["sync"] = OSError(28, "no space")
    log.append("a", 9)  # the sync has reserved that
    with pytest.raises(LogWriteError):
        log.append("a", 200)


@pytest.mark.parametrize("before", ["interval", "never"])
def test_marks_hold_when_another_way_to_sync_is_chosen(before):
    log = Log(fsync=before, reserve=50)
    log.append("a", 20)
    log.kill()
    log.open(fsync="always")
    log.append("a", 20)
    log.crash()

    assert log.writer.next(SESSION, "a") == 20  # and the later ones were not sent


def test_a_file_of_zeros_after_a_crash_is_a_torn_one():
    log = Log()
    log.append()
    log.writer.sync()
    data = log.store.read("00000000000000000000.log")
    log.store.crash()
    log.store.write("00000000000000000000.log", data + bytes(500))
    log.store.write("00000000000000000002.log", bytes(1000))

    log.open()
    assert read_all(log.reader()) == log.written
    assert log.writer.next(SESSION, "a") == 1024
    log.next[SESSION, "a"] = 1_000_000
    log.append()
    assert read_all(log.reader()) == log.written


def spoil(log, name, at):
    """Let the disk have something else there than was written."""
    data = bytearray(log.store.read(name))
    data[at] ^= 0xFF
    log.store.write(name, bytes(data))


def test_a_hole_that_a_crash_leaves_is_skipped_for_what_it_is():
    log = Log(reserve=100)
    log.append("a", 2)
    log.append("b", 5)
    log.append("a", 3)
    log.append("a", 4)
    log.append(session=OTHER)
    log.append(session=OTHER)
    log.append("b", 1)
    (name,) = segments(log.store)
    at = boundaries(log.store.read(name))  # of three names, too
    for spoilt in (at[4] + 50, at[7] + 50):  # 2 to 4 of "a", and the first of the other session
        spoil(log, name, spoilt)
    log.writer.sync()

    report = log.crash()
    assert report.skipped == ((SESSION, "a", 2, 5), (SESSION, "a", 9, 100), (SESSION, "b", 6, 100))
    assert log.writer.skips(SESSION, "a") == log.reader().skips(SESSION, "a") == [(2, 5), (9, 100)]
    assert log.writer.skips(SESSION, "b") == [(6, 100)]
    held = [kept[:2] for kept in read_stream(log.reader())]
    assert held == [(0, 2), (5, 9)]

    log.close()
    log.open()
    assert log.writer.skips(SESSION, "a") == [(2, 5), (9, 100)]
    again = log.crash()
    assert [skip for skip in again.skipped if skip[2] < 100] == []


def test_a_thread_forces_to_the_disk_while_another_one_writes(tmp_path):
    config = LogConfig(tmp_path / "log", segment_bytes=4096)
    writer = LogWriter(config, session=1, now_ns=0, make_lock=threading.Lock)
    used = dict.fromkeys("abc", 0)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            pending = writer.begin_sync()
            waiting = pool.submit(pending.wait)
            for topic in 5 * list(used):
                writer.append(1, topic, used[topic], 7, b"x" * 100, timestamp_ns_max=0, now_ns=0)
                used[topic] += 7
            waiting.result()
            writer.end_sync(pending)
    assert len(os.listdir(tmp_path / "log")) > 10  # of its segments there are several
    writer.release()
    again = LogWriter(config, session=2, now_ns=0)
    assert {topic: again.next(1, topic) for topic in used} == used
    again.close()


@pytest.mark.parametrize("has_run", [True, False])
@pytest.mark.parametrize("then", ["close", "sync"])
def test_a_sync_that_nobody_ended_is_not_taken_for_one_that_succeeded(then, has_run):
    """As where a loop ends, or an interrupt comes, while it is in the executor."""
    log = Log(segment_bytes=4096)
    log.append_each(200, "a")
    pending = log.writer.begin_sync()
    if has_run:
        log.store.failing["sync"] = OSError(5, "Input/output error")
        pending.wait()
        log.store.failing.clear()
    finish = log.close if then == "close" else log.writer.sync
    if has_run:
        with pytest.raises(LogWriteError):
            finish()
        assert log.writer.has_failed
        return
    finish()
    log.crash()
    assert read_all(log.reader()) == log.written
