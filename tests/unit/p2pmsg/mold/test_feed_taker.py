"""What a feed makes of packets, given to something that is no subscriber's core."""

from collections import Counter

import pytest

from p2pmsg.mold import codec
from p2pmsg.mold.feed import SUCCESSOR_NS, Arrival, MoldFeed
from p2pmsg.mold.sessions import MoldSessions
from p2pmsg.wire import Frame, Kind

FIRST, SECOND = b"S1".ljust(10), b"S2".ljust(10)


class Taker:
    """Notes what it is given."""

    def __init__(self):
        self.frames, self.announced, self.ended = [], [], []
        self.rejected = Counter()
        self.heard_ns = 0
        self.current = None

    def receive_frame(self, line, data, *, now_ns, shed=False):
        frame = Frame(data)
        self.frames.append((Kind(frame.kind).name, frame.sequence, frame.count))
        self.heard_ns = now_ns

    def reject(self, reason, *, frames=0):
        self.rejected[reason] += 1

    def note_heard(self, line, now_ns):
        self.heard_ns = now_ns

    def current_feed(self, line):
        return None if self.current is None else (self.current, self.heard_ns)

    def misses(self, session, topic, start, count):
        return False

    def announce(self, line, feed, now_ns):
        self.announced.append((feed.name, feed.following))
        former, self.current = self.current, feed.session
        return 0, former

    def end_feed(self, session, topic, stop):
        self.ended.append(stop)
        return True

    def revoke_end(self, session, topic):
        self.ended.clear()


@pytest.fixture
def taker():
    return Taker()


@pytest.fixture
def feed(taker):
    return MoldFeed(taker, 0, "mold", MoldSessions(can_ask=False))


def hear(feed, data, now_ns=1):
    feed.receive(data, Arrival(now_ns, 1, False))


def test_the_first_packet_announces_its_session_and_becomes_a_frame(feed, taker):
    hear(feed, codec.packet(FIRST, 5, [b"a", b"b"]))
    assert taker.announced == [("S1", 5)]
    assert taker.frames == [("DATA", 5, 2)]


def test_a_heartbeat_becomes_one(feed, taker):
    hear(feed, codec.heartbeat(FIRST, 5))
    assert taker.frames == [("HEARTBEAT", 5, 0)]


def test_what_is_malformed_is_rejected(feed, taker):
    hear(feed, b"no packet")
    assert sum(taker.rejected.values()) == 1
    assert taker.frames == []


def test_a_session_ends_when_it_says_so_and_goes_on_when_it_was_wrong(feed, taker):
    hear(feed, codec.packet(FIRST, 1, [b"a"]))
    hear(feed, codec.end_of_session(FIRST, 2))
    assert taker.ended == [2]
    hear(feed, codec.packet(FIRST, 2, [b"b"]))
    assert taker.ended == []


def test_another_session_is_believed_only_when_the_former_is_silent(feed, taker):
    hear(feed, codec.packet(FIRST, 1, [b"a"]))
    hear(feed, codec.packet(SECOND, 1, [b"x"]), 2)
    assert taker.rejected["session"] == 1
    assert len(taker.announced) == 1

    hear(feed, codec.packet(SECOND, 1, [b"x"]), 2 + SUCCESSOR_NS)
    assert [name for name, _ in taker.announced] == ["S1", "S2"]
    assert taker.ended == [None]
