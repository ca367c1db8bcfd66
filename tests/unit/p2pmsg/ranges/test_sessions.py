"""Which of a group's publishers a range reader asks."""

from p2pmsg.ranges.sessions import GONE_NS, MEMBERS_MAX, GroupMembers, Presence
from transports import parse_endpoint

S = 1_000_000_000
AT = parse_endpoint("tcp://127.0.0.1:5")


def members_of(*heard, name=""):
    """Make them of (session, name, began in s, heard in s), as one who listens since 0 s."""
    members = GroupMembers(name)
    members.begin(now_ns=0)
    for session, who, began_s, heard_s in heard:
        presence = Presence(session, who, AT)
        members.note(presence, (heard_s - began_s) * 1000, now_ns=int(heard_s * S))
    return members


def current(members, wanted, at_s):
    found = members.current(wanted, now_ns=int(at_s * S))
    return None if found is None else found.session


def test_the_session_that_is_wanted_is_found_among_others():
    members = members_of((1, "a", 0, 1), (2, "b", 0, 1.1), (3, "c", 0, 1.2))
    assert [current(members, wanted, 1.3) for wanted in (1, 2, 3, 1)] == [1, 2, 3, 1]


def test_one_that_was_not_heard_yet_is_waited_for():
    members = members_of((1, "a", 0, 0.1))
    assert current(members, 2, 0.2) is None
    assert current(members, 2, GONE_NS / S) is None


def test_another_is_there_instead_of_one_that_is_never_heard():
    members = members_of((1, "a", 0, 3))
    assert current(members, 2, 3) == 1


def test_another_name_is_not_there_instead():
    assert current(members_of((1, "a", 0, 3), name="b"), 2, 3) is None


def test_without_a_wish_it_keeps_to_the_one_it_met():
    members = members_of((1, "a", 0, 1))
    assert current(members, None, 1) == 1
    members.note(Presence(2, "b", AT), 1, now_ns=2 * S)
    assert current(members, None, 2) == 1
    assert current(members, None, 20) == 1  # silent, but b does not stand in its place


def test_a_later_session_of_its_name_follows_one_that_is_silent():
    members = members_of((1, "a", 0, 1), (2, "a", 2, 3))
    assert current(members, 1, 2.9) == 1
    assert current(members, 1, 3.5) == 2


def test_a_former_session_of_its_name_does_not():
    assert current(members_of((1, "a", 2, 3), (2, "a", 1, 5)), 1, 5.5) == 1


def test_those_heard_of_longest_ago_are_forgotten():
    members = members_of(*((n, "a", 0, 1) for n in range(MEMBERS_MAX + 10)))
    assert [one.session for one in members] == list(range(10, MEMBERS_MAX + 10))
