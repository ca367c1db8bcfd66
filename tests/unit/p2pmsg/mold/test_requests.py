"""Which request server is asked for what: those that answer, and copies for those that do not."""

from collections import deque

import pytest

from p2pmsg import control, wire
from p2pmsg.mold import codec, requests
from p2pmsg.mold.requests import MoldRequests
from p2pmsg.mold.sessions import session_id
from p2pmsg.wire import Frame, FrameError, Kind
from tests.unit.p2pmsg.mold.feeds import NAME, Feeds

SESSION = session_id(NAME)


class Servers:
    """Request servers, some of which are dead."""

    def __init__(self, count, *, per_answer=1000):
        self.feeds = Feeds()
        self.feeds.messages(1, 2)
        self.requests = MoldRequests(self.feeds.feeds[0], SESSION)
        self.reachable = list(range(count))
        self.dead = set()
        self.per_answer = per_answer
        self.filler = lambda number: b""
        self.now_ns = 0
        self.got = []

    def nack(self, *ranges):
        """Send a NACK; returns who was asked for what, as (server, start, stop)."""
        body = control.Nack("mold", list(ranges))
        frame = wire.control_frame(Kind.NACK, SESSION, body)
        self.requests.send(frame, self.reachable, now_ns=self.now_ns)
        return self.sent()

    def sent(self):
        found = []
        while self.requests.outgoing:
            server, packet = self.requests.outgoing.popleft()
            _, start, count = codec.read_request(packet)
            found.append((server, start, start + count))
        return found

    def answer(self, server, start, stop):
        """Let a server answer, unless it is dead."""
        if server in self.dead:
            return
        values = self.fitting(start, min(stop, start + self.per_answer))
        data = codec.packet(NAME, start, values)
        frame = self.requests.receive(data, server, now_ns=self.now_ns, wall_ns=1)
        self.got.append((Frame(frame).sequence, len(values)))

    def fitting(self, start, stop):
        """Return what fits into a packet, and one message at least."""
        values, size = [], codec.HEADER_BYTES
        for number in range(start, stop):
            value = b"%d" % number + self.filler(number)
            size += 2 + len(value)
            if values and size > 1400:
                break
            values.append(value)
        return values

    def ask(self, *ranges):
        """NACK, and let all answer; returns the servers that were asked."""
        asked = self.nack(*ranges)
        for one in asked:
            self.answer(*one)
        return [server for server, _, _ in asked]


def test_one_is_asked_as_long_as_it_answers_and_then_the_next_one():
    servers = Servers(3)
    servers.reachable = [0, 2]  # the address of another one is not known
    assert servers.nack((50, 51)) == [(0, 50, 51)]
    assert servers.nack((50, 51)) == []  # its answer is on its way
    servers.now_ns += requests.WAIT_NS
    assert servers.ask((50, 51)) == [0]
    servers.dead = {0}
    asked = []
    for _ in range(requests.FAILURES_MAX + 2):
        asked += servers.ask((60, 61))
        servers.now_ns += requests.WAIT_NS
    assert asked == [0] * requests.FAILURES_MAX + [2, 2]
    assert list(servers.requests.silenced) == [0]
    assert len(servers.nack((100, 10**6))) == requests.REQUESTS_PER_NACK
    servers.dead = {0, 2}
    for _ in range(10):
        servers.now_ns += requests.WAIT_NS
        assert servers.nack((5000, 5001))  # all are silent, and asked all the same


def test_what_an_answer_had_no_space_for_is_asked_for_of_the_same_server():
    servers = Servers(1, per_answer=4)
    servers.ask((10, 20))
    while asked := servers.sent():
        assert len(asked) == 1
        servers.answer(*asked[0])
    assert servers.got == [(10, 4), (14, 4), (18, 2)]


def fetch(servers, start, stop):
    """Let a server bring messages; return how many requests that took, and the last one's count."""
    count = 0
    while start < stop:
        asked = deque(servers.nack((start, stop)))
        while asked:
            one = asked.popleft()
            servers.answer(*one)
            count += 1
            asked += servers.sent()
        start = max(sequence + number for sequence, number in servers.got)
    return count, one[2] - one[1]


@pytest.mark.parametrize(("size", "most"), [(0, codec.MESSAGES_MAX), (1300, 1), (60_000, 1)])
def test_what_is_asked_for_fits_into_a_packet(size, most):
    servers = Servers(1)
    servers.filler = lambda number: bytes(size)
    _, last = fetch(servers, 2, 3000)
    assert 1 <= last <= most
    servers.nack((10_000, 1_000_000))
    assert len(servers.requests.outgoing) < 5000


def test_nothing_is_asked_or_taken_while_it_is_unconfirmed_which_session_it_is():
    servers = Servers(1)
    servers.feeds.messages(2, 101)
    servers.feeds.pass_ms(100)
    servers.feeds.messages(1, 2)
    assert servers.nack((10, 20)) == []
    data = codec.packet(NAME, 10, [b"of the new session"])
    assert servers.requests.receive(data, 0, now_ns=0, wall_ns=1) is None


def test_another_sessions_answer_is_refused():
    servers = Servers(1)
    with pytest.raises(FrameError, match="session"):
        servers.requests.receive(codec.packet(b"OTHER     ", 1, [b"x"]), 0, now_ns=0, wall_ns=1)
