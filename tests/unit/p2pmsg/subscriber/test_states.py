"""Whether the table of a session's states can be true."""

import pytest

from p2pmsg.subscriber.states import IS_OVER, TRANSITIONS, WAS_JOINED, Event, State


def test_each_state_can_be_reached():
    found, new = set(), {State.MET}
    while new:
        found |= new
        new = {after for state in new for after in TRANSITIONS[state].values()} - found
    assert found == set(State)


@pytest.mark.parametrize("state", WAS_JOINED)
def test_one_that_was_joined_stays_so(state):
    assert set(TRANSITIONS[state].values()) <= WAS_JOINED


@pytest.mark.parametrize("state", set(State) - IS_OVER)
def test_all_end_when_they_are_replaced(state):
    assert TRANSITIONS[state][Event.REPLACED] in IS_OVER


@pytest.mark.parametrize("state", IS_OVER)
def test_one_that_is_over_comes_back_by_an_announcement_only(state):
    assert TRANSITIONS[state].keys() == {Event.ANNOUNCED, Event.RELAYED}


@pytest.mark.parametrize("state", [State.UNCONFIRMED, State.ENDED])
def test_what_may_have_gone_back_is_not_believed_before_its_own_echo(state):
    ways = {State.JOINED: {Event.ECHOED, Event.RELAYED, Event.UNREACHED}}
    for event, after in TRANSITIONS[state].items():
        assert event in ways.get(after, set(Event))
