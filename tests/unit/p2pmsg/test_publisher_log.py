"""When a publisher's log is to be forced to the disk."""

import errno
from contextlib import nullcontext

import pytest

from p2pmsg import LogConfig, LogFailedError, PublisherConfig
from p2pmsg.publisher_core import PublisherCore
from p2pmsg.publisher_log import PublisherLog
from recovery import ReplayBuffer
from recovery.log import MemoryStore, memory_store

MS = 1_000_000
INTERVAL_NS = 100 * MS
FRAME = bytes(1000)


def log_of(store=None, **options):
    config = LogConfig("log", **options)
    return PublisherLog(config, session=1, wall_ns=0, store=store or MemoryStore())


def append(log, count=1):
    for _ in range(count):
        log.append("t", log.next("t"), 1, FRAME, 0, 0)


def is_settled(log, now_ns=0):
    """Bring to the disk what opening the log has written."""
    log.sync(nullcontext())
    return log.next_deadline_ns(now_ns=now_ns) is None


def test_it_is_due_an_interval_after_the_first_frame():
    log = log_of()
    assert is_settled(log)
    append(log)
    assert log.next_deadline_ns(now_ns=5 * MS) == 5 * MS + INTERVAL_NS
    append(log)
    assert log.next_deadline_ns(now_ns=50 * MS) == 5 * MS + INTERVAL_NS
    log.sync(nullcontext())
    assert log.next_deadline_ns(now_ns=50 * MS) is None


def test_it_is_due_at_once_when_so_many_bytes_wait():
    log = log_of(fsync_bytes=10 * len(FRAME))
    assert is_settled(log)
    append(log, 9)
    assert log.next_deadline_ns(now_ns=5 * MS) == 5 * MS + INTERVAL_NS
    append(log)
    assert log.next_deadline_ns(now_ns=6 * MS) == 6 * MS
    log.sync(nullcontext())
    assert log.next_deadline_ns(now_ns=7 * MS) is None


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_one_sync_is_for_all_that_waits(fsync, monkeypatch):
    log, synced = log_of(fsync=fsync), []
    assert is_settled(log)
    sync = memory_store._File.sync
    monkeypatch.setattr(memory_store._File, "sync", lambda file: (synced.append(file), sync(file)))
    for _ in range(5):
        synced.clear()
        append(log, 200)
        assert not synced
        log.sync(nullcontext())
        assert len(synced) == 1


def test_with_never_nothing_is_due_however_much_waits():
    log = log_of(fsync="never", fsync_bytes=1)
    append(log, 20)
    assert log.next_deadline_ns(now_ns=0) is None


@pytest.mark.parametrize("on_error", ["raise", "continue"])
@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_nothing_is_due_any_more_when_it_has_failed_once(fsync, on_error):
    store = MemoryStore()
    log = log_of(store, fsync=fsync, on_error=on_error, fsync_bytes=1)
    assert is_settled(log)
    append(log)
    assert log.next_deadline_ns(now_ns=3) == 3
    store.failing = {"sync": OSError(errno.EIO, "Input/output error")}
    log.sync(nullcontext())
    assert (log.broken or log.failed).endswith("Input/output error")
    # Or else the publisher's thread would never sleep again.
    assert log.next_deadline_ns(now_ns=4) is None


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("how", ["publish", "publish_alone", "publish_many"])
def test_a_stream_goes_on_where_an_interrupt_struck_between_log_and_buffer(how, size, monkeypatch):
    log = log_of()
    core = PublisherCore(
        name="p", session=log.session, recovery="memory://r", config=PublisherConfig(), now_ns=0,
        log=log,
    )  # fmt: skip
    values = [bytes([number]) * size for number in range(20)]

    def publish(number, now_ns):
        if how == "publish_many":
            times = {"now_ns": now_ns, "wall_ns": 1}
            core.publish_many("t", [values[number]], None, None, 0, **times, count=1)
            return
        nothing = (None, None, None)
        if how == "publish" or core.publish_alone("t", values[number], *nothing, now_ns, 1) < 0:
            core.publish("t", values[number], *nothing, now_ns=now_ns, wall_ns=1)

    append, strikes = ReplayBuffer.append, iter([False, True, True, *[False] * 50])

    def strike(*arguments, **options):
        if next(strikes):
            raise KeyboardInterrupt
        append(*arguments, **options)

    monkeypatch.setattr(ReplayBuffer, "append", strike)
    interrupted = 0
    for number in range(20):
        try:
            publish(number, number * 10**9)
            core.flush(now_ns=number * 10**9)
        except KeyboardInterrupt:
            interrupted += 1
    core.flush(now_ns=20 * 10**9)
    assert interrupted == 2
    assert log.next("t") == core.replay.next("t") >= 18
    # What was struck is in the log, and nothing else suffers.
    ends = [(kept.start, kept.stop) for kept in log._reader.frames(log.session, "t", 0, 99, 2**30)]
    assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
    assert ends[-1][1] == log.next("t")


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("how", ["publish", "publish_alone", "publish_many"])
def test_a_frame_is_in_the_log_before_it_may_go_out(how, size):
    log = log_of()
    core = PublisherCore(
        name="p", session=log.session, recovery="memory://r", config=PublisherConfig(), now_ns=0,
        log=log,
    )  # fmt: skip
    append, logged = log.append, []

    def append_first(topic, start, count, frame, *rest):
        append(topic, start, count, frame, *rest)
        assert not core.outbox
        logged.append(bytes(frame))

    log.append = append_first
    nothing = (None, None, None)
    core.publish("t", b"first", *nothing, now_ns=0, wall_ns=1)
    core.flush(now_ns=0)
    for number in range(1, 20):
        assert list(map(bytes, core.outbox)) == logged[-1:]
        core.outbox.clear()
        now_ns, value = number * 10**9, bytes([number]) * size
        if how == "publish_many":
            core.publish_many("t", [value] * 3, None, None, 0, now_ns=now_ns, wall_ns=1, count=3)
        elif how == "publish":
            core.publish("t", value, *nothing, now_ns=now_ns, wall_ns=1)
        else:
            assert core.publish_alone("t", value, *nothing, now_ns, 1) == number
        core.flush(now_ns=now_ns)
    assert len(logged) == 20
    kept = log._reader.frames(log.session, "t", 0, 99, 2**30)
    assert [one.frame for one in kept] == logged  # byte for byte as it is sent


def test_what_the_log_does_not_take_does_not_go_out():
    store = MemoryStore()
    log = log_of(store, on_error="raise")
    core = PublisherCore(
        name="p", session=log.session, recovery="memory://r", config=PublisherConfig(), now_ns=0,
        log=log,
    )  # fmt: skip
    nothing = (None, None, None)
    core.publish("t", b"first", *nothing, now_ns=0, wall_ns=1)
    core.outbox.clear()
    store.failing = {"write": OSError(errno.EROFS, "Read-only file system")}
    for publish in (
        lambda: core.publish_alone("t", b"second", *nothing, 10**9, 1),
        lambda: core.publish("t", b"second", *nothing, now_ns=2 * 10**9, wall_ns=1),
        lambda: core.publish_many(
            "t", [b"second"], None, None, 0, now_ns=3 * 10**9, wall_ns=1, count=1
        ),
    ):
        with pytest.raises(LogFailedError, match="Read-only file system"):
            publish()
        assert not core.outbox
        assert core.replay.next("t") == 1
