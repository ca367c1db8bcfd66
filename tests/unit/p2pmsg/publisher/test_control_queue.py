"""Control frames: bounded, apart from the messages, and never in their way."""

import pytest

from p2pmsg.publisher import control_queue
from p2pmsg.publisher.control_queue import ControlQueue, send_some
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


def test_few_frames_that_go_to_thousands_are_sent_before_the_lock_is_left():
    queue, sender = ControlQueue(), Sender()
    queue.connections = 3000
    queue.notices.extend(b"notice %d" % number for number in range(10))
    drive(queue, sender)
    assert len(sender.sent) == 3
    for number in range(64):
        queue.answer(number, [b"answer %d" % number], now_ns=0)
    queue.notices.clear()
    drive(queue, sender)
    assert len(sender.sent) == 3 + 64  # these go to one each
