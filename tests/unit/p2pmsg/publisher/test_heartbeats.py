"""Heartbeats of one session, without a core."""

import math
from itertools import pairwise

import pytest

from p2pmsg.publisher import control_queue
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.heartbeats import HeartbeatSender
from p2pmsg.publisher.served import ServedStream
from p2pmsg.wire import Frame
from recovery import HeartbeatSchedule
from tests.unit.p2pmsg.publisher.served import FakeServed, kinds, take_control

MS = 1_000_000
CLOSING = b""


def stream(served, topic):
    made = ServedStream(served, topic, topic.encode(), 5)
    made.heartbeat = HeartbeatSchedule(interval_min=0.01, interval_max=0.02)
    return made


class Sending:
    """A sender, and what it has sent."""

    def __init__(self, *topics, per_second_max=math.inf, **options):
        self.served = FakeServed(heads=dict.fromkeys(topics, (2, 5)), **options)
        self.queue = ControlQueue()
        self.sender = HeartbeatSender(self.queue, per_second_max)
        self.streams = [stream(self.served, topic) for topic in topics]
        for one in self.streams:
            self.sender.put_off(one, 0)

    def sent(self, now_ns):
        """Return what goes out; `CLOSING` stands for the closing that is to follow."""
        is_said = self.sender.handle_timer(self.streams, now_ns=now_ns)
        return [*take_control(self.queue), *([CLOSING] if is_said else [])]


def times_of(sending, until_ns):
    """Return when heartbeats went out until then, and of which topic each was."""
    times = []
    while (now_ns := sending.sender.next_deadline_ns()) < until_ns:
        times += [(now_ns, Frame(data).topic) for data in sending.sent(now_ns)]
    return times


def test_idle_streams_have_so_many_heartbeats_a_second_together_and_no_more():
    second = 1000 * MS
    topics = [f"t{number}" for number in range(100)]
    sending = Sending(*topics, per_second_max=10.0)
    times = times_of(sending, 120 * second)

    assert sending.sender.idle == 100
    late = [now_ns for now_ns, _ in times if now_ns >= 30 * second]
    assert 0.9 * 900 <= len(late) <= 1.1 * 900
    busiest = max(sum(at <= each < at + second for each in late) for at in late)
    assert busiest <= 20  # they do not all come at once
    # Or a subscriber of all would take the silence in between for a reason to ask.
    silences = [after - before for (before, _), (after, _) in pairwise(times)]
    assert max(silences) <= second
    for topic in topics:
        waits = [b - a for (a, _), (b, _) in pairwise([t for t in times if t[1] == topic])]
        assert all(later <= 2 * before + 10 * MS for before, later in pairwise(waits))
        assert max(waits) <= 13.5 * second


@pytest.mark.parametrize("rounds", [1, 3])
def test_while_a_session_is_closed_all_heads_and_a_closing_go_every_50_ms(rounds):
    sending = Sending("a", "b")
    sending.sender.begin_close(now_ns=MS)
    for number in range(rounds):
        now_ns = MS + number * 50 * MS
        *heartbeats, closing = sending.sent(now_ns)
        assert kinds(heartbeats) == [("HEARTBEAT", "a", 5), ("HEARTBEAT", "b", 5)]
        assert closing is CLOSING
        assert sending.sender.next_deadline_ns() <= now_ns + 50 * MS


def test_heads_of_many_streams_go_in_parts_and_then_there_is_a_pause(monkeypatch):
    """All were added each 50 ms, at any length: the queue never emptied, nor did `close` end."""
    monkeypatch.setattr(control_queue, "NOTICES_MAX", 2)
    sending = Sending(*"abcde")
    sending.sender.begin_close(now_ns=0)
    parts = []
    for now_ms in (0, 40, 80):
        assert sending.sender.next_deadline_ns() <= now_ms * MS
        sent = sending.sent(now_ms * MS)
        assert (CLOSING in sent) == (now_ms == 80)
        parts.append("".join(topic for _, topic, _ in kinds(one for one in sent if one)))
    assert parts == ["ab", "cd", "e"]
    assert sending.sender.next_deadline_ns() == 160 * MS  # as long as they took
    assert sending.sent(159 * MS) == []
    assert len(sending.sent(160 * MS)) == 2
