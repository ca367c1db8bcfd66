from functools import partial

import pytest

from p2pmsg import wire
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import MessageError
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.packing import pack_slice
from p2pmsg.wire import Frame, decode_columns
from tests.kept import kept_frames
from tests.unit.p2pmsg.interrupts import interrupt_at
from tests.unit.p2pmsg.publisher.served import take_sent

WALL_NS = 1_700_000_000 * 10**9
INSIDE = ("publisher/batch.py", "publisher/packing.py", "publisher/core.py")
MORE = ("publisher/log.py", "publisher/values.py", "replay_buffer.py")
INSIDE_AT = {"line": INSIDE, "signal": INSIDE + MORE}


def is_inside(event, code):
    return code.co_filename.endswith(INSIDE_AT[event])


def core(log=None):
    config = PublisherConfig(frame_bytes=1024)
    return PublisherCore(
        name="feed",
        session=9,
        recovery="memory://r",
        config=config,
        now_ns=0,
        log=log,
        gather_after=0,
    )


def kept_log():
    """A log whose batches are gathered in its tail file."""
    log = pytest.importorskip("recovery.log")
    config = log.LogConfig("log")
    return PublisherLog(config, session=9, wall_ns=0, store=log.MemoryStore())


def publish(publisher, value, key=None, timestamp_ns=None, headers=None, *, now_ns=0):
    return publisher.publish("t", value, key, timestamp_ns, headers, now_ns=now_ns, wall_ns=WALL_NS)


def messages(publisher):
    """All messages by sequence, sent or kept for repair; what is there twice must be the same."""
    publisher.flush(now_ns=1)
    found = {}
    kept = [row.frame for row in kept_frames(publisher.replay, "t")]
    sent = take_sent(publisher)
    logged = [] if publisher.log is None else logged_frames(publisher)
    assert set(sent) <= {*kept, *logged}
    for data in [*kept, *sent, *logged]:
        frame = Frame(data)
        values, timestamps, keys, headers = decode_columns(frame)
        for index, value in enumerate(values):
            message = (
                value,
                keys[index] if keys else None,
                timestamps[index] if timestamps else frame.base_timestamp_ns,
                headers[index] if headers else None,
            )
            assert found.setdefault(frame.sequence + index, message) == message
    return found


def logged_frames(publisher):
    """What can be repaired from the log."""
    frames, at, following = [], 0, publisher.log.next("t")
    while at < following:
        kept = publisher.own.read(b"requester", "t", at)
        frames.append(bytes(kept.frame))
        at = kept.stop
    return frames


PARTS = {
    "none": {},
    "a key": {"key": "k"},
    "a time": {"timestamp_ns": WALL_NS - 9},
    "headers": {"headers": {"h": 1}},
    "all": {"key": "k", "timestamp_ns": 5, "headers": {}},
}


@pytest.mark.parametrize("late", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("early", PARTS.values(), ids=PARTS)
def test_columns_are_filled_where_a_message_has_no_part_in_them(early, late):
    publisher = core()
    publish(publisher, 0)
    sent = [{}, early, {}, late, {}, early]
    for number, parts in enumerate(sent[1:], 1):
        publish(publisher, number, **parts)

    assert messages(publisher) == {
        number: (
            number,
            parts.get("key"),
            parts.get("timestamp_ns", WALL_NS),
            parts.get("headers"),
        )
        for number, parts in enumerate(sent)
    }


BAD = {
    "a value": {"value": object()},
    "a value inside": {"value": [b"x" * 100, {"a": object()}]},
    "a str that is not UTF-8": {"value": "\ud800"},
    "a value without end": {},
    "a key": {"value": 1, "key": 5},
    "a key that is not UTF-8": {"value": 1, "key": "\ud800"},
    "a time": {"value": 1, "timestamp_ns": 1.5},
    "a time too far": {"value": 1, "key": "k", "timestamp_ns": 2**63},
    "headers": {"value": 1, "key": "k", "timestamp_ns": 5, "headers": [1]},
    "a name in headers": {"value": 1, "headers": {1: 2}},
    "a value in headers": {"value": 1, "key": "k", "headers": {"a": object()}},
    "too large": {"value": bytes(2 * 2**20)},
    "large headers": {"value": 1, "headers": {"a": bytes(2 * 2**20)}},
}


@pytest.mark.parametrize("busy", [True, False], ids=["in a batch", "alone"])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_message_that_cannot_be_packed_leaves_no_trace(bad, busy):
    publisher = core()
    if not bad:
        endless = []
        endless.append(endless)
        bad = {"value": endless}
    publish(publisher, "before")
    if busy:
        publish(publisher, "gathered", key="k0", timestamp_ns=1, headers={"h": 0})
    with pytest.raises((MessageError, RecursionError)):
        publish(publisher, now_ns=0 if busy else 10**9, **bad)
    publish(publisher, "after", key="k1")

    found = messages(publisher)
    assert [found[sequence][0] for sequence in sorted(found)] == (
        ["before", "gathered", "after"] if busy else ["before", "after"]
    )
    assert found[max(found)] == ("after", "k1", WALL_NS, None)
    assert publisher.published == len(found)


ACTIONS = {
    "publish": lambda publisher: publish(publisher, "this", key="k"),
    "publish what fills the frame": lambda publisher: publish(publisher, "x" * 700, headers={}),
    "publish alone": lambda publisher: publish(publisher, "this", now_ns=10**9),
    "flush": lambda publisher: publisher.flush(now_ns=0),
    "publish many": lambda publisher: publisher.publish_many(
        "t", ["this", "that"], None, None, 0, now_ns=0, wall_ns=WALL_NS, count=9
    ),
    "the timer": lambda publisher: publisher.handle_timer(now_ns=10**8),
}


@pytest.mark.parametrize("event", ["line", "signal"])
@pytest.mark.parametrize("logged", [False, True], ids=["no log", "log"])
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_an_interrupt_anywhere_loses_nothing_that_was_accepted(action, logged, event):
    step = 0
    while True:
        publisher = core(kept_log() if logged else None)
        publish(publisher, "a")
        publish(publisher, "b" * 300)
        publish(publisher, "c", headers={"h": 1})
        inside = partial(is_inside, event)
        interrupted = interrupt_at(step, partial(action, publisher), inside, event)
        publisher.resync()  # as the shell does
        last = publish(publisher, "last", timestamp_ns=7)

        found = messages(publisher)
        assert sorted(found) == list(range(last + 1)), step
        assert publisher.published == last + 1, step
        assert found[0][0], found[1][0] == ("a", "b" * 300)
        assert found[2] == ("c", None, WALL_NS, {"h": 1}), step
        assert found[last] == ("last", None, 7, None), step
        if not interrupted:
            break
        step += 1
    assert step > 3


def test_the_latest_time_of_a_slice_is_found():
    times = [5, 9, 2]
    data, latest = pack_slice(
        wire.stream_prefix("t", 9), 0, WALL_NS, [1, 2, 3], None, times, bytearray()
    )

    assert latest == 9
    assert decode_columns(Frame(data))[1] == times


def latest(batches):
    return batches.topic, batches.batch
