"""Which request server is asked for what: those that answer, and copies for those that do not."""

from collections import deque

import pytest

from p2pmsg import control, wire
from p2pmsg.mold import codec, requests
from p2pmsg.mold.requests import MoldRequests
from p2pmsg.mold.sessions import session_id
from p2pmsg.wire import Frame, FrameError, Kind
from tests.unit.p2pmsg.mold.feeds import MS, NAME, Feeds

SESSION = session_id(NAME)


class Servers:
    """Request servers, some of which are dead."""

    def __init__(self, count, *, per_answer=1000):
        self.feeds = Feeds()
        self.feeds.messages(1, 2)
        self.requests = MoldRequests(self.feeds.feeds[0], SESSION, count)
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


def test_at_first_all_are_asked_and_then_those_that_answer_in_turn():
    servers = Servers(3)
    assert servers.ask((10, 11)) == [0, 1, 2]
    turns = [servers.ask((number, number + 1)) for number in range(20, 26)]
    assert sorted(map(tuple, turns)) == [(0,), (0,), (1,), (1,), (2,), (2,)]


def test_one_dead_from_the_beginning_delays_nothing():
    """Each gap is asked for once: no repair waits for a retry."""
    servers = Servers(2)
    servers.dead = {0}
    for number in range(1000):
        servers.ask((number + 10, number + 11))
        servers.now_ns += 10 * MS
    assert servers.got == [(number + 10, 1) for number in range(1000)]
    assert servers.requests.rotation == [1]


def test_one_that_dies_is_out_of_rotation_after_some_requests_without_an_answer():
    servers = Servers(2)
    servers.ask((1, 2))
    servers.dead = {0}
    delayed = 0
    for number in range(1000):
        delayed += servers.ask((number + 10, number + 11)) == [0]
        servers.now_ns += 10 * MS
    assert delayed <= requests.ANSWER_NS // (20 * MS) + requests.FAILURES_MAX
    assert list(servers.requests.silenced) == [0]
    assert servers.requests.rotation == [1]


def test_a_range_that_was_not_answered_is_asked_of_another_one():
    servers = Servers(3)
    servers.ask((1, 2))
    ((first, _, _),) = servers.nack((50, 51))
    servers.now_ns += requests.WAIT_MIN_NS
    ((second, _, _),) = servers.nack((50, 51))
    assert first != second


def test_one_out_of_rotation_gets_copies_ever_more_rarely_and_comes_back_when_it_answers():
    servers = Servers(2)
    servers.ask((1, 2))
    servers.dead = {0}
    for number in range(100):
        servers.ask((number + 10, number + 11))
        servers.now_ns += 10 * MS
    copies = []
    for number in range(10_000):
        if len(servers.ask((number + 1000, number + 1001))) == 2:
            copies.append(servers.now_ns // 10**9)
        servers.now_ns += 10 * MS
    assert 5 <= len(copies) <= 9, copies
    servers.dead = set()
    servers.now_ns += requests.PROBE_MAX_NS
    servers.ask((20_000, 20_001))
    assert servers.requests.rotation == [0, 1]
    assert list(servers.requests.returned) == [0]


def test_lost_requests_do_not_put_a_server_out_of_rotation():
    servers = Servers(2)
    servers.ask((1, 2))
    for number in range(200):
        servers.dead = {0, 1} if number % 3 else set()  # two of three are lost
        servers.ask((number + 10, number + 11))
        servers.now_ns += 20 * MS
    assert servers.requests.rotation == [0, 1]
    assert not servers.requests.silenced


def test_where_none_answers_all_are_asked():
    servers = Servers(2)
    servers.dead = {0, 1}
    for number in range(100):
        assert servers.ask((number + 10, number + 11)) == [0, 1]
        servers.now_ns += 10 * MS
    assert sorted(servers.requests.silenced) == [0, 1]  # said once each


def test_one_without_an_address_is_not_asked_until_it_has_one():
    servers = Servers(2)
    servers.reachable = []
    assert servers.ask((5, 6)) == []
    servers.reachable = [1]
    assert servers.ask((5, 6)) == [1]
    servers.reachable = [0, 1]
    assert servers.ask((6, 7)) == [1, 0]  # the new one gets a copy
    assert servers.requests.rotation == [0, 1]


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


def test_after_large_messages_small_ones_are_asked_for_by_the_packet_again():
    servers = Servers(1)
    servers.filler = lambda number: bytes(1300 if number <= 200 else 15)
    assert fetch(servers, 2, 201)[0] == 199
    per_packet = (1400 - codec.HEADER_BYTES) // (2 + 19)
    assert fetch(servers, 1000, 9000)[0] < 2 * 8000 / per_packet
    assert sum(count for _, count in servers.got) == 199 + 8000


@pytest.mark.parametrize(("size", "most"), [(0, codec.MESSAGES_MAX), (1300, 1), (60_000, 1)])
def test_what_is_asked_for_fits_into_a_packet(size, most):
    servers = Servers(1)
    servers.filler = lambda number: bytes(size)
    _, last = fetch(servers, 2, 3000)
    assert 1 <= last <= most
    servers.nack((10_000, 1_000_000))
    assert len(servers.requests.outgoing) < 5000


@pytest.mark.parametrize("round_trip_ms", [1, 40, 90, 200])
def test_a_request_is_not_repeated_before_its_answer_can_have_come(round_trip_ms):
    servers = Servers(1)
    repeated = []
    for number in range(100):
        asked = servers.nack((number + 10, number + 11))
        again = []
        for _ in range(round_trip_ms):
            servers.now_ns += MS
            again += servers.nack((number + 10, number + 11))
        repeated.append(len(again))
        servers.answer(*asked[0])
    assert sum(repeated[20:]) == 0


def test_a_lost_request_is_repeated_after_two_round_trips():
    servers = Servers(2)
    for number in range(20):
        asked = servers.nack((number + 10, number + 11))
        servers.now_ns += 20 * MS
        for one in asked:
            servers.answer(*one)
    assert servers.nack((50, 51))
    servers.now_ns += 39 * MS
    assert servers.nack((50, 51)) == []
    servers.now_ns += MS
    assert servers.nack((50, 51))


def test_what_is_in_flight_is_bounded():
    servers = Servers(2)
    servers.ask((1, 2))
    assert len(servers.nack((10, 10**6))) == requests.REQUESTS_PER_NACK


def test_nothing_is_asked_or_taken_while_it_is_unconfirmed_which_session_it_is():
    servers = Servers(1)
    servers.feeds.messages(1, 101)
    servers.feeds.messages(1, 2)
    assert servers.nack((10, 20)) == []
    data = codec.packet(NAME, 10, [b"of the new session"])
    assert servers.requests.receive(data, 0, now_ns=0, wall_ns=1) is None


def test_another_sessions_answer_is_refused():
    servers = Servers(1)
    with pytest.raises(FrameError, match="session"):
        servers.requests.receive(codec.packet(b"OTHER     ", 1, [b"x"]), 0, now_ns=0, wall_ns=1)
