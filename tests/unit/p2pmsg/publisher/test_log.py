"""When a publisher's log is to be forced to the disk."""

import errno
import struct
from random import Random

import pytest

from p2pmsg import LogConfig, PublisherConfig, control
from p2pmsg.errors import LogFailedError
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.tail_frames import frame_of
from p2pmsg.wire import Frame, Kind
from recovery import ReplayBuffer
from recovery.log import LogReader, LogWriter, MemoryStore, opening, truncate, verify
from tests.unit.p2pmsg.frames import probe
from tests.unit.p2pmsg.publisher.served import run_steps, take_sent

MS = 1_000_000
FRAME = bytes(1000)
FULL_BYTES = 128 * 1024


@pytest.fixture(autouse=True)
def reserve(monkeypatch):
    """Few sequences are reserved, so that little is skipped after a crash."""
    monkeypatch.setattr(opening, "RESERVE", 5)


def log_of(store=None, **options):
    config = LogConfig("log", **options)
    return PublisherLog(config, session=1, wall_ns=0, store=store or MemoryStore())


def core_on(log):
    config = PublisherConfig()
    return PublisherCore(
        name="p",
        session=log.session,
        recovery="memory://r",
        config=config,
        now_ns=0,
        log=log,
        gather_after=0,
    )


def append(log, count=1):
    for _ in range(count):
        log.append("t", log.next("t"), 1, FRAME, 0, 0)


def is_settled(log, now_ns=0):
    """Bring to the disk what opening the log has written."""
    run_steps(log.sync_steps())
    return log.next_deadline_ns(now_ns=now_ns) > now_ns


@pytest.mark.parametrize("fsync", ["interval", "always"])
def test_one_sync_is_for_all_that_waits(fsync, monkeypatch):
    monkeypatch.setattr(opening, "RESERVE", 10_000)
    log, synced = log_of(fsync=fsync), []
    assert is_settled(log)
    kind = type(MemoryStore().open("any", create=True))
    sync = kind.sync
    monkeypatch.setattr(kind, "sync", lambda file: (synced.append(file), sync(file)))
    for _ in range(5):
        synced.clear()
        append(log, 200)
        assert not synced
        run_steps(log.sync_steps())
        assert len(synced) == 1


@pytest.mark.parametrize("on_error", ["raise", "continue"])
def test_closing_reports_an_fsync_that_failed_before(on_error):
    store = MemoryStore()
    log = log_of(store, on_error=on_error)
    append(log)
    store.failing = {"sync": OSError(errno.EIO, "Input/output error")}
    run_steps(log.sync_steps())
    store.failing = {}
    if on_error == "continue":
        log.close()
        assert log.stats().failed.endswith("Input/output error")
    else:
        with pytest.raises(LogFailedError, match="forced to the disk: Input/output error"):
            log.close()
    assert not LogWriter(LogConfig("log"), session=2, now_ns=0, store=store).opened.clean


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("how", ["publish", "publish_alone", "publish_many"])
def test_a_stream_goes_on_where_an_interrupt_struck_between_log_and_buffer(how, size, monkeypatch):
    log = log_of()
    core = core_on(log)
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
    reader = LogReader("log", store=log.store)
    ends = [(kept.start, kept.stop) for kept in reader.frames(log.session, "t", 0, 99, 2**30)]
    assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])]
    assert ends[-1][1] == log.next("t")


def test_what_waits_for_the_disk_is_one_frame_however_long_it_takes():
    log = log_of(fsync="always")
    core = core_on(log)
    for number in range(100):
        core.publish("t", number, None, None, None, now_ns=number * MS, wall_ns=1)
        assert not core.unsynced  # nobody writes, and holds the others up, before the commit
    core.flush(now_ns=100 * MS)
    assert [sequence for _, sequence, _ in core.unsynced] == [0]
    assert log.next("t") == 100


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("how", ["publish", "publish_alone", "publish_many"])
def test_a_frame_is_in_the_log_before_it_may_go_out(how, size):
    log = log_of()
    core = core_on(log)
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
    kept = LogReader("log", store=log.store).frames(log.session, "t", 0, 99, 2**30)
    assert [one.frame for one in kept] == logged  # byte for byte as it is sent


def test_what_the_log_does_not_take_does_not_go_out():
    store = MemoryStore()
    log = log_of(store, on_error="raise")
    core = core_on(log)
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


def core_of(store, **options):
    """Return the core of a publisher on a log that gathers messages in its tail file."""
    config = LogConfig("log", **options)
    log = PublisherLog(config, session=1, wall_ns=0, store=store, slot_bytes=FULL_BYTES)
    return core_on(log)


def publish(core, count):
    """Publish messages that follow one another closely; return the last sequence."""
    for _ in range(count):
        last = core.publish("t", 1, None, None, None, now_ns=1, wall_ns=1)
    assert core.pending
    return last


def reported(core, start, stop):
    """Return what of a range is reported as lost by a crash."""
    return [(loss.start, loss.stop) for loss in core.own.lost("t", start, stop)[0]]


