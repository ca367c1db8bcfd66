from functools import partial

import pytest

from p2pmsg import wire
from p2pmsg.config import PublisherConfig
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
