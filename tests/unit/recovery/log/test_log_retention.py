"""Retention deletes whole segments, the oldest first, never one that is read, and no sequence."""

import pytest

from recovery.log import (
    LogLockedError,
    RecoveryError,
    truncate,
)
from tests.unit.recovery.log.logs import (
    SESSION,
    Log,
    S,
    newest_ns,
    read_all,
    read_stream,
    segments,
)


def fill(log, count=400, topic="a", **options):
    for _ in range(count):
        log.append(topic, **options)
        log.now_ns += S


def total(log):
    return sum(len(log.store.read(name)) for name in segments(log.store))


def test_a_log_may_keep_what_is_not_settled_and_nothing_else():
    log = Log(segment_bytes=4096, retention_bytes=1)
    log.writer.keep_from(SESSION, "a", 0)
    fill(log)
    names = segments(log.store)
    log.writer.sync(log.now_ns)
    assert segments(log.store) == names

    log.writer.keep_from(SESSION, "a", 200)
    log.writer.sync(log.now_ns)
    reader = log.reader()
    kept = read_all(reader)
    reader.close()
    assert 150 < kept[0][2] <= 200
    assert kept == log.written[-len(kept) :]

    log.append("b")  # another stream is kept
    fill(log)
    log.writer.keep_from(SESSION, "a", 10**6)
    log.writer.sync(log.now_ns)
    reader = log.reader()
    assert [record[1] for record in read_all(reader)].count("b") == 1
    reader.close()
    log.writer.keep_from(SESSION, "b", 1)
    log.writer.sync(log.now_ns)
    assert len(segments(log.store)) == 1
    log.reopen()
    assert (log.writer.next(SESSION, "a"), log.writer.next(SESSION, "b")) == (800, 1)


def test_a_segment_that_is_read_stays_until_it_is_not():
    log = Log(segment_bytes=4096, retention_age=10**6)
    fill(log)
    reader, names = log.reader(), segments(log.store)
    log.now_ns += 10**7 * S
    second = int(names[1][:20])  # which is the number of its first record
    assert read_stream(reader, "a", second, second + 1) == log.of()[second : second + 1]
    assert read_stream(reader, "a", 0, 1)
    log.writer.sync(log.now_ns)
    assert segments(log.store)[:-1] == names  # and another one is begun

    reader.close_idle()  # it was read since the last time
    log.writer.sync(log.now_ns)
    assert segments(log.store)[:-1] == names
    assert read_stream(reader, "a", 0, 1) == [log.of()[0]]

    reader.close_idle()
    reader.close_idle()
    log.writer.sync(log.now_ns)
    assert len(segments(log.store)) == 1


def test_truncate_deletes_by_time():
    log = Log(segment_bytes=4096)
    fill(log)
    log.close()
    names = segments(log.store)
    third = newest_ns(log.store.read(names[2]))

    assert truncate("log", before_ns=third, store=log.store) > 7000
    assert segments(log.store) == names[2:]
    assert truncate("log", before_ns=third, store=log.store) == 0
    assert truncate("log", before_ns=third + 1, store=log.store) > 3500
    assert segments(log.store) == names[3:]
    assert truncate("log", before_ns=2**62, store=log.store) > 0
    assert segments(log.store) == names[-1:]


def test_truncate_deletes_by_bytes_and_the_log_goes_on():
    log = Log(segment_bytes=4096)
    log.append("rare", 3)
    fill(log)
    log.close()
    before = total(log)

    gone = truncate("log", bytes_max=10_000, store=log.store)
    assert gone == before - total(log)
    assert 10_000 - 4096 < total(log) <= 10_000

    report = log.open()
    assert report.clean
    assert (log.writer.next(SESSION, "a"), log.writer.next(SESSION, "rare")) == (400, 3)
    log.append()
    kept = read_all(log.reader())
    assert kept == log.written[-len(kept) :]


def test_truncate_refuses_a_log_with_a_writer_and_what_is_none(tmp_path):
    log = Log(segment_bytes=4096)
    fill(log)
    names = segments(log.store)
    with pytest.raises(LogLockedError, match="has a writer"):
        truncate("log", bytes_max=0, store=log.store)
    assert segments(log.store) == names

    (tmp_path / "notes.txt").write_text("no log")
    with pytest.raises(RecoveryError, match="has no log"):
        truncate(tmp_path, bytes_max=0)
    with pytest.raises(RecoveryError, match="No such file"):
        truncate(tmp_path / "none", bytes_max=0)