@pytest.mark.parametrize("before", [0, 3])
def test_a_crash_of_the_system_gives_no_returned_sequence_again(before):
    store = MemoryStore()
    core = core_of(store)
    if before:
        publish(core, before)
        core.flush(now_ns=1)
        run_steps(core.log.sync_steps())
    last = publish(core, 1000)  # more than are reserved, and in no frame yet
    store.crash()

    core = core_of(store)
    following = core.log.next("t")
    assert following > last
    assert reported(core, 0, following) == [(before, following)]


def test_a_reader_from_a_time_on_gets_a_report_of_what_a_crash_took_right_before():
    store = MemoryStore()
    core = core_of(store)
    publish(core, 3)
    core.flush(now_ns=1)
    run_steps(core.log.sync_steps())
    publish(core, 10)
    store.crash()

    core = core_of(store)
    core.requests.receive(b"r", probe(7, ["t"], "time", 2, session=core.own.session), now_ns=1)
    (echo,) = [Frame(data) for data in take_sent(core) if data[4] == Kind.ECHO]
    (head,) = control.read_body(echo, control.Heads).streams
    assert (head.start, head.next) == (3, core.log.next("t"))


def test_what_waits_next_to_a_log_that_was_cut_is_sent_and_the_rest_is_reported():
    store = MemoryStore()
    core = core_of(store)
    publish(core, 3)
    core.flush(now_ns=1)
    last = publish(core, 1000)
    store.kill()
    (name,) = [name for name in store.names() if name.endswith(".log")]
    store.write(name, store.read(name)[:-1])

    core = core_of(store)
    following = core.log.next("t")
    assert following == last + 1
    assert core.log.recovered == 1000
    assert reported(core, 0, following) == [(1, 3)]


@pytest.mark.parametrize("is_truncated", [True, False])
@pytest.mark.parametrize("is_rebooted", [True, False])
def test_what_a_closed_log_could_not_take_is_sent_by_the_next_or_reported(
    is_truncated, is_rebooted
):
    store = MemoryStore()
    core = core_of(store)
    publish(core, 3)
    core.flush(now_ns=1)
    last = publish(core, 10)
    if is_truncated:  # by hand, after its publisher was killed
        store.kill()
        truncate("log", bytes_max=1, store=store)
    else:
        core.log.close(keeps_tail=True)
    if is_rebooted:
        store.crash()

    core = core_of(store)
    following = core.log.next("t")
    if is_rebooted:
        assert following > last
        ((start, stop),) = reported(core, 0, following)
        assert start <= 3
        assert stop == following
    else:
        assert following == last + 1
        assert core.log.recovered == 10


def test_a_disk_that_was_full_when_sequences_were_to_be_reserved_is_over_with():
    store = MemoryStore()
    core = core_of(store)
    publish(core, 60)
    core.flush(now_ns=1)
    full = {"write": OSError(errno.ENOSPC, "No space left on device")}
    store.failing = full
    assert run_steps(core.log.sync_steps())  # the frames have their place, and their sequences
    store.failing = {}
    publish(core, 60)
    store.failing = full
    with pytest.raises(LogFailedError, match="No space left"):
        core.flush(now_ns=1)
    store.failing = {}

    assert core.log.broken is None
    core.flush(now_ns=1)
    assert core.log.next("t") == 120
    store.crash()
    assert core_of(store).log.next("t") >= 120


def lost(store):
    """Kill a publisher that had 3 messages in a frame and 10 in the tail file; return the core."""
    core = core_of(store)
    publish(core, 3)
    core.flush(now_ns=1)
    publish(core, 10)
    store.kill()
    return core


