"""Who is at a place: of a group's publishers the one that is asked, of a relay what it lists."""

import pytest

from p2pmsg import control, wire
from p2pmsg.ranges.place import GONE_NS, PUBLISHERS_MAX, Place
from p2pmsg.wire import Frame, Kind
from transports import parse_endpoint

S = 1_000_000_000
GROUP, AT = parse_endpoint("udp://239.1.2.3:5"), parse_endpoint("tcp://127.0.0.1:5")
RELAY = 77


def hear(place, session, name, at_s, flags=0):
    body = control.Welcome(name, "tcp://127.0.0.1:6", -1.0)
    frame = Frame(wire.control_frame(Kind.WELCOME, session, body, flags=flags))
    place.take_welcome(frame, "127.0.0.1", int(at_s * S))


def group_of(*heard, name=""):
    """A place where these were heard: (session, name, when in s)."""
    place = Place(GROUP, name)
    place.listen(0)
    for each in heard:
        hear(place, *each)
    return place


def current(place, wanted, at_s):
    found = place.publisher(wanted, int(at_s * S))
    return None if found is None else found.session


def test_of_a_group_the_session_that_is_wanted_is_found_among_others():
    place = group_of((1, "a", 1), (2, "b", 1.1), (3, "c", 1.2))
    assert [current(place, wanted, 1.3) for wanted in (1, 2, 3, 1)] == [1, 2, 3, 1]
    assert current(place, 4, 1.3) is None


def test_without_a_wish_it_keeps_to_the_one_it_met_and_to_its_successors():
    place = group_of((1, "a", 1))
    assert current(place, None, 1) == 1
    hear(place, 2, "b", 4)
    assert current(place, None, 4) == 1  # silent, but b does not stand in its place
    hear(place, 3, "a", 4)
    assert current(place, None, 4) == 3
    assert current(group_of((1, "a", 1), (2, "b", 1), name="b"), None, 1) == 2
    assert current(group_of((1, "a", 1), name="b"), None, 1) is None


def test_of_a_group_one_is_gone_that_is_silent_while_others_are_heard():
    place = group_of((1, "a", 1), (2, "b", 1))
    assert not place.is_gone(1, 0, S + GONE_NS + 1)  # neither is heard any more
    hear(place, 2, "b", 3)
    assert place.is_gone(1, 0, 3 * S + 1)
    assert not place.is_gone(1, 2 * S, 3 * S + 1)
    assert not place.is_gone(2, 0, 9 * S)


def test_those_of_a_group_heard_of_longest_ago_are_forgotten():
    place = group_of(*((n, "a", 1) for n in range(PUBLISHERS_MAX + 10)))
    assert list(place.publishers) == list(range(10, PUBLISHERS_MAX + 10))


@pytest.mark.parametrize("settled", [False, True])
def test_a_session_has_ended_where_a_relay_that_knows_all_lists_others(settled):
    place = Place(AT)
    hear(place, RELAY, "relay", 0, flags=wire.FLAG_RELAY)
    assert not place.is_gone(1, 0, 0)

    def list_at(now_ns):
        place.tick(now_ns)
        body = control.Sessions([RELAY], [control.SessionEntry(2, "b", 1)], settled=settled)
        frame = Frame(wire.control_frame(Kind.SESSIONS, RELAY, body))
        place.take_sessions(frame, now_ns)

    list_at(S)
    assert place.is_gone(1, 0, S) is settled
    assert not place.is_gone(2, 0, S)
    assert not place.is_gone(1, S, S)  # it may have begun since
    list_at(3 * S)
    assert place.is_gone(1, S, 3 * S) is settled
