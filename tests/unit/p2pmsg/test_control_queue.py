"""Control frames: bounded, apart from the messages, and never in their way."""

import pytest

from p2pmsg import control_queue
from p2pmsg.control_queue import ANSWER_AGE_NS, ControlQueue, send_some
from recovery import StallConfig, StallGuard

MS = 1_000_000


class Sender:
    """Takes frames, but for those in `full`."""

    def __init__(self, full=()):
        self.full, self.sent, self.shed = set(full), [], []

    def send(self, frame, *, wait_ms=0):
        assert wait_ms == 0
        if frame in self.full:
            return False
        self.sent.append(frame)
        return True

    def send_shedding(self, frame):
        self.shed.append(frame)


def drive(queue, sender, guard=None, *, data_waits=False, now_ns=0):
    guard = guard or StallGuard(StallConfig(stall_ms=100))
    send_some(queue, sender, guard, data_waits=data_waits, now_ns=now_ns)


def test_answers_and_notices_take_turns():
    queue, sender = ControlQueue(), Sender()
    for number in range(3):
        assert queue.answer(number, [b"answer %d" % number], now_ns=0)
        queue.notices.append(b"notice %d" % number)
    drive(queue, sender)
    assert sender.sent == [
        b"notice 0", b"answer 0", b"notice 1", b"answer 1", b"notice 2", b"answer 2"
    ]  # fmt: skip
    assert (len(queue), queue.sent, queue.dropped) == (0, 6, 0)


def test_notices_do_not_overtake_messages_and_answers_do():
    queue, sender = ControlQueue(), Sender()
    queue.notices.append(b"heartbeat")
    queue.answer(7, [b"echo"], now_ns=0)
    drive(queue, sender, data_waits=True)
    assert sender.sent == [b"echo"]
    drive(queue, sender)
    assert sender.sent == [b"echo", b"heartbeat"]


def test_pages_of_an_answer_stay_together():
    queue, sender = ControlQueue(), Sender(full=[b"a0"])
    queue.answer(1, [b"a0", b"a1"], now_ns=0)
    queue.answer(2, [b"b0", b"b1"], now_ns=0)
    drive(queue, sender)
    assert sender.sent == [b"b0", b"b1"]
    sender.full.clear()
    drive(queue, sender)
    assert sender.sent == [b"b0", b"b1", b"a0", b"a1"]


def test_one_without_room_does_not_hold_up_the_others():
    queue, sender = ControlQueue(), Sender(full=[b"0"])
    for number in range(10):
        queue.answer(number, [b"%d" % number], now_ns=0)
    drive(queue, sender)
    assert sender.sent == [b"%d" % number for number in range(1, 10)]
    assert queue.is_waiting(0)
    drive(queue, sender, now_ns=ANSWER_AGE_NS + 1)
    assert (len(queue), queue.dropped) == (0, 1)


def test_where_nothing_has_room_it_is_shed_after_stall_ms():
    queue, guard = ControlQueue(), StallGuard(StallConfig(stall_ms=100))
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
    assert not queue.has_room()
    drive(queue, Sender())
    assert queue.answer(3, [b"x" * 50], now_ns=0), "one that is larger is taken where none waits"


def test_it_can_be_drained():
    queue = ControlQueue()
    queue.answer(1, [b"a", b"b"], now_ns=0)
    queue.notices.append(b"n")
    assert queue.drain() == [b"a", b"b", b"n"]
    assert (len(queue), queue.is_waiting(1), queue.has_room()) == (0, False, True)
