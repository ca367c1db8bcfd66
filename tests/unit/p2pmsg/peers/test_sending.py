"""Sending what is in the outbox, without waiting."""

import time

import pytest

from p2pmsg.config import PublisherConfig
from p2pmsg.errors import SendQueueFullError
from p2pmsg.peers import sending
from p2pmsg.peers.sending import UNSENT_BYTES_MAX, UNSENT_FRAMES_MAX, UNSYNCED_MAX, Outgoing
from p2pmsg.publisher.core import PublisherCore


class Sender:
    """Has space for so many frames, and takes `delay_s` for each."""

    def __init__(self, space=0, delay_s=0.0):
        self.space = space
        self.delay_s = delay_s
        self.sent = []
        self.shed = []

    def send(self, frame):
        time.sleep(self.delay_s)
        if len(self.sent) >= self.space:
            return False
        self.sent.append(frame)
        return True

    def send_shedding(self, frame):
        self.shed.append(frame)


@pytest.fixture(autouse=True)
def long_slice(monkeypatch):
    monkeypatch.setattr(sending, "SLICE_NS", 10**9)


def outgoing_of(sender, clock=time.monotonic_ns, **options):
    core = PublisherCore(
        name="p", session=1, recovery="tcp://127.0.0.1:1", config=PublisherConfig(**options),
        now_ns=0,
    )  # fmt: skip
    return core, Outgoing(core, sender, clock)


@pytest.mark.parametrize(
    ("size", "count"),
    [(1, UNSENT_FRAMES_MAX), (10_000, -(-UNSENT_BYTES_MAX // 10_000)), (UNSENT_BYTES_MAX, 1)],
)
@pytest.mark.parametrize("where", ["outbox", "unsynced"])
def test_beyond_its_bounds_nothing_is_taken(size, count, where):
    core, outgoing = outgoing_of(Sender(), stall_timeout=60.0)
    for number in range(count):
        outgoing.make_space(bounded=True)
        if where == "outbox":
            core.outbox.append(bytes(size))
        else:
            core.unsynced.append(("t", number, bytes(size)))
        assert not outgoing.send_now() or where == "unsynced"
    with pytest.raises(SendQueueFullError, match=r"await drain\(\)"):
        outgoing.make_space(bounded=True)
    outgoing._sender.space = core.outbox and 1
    (core.outbox or core.unsynced).pop()
    outgoing.make_space(bounded=True)


def test_what_waits_is_sent_before_anything_is_refused():
    core, outgoing = outgoing_of(Sender(space=10**6), clock=lambda: 0)
    core.outbox.extend([b""] * UNSENT_FRAMES_MAX)
    outgoing.make_space(bounded=True)
    assert len(outgoing._sender.sent) == UNSENT_FRAMES_MAX


def test_a_call_ends_when_its_time_is_over_and_says_that_there_is_more(monkeypatch):
    monkeypatch.setattr(sending, "SLICE_NS", 1)
    sender = Sender(space=10, delay_s=0.001)
    core, outgoing = outgoing_of(sender)
    core.outbox.extend(map(bytes, range(3)))
    assert not outgoing.send_now()
    assert (len(core.outbox), outgoing.has_more) == (2, True)
    assert not outgoing.send_now()
    assert outgoing.send_now()
    assert (len(core.outbox), outgoing.has_more) == (0, False)


@pytest.mark.parametrize(("on_full", "waits"), [("block", True), ("raise", True), ("drop", False)])
def test_what_has_no_space_waits_or_is_shed(on_full, waits):
    core, outgoing = outgoing_of(Sender(), on_full=on_full, stall_timeout=60.0)
    core.outbox.append(b"1")
    assert outgoing.send_now() is not waits
    assert (bool(core.outbox), bool(outgoing._sender.shed)) == (waits, not waits)
    assert not outgoing.has_more


@pytest.mark.parametrize(("on_full", "waits"), [("block", True), ("raise", False)])
def test_a_call_that_may_wait_is_held_up_by_what_has_no_space(on_full, waits):
    core, outgoing = outgoing_of(Sender(), on_full=on_full)
    assert not outgoing.holds_up
    core.outbox.append(b"1")
    assert outgoing.holds_up is waits
    core.outbox.clear()
    core.unsynced.extend([("t", 0, b"")] * UNSYNCED_MAX)
    assert outgoing.holds_up