TAILS = {
    "zeros": lambda data: bytes(len(data)),
    "noise": lambda data: Random(5).randbytes(len(data)),
    "half": lambda data: data[: len(data) // 2],
    "page 0": lambda data: data[:4096],
    "empty": lambda data: b"",
    "deleted": lambda data: None,
    "slot": lambda data: data[:-4096] + bytes((5,)) + data[-4095:],
    "no slots": lambda data: data[:16] + struct.pack("=Q", 8195) + data[24:],
}


@pytest.mark.parametrize("how", TAILS)
def test_what_was_in_a_tail_file_that_is_damaged_is_reported(how):
    store = MemoryStore()
    lost(store)
    data = store.read("tail")
    store.remove("tail")
    damaged = TAILS[how](data)
    if damaged is not None:
        store.write("tail", damaged)

    assert [finding.path for finding in verify("log", store=store)] == ["tail"]
    core = core_of(store)
    following = core.log.next("t")
    assert following >= 13
    assert reported(core, 0, following) == [(3, following)]
    store.kill()
    again = core_of(store)
    assert again.log.next("t") == following  # it is skipped once


SPOILT = {
    "no value begins with it": lambda slot, end: (end - 1, 0xC1),
    "it is longer than all of them": lambda slot, end: (end - 5, 0xDB),
    "the columns": lambda slot, end: (slot.bytes_max, 0xC1),
}


@pytest.mark.parametrize("how", SPOILT)
def test_messages_in_the_tail_file_that_are_damaged_are_skipped_and_the_others_sent(how, caplog):
    store = MemoryStore()
    core = core_of(store)
    nothing = {"now_ns": 1, "wall_ns": 1}
    publish(core, 3)
    core.flush(now_ns=1)
    kept = core.log.next("t")
    for topic in ("t", "u", "v"):
        for value in range(11):  # the first of a stream goes out at once
            core.publish(topic, value, "key", None, None, **nothing)
    for topic in ("t", "v"):
        batch = core.open_batches[topic]
        at, byte = SPOILT[how](batch.slot, batch.end)
        batch.slot.memory[at] = byte
    store.kill()
    assert list(verify("log", store=store)) == []  # it does not know what a message is
    ((path, _, what),) = found_by(verify("log", store=store, check=frame_of))
    assert (path, "the messages of 't' are damaged" in what) == ("tail", True)

    core = core_of(store)
    following = {topic: core.log.next(topic) for topic in ("t", "u", "v")}
    assert (core.log.recovered, following["u"]) == (10, 11)
    for topic, first in (("t", kept), ("v", 1)):
        (loss,) = core.own.lost(topic, 0, following[topic])[0]
        assert (loss.start, loss.stop) == (first, following[topic])
        assert following[topic] >= first + 10
    assert core.log.stats().skipped == sum(following.values()) - kept - 11 - 1
    assert "may have lost messages" in caplog.text
    assert list(verify("log", store=store, check=frame_of)) == []
    store.kill()
    again = core_of(store)
    assert {topic: again.log.next(topic) for topic in following} == following  # it is skipped once


def found_by(findings):
    return [(finding.path, finding.offset, finding.what) for finding in findings]


def test_after_a_crash_of_the_system_a_damaged_tail_is_skipped_from_the_floor_on():
    store = MemoryStore()
    publish(core_of(store), 3)
    store.crash()
    core = core_of(store)
    floor = core.log.floor
    for _ in range(3):
        core.publish("new", 1, None, None, None, now_ns=1, wall_ns=1)
    batch = core.open_batches["new"]
    batch.slot.memory[batch.end - 1] = 0xC1
    store.kill()

    core = core_of(store)
    following = core.log.next("new")
    losses, left = core.own.lost("new", 0, following)
    ranges = [(loss.start, loss.stop) for loss in losses]
    assert ranges == [(0, floor), (floor + 1, following)]
    assert (left, following >= floor + 3 > 3) == ([(floor, floor + 1)], True)


@pytest.mark.rounds(200, 20_000)
def test_no_damage_of_the_tail_file_hinders_the_next_publisher(rounds):
    random, store = Random(7), MemoryStore()
    core = lost(store)
    batch = core.open_batches["t"]
    core.publish("t", 1, "key", 5, {"a": "b"}, now_ns=1, wall_ns=1)
    data, files = store.read("tail"), store.copy()
    begin, columns = 4096, 4096 + batch.slot.bytes_max
    places = [*range(begin, begin + batch.end), *range(columns, columns + 30)]
    places += range(len(data) - 4096, len(data) - 4000)
    for _ in range(rounds):
        damaged = bytearray(data)
        for _ in range(random.choice((1, 1, 2, 10))):
            damaged[random.choice(places)] = random.randrange(256)
        store.restore(files)
        store.remove("tail")
        store.write("tail", bytes(damaged))
        assert core_of(store).log.next("t") >= 3
        store.kill()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_tail_file_that_a_crash_of_the_system_has_torn_is_forgotten(is_closed):
    store = MemoryStore()
    core = lost(store)
    data = store.read("tail")
    if is_closed:  # and its deletion was not on the disk
        store.kill()
        core = core_of(store)
        core.log.close()
    store.crash()
    store.write("tail", bytes(len(data)))
    following = core_of(store).log.next("t")
    store.kill()

    assert core_of(store).log.next("t") == following


def test_a_publisher_that_is_killed_again_and_again_while_it_opens_skips_nothing(monkeypatch):
    def killed(*arguments):
        raise KeyboardInterrupt

    store = MemoryStore()
    for method in ("begin_tail", "accepted", "begin_tail", "sync"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LogWriter, method, killed)
            core_of(store)
        store.kill()
    core = core_of(store)
    assert core.log.next("t") == 0
    publish(core, 10)
    store.kill()
    for method in ("accepted", "begin_tail"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(LogWriter, method, killed)
            core_of(store)
        store.kill()

    core = core_of(store)
    assert (core.log.next("t"), reported(core, 0, 10)) == (10, [])


def test_a_log_that_was_given_up_is_not_gone_on_with_after_a_crash_of_the_system():
    store = MemoryStore()
    core = core_of(store, on_error="continue")
    publish(core, 3)
    core.flush(now_ns=1)
    run_steps(core.log.sync_steps())
    store.failing = {"write": OSError(errno.ENOSPC, "No space left on device")}
    for _ in range(3):  # in no log, and far beyond what was reserved
        publish(core, 100)
        core.flush(now_ns=1)
    assert core.log.failed
    store.failing = {}
    store.crash()

    config = LogConfig("log")
    assert PublisherLog(config, session=77, wall_ns=0, store=store).session == 77  # a new one
