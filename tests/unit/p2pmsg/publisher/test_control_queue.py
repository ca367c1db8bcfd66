"""Control frames: bounded, apart from the messages, and never in their way."""

import pytest

from p2pmsg import wire
from p2pmsg.publisher import control_queue
from p2pmsg.publisher.control_queue import (
    HELD_NS,
    SUBSCRIBED_MAX,
    ControlQueue,
    send_some,
)
from recovery import StallGuard

MS = 1_000_000


class Sender:
    """Takes frames, except for those in `full`."""

    def __init__(self, full=()):
        self.full, self.sent, self.shed = set(full), [], []

    def send(self, frame):
        if frame in self.full:
            return False
        self.sent.append(frame)
        return True

    def send_shedding(self, frame):
        self.shed.append(frame)


def drive(queue, sender, guard=None, *, data_waits=False, now_ns=0):
    guard = guard or StallGuard(0.1)
    send_some(queue, sender, guard, data_waits=data_waits, now_ns=now_ns)


def test_where_nothing_has_space_it_is_shed_after_stall_ms():
    queue, guard = ControlQueue(), StallGuard(0.1)
    frames = [b"%d" % number for number in range(20)]
    sender = Sender(full=frames)
    for number, frame in enumerate(frames):
        queue.answer(number, [frame], now_ns=0)
    for now_ns in range(0, 100 * MS, 10 * MS):
        drive(queue, sender, guard, now_ns=now_ns)
    assert (sender.sent, sender.shed, len(queue)) == ([], [], 20)
    drive(queue, sender, guard, now_ns=101 * MS)
    assert sender.shed


@pytest.mark.parametrize("bound", ["ANSWERS_MAX", "ANSWERS_BYTES_MAX"])
def test_what_is_beyond_a_bound_is_dropped_and_counted(bound, monkeypatch):
    monkeypatch.setattr(control_queue, bound, 5)
    queue = ControlQueue()
    taken = [queue.answer(number, [b"x"], now_ns=0) for number in range(20)]
    assert (taken.count(True), len(queue), queue.dropped) == (5, 5, 15)
    assert not queue.has_space()
    drive(queue, Sender())
    assert queue.answer(3, [b"x" * 50], now_ns=0), "one that is larger is taken where none waits"


def wanted(probe, mark=b"\1"):
    return mark + wire.control_prefix(wire.Kind.ECHO, probe)


def on_zmq():
    queue = ControlQueue()
    queue.awaits_subscriptions = True
    return queue


def test_an_answer_waits_for_the_subscription_to_it():
    """Sent before, it reached nobody, and was asked for again after 10, 20, 40 ms."""
    queue, sender = on_zmq(), Sender()
    queue.answer(7, [b"seven 0", b"seven 1"], now_ns=0)
    queue.answer(8, [b"eight"], now_ns=0)
    drive(queue, sender)
    assert sender.sent == []
    assert (len(queue), queue.is_waiting(7)) == (3, True)
    queue.on_subscription(wanted(8), now_ns=1)
    drive(queue, sender, now_ns=1)
    assert sender.sent == [b"eight"]
    queue.on_subscription(wanted(7), now_ns=2)
    drive(queue, sender, now_ns=2)
    assert sender.sent == [b"eight", b"seven 0", b"seven 1"]
    assert len(queue) == 0


def test_an_answer_without_a_subscription_leaves_in_the_end():
    queue, sender = on_zmq(), Sender()
    queue.answer(7, [b"seven"], now_ns=0)
    drive(queue, sender, now_ns=HELD_NS - 1)
    assert sender.sent == []
    drive(queue, sender, now_ns=HELD_NS)
    assert sender.sent == [b"seven"]


def test_held_answers_count_for_the_bounds_and_so_do_subscriptions(monkeypatch):
    monkeypatch.setattr(control_queue, "ANSWERS_MAX", 3)
    queue = on_zmq()
    assert [queue.answer(number, [b"x"], now_ns=0) for number in range(4)] == [
        True, True, True, False
    ]  # fmt: skip
    assert queue.dropped == 1
    for number in range(SUBSCRIBED_MAX + 10):
        queue.on_subscription(wanted(10 + number), now_ns=0)
    assert queue.drain() == [b"x"] * 3
    assert len(queue) == 0
    sender = Sender()
    for probe in (19, 20):
        queue.answer(probe, [b"%d" % probe], now_ns=0)
    drive(queue, sender)
    assert sender.sent == [b"20"]  # the first ten were forgotten


@pytest.mark.parametrize(
    "note", [b"", b"\1", b"\7xyz", b"\1\0p2", b"\0", b"\1" + wanted(1)[1:9], b"\0" * 400]
)
def test_any_note_is_taken(note):
    queue = on_zmq()
    queue.on_subscription(note, now_ns=0)
    queue.on_subscription(b"\0" + note[1:], now_ns=0)
    queue.connections, sender = 1000, Sender()
    for probe in (1, 2):
        queue.answer(probe, [b"%d" % probe], now_ns=0)
    drive(queue, sender)
    assert sender.sent == []  # nobody is known to listen
    drive(queue, sender, now_ns=HELD_NS)
    assert sender.sent == [b"1", b"2"]


def test_few_frames_that_go_to_thousands_are_sent_before_the_lock_is_left():
    queue, sender = on_zmq(), Sender()
    queue.connections = 3000
    queue.notices.extend(b"notice %d" % number for number in range(10))
    drive(queue, sender)
    assert len(sender.sent) == 3
    for number in range(64):
        queue.on_subscription(wanted(number), now_ns=0)
        queue.answer(number, [b"answer %d" % number], now_ns=0)
    queue.notices.clear()
    drive(queue, sender)
    assert len(sender.sent) == 3 + 64  # these go to one each
