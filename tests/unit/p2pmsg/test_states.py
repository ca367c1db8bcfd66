"""Whether the tables of states can be true: of sessions, their routes, workers and pullers."""

import pytest

from p2pmsg.queue.puller_core import PULLER_TRANSITIONS, PullerEvent, PullerState
from p2pmsg.queue.rules.worker import WORKER_TRANSITIONS, WorkerEvent, WorkerState
from p2pmsg.subscriber.states import (
    IS_OVER,
    ROUTE_TRANSITIONS,
    TRANSITIONS,
    WAS_JOINED,
    Event,
    RouteEvent,
    RouteState,
    State,
)


@pytest.mark.parametrize(
    ("first", "table"),
    [
        (State.MET, TRANSITIONS),
        (RouteState.ABSENT, ROUTE_TRANSITIONS),
        (WorkerState.OPEN, WORKER_TRANSITIONS),
        (PullerState.NEW, PULLER_TRANSITIONS),
    ],
)
def test_each_state_can_be_reached(first, table):
    found, new = set(), {first}
    while new:
        found |= new
        new = {after for state in new for after in table[state].values()} - found
    assert found == set(type(first)) == table.keys()


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


AWAY = {RouteState.ABSENT, RouteState.CLOSED}


@pytest.mark.parametrize("state", set(RouteState) - AWAY - {RouteState.ASKED})
def test_a_route_that_was_known_is_open_again_where_it_is_announced(state):
    after = ROUTE_TRANSITIONS[state].get(RouteEvent.ANNOUNCED, state)
    assert after is RouteState.OPEN


@pytest.mark.parametrize("state", RouteState)
def test_of_who_is_replaced_nothing_holds_for_the_next_one(state):
    after = ROUTE_TRANSITIONS[state].get(RouteEvent.REPLACED, state)
    assert after in AWAY
    assert ROUTE_TRANSITIONS[after][RouteEvent.ANNOUNCED] is RouteState.ASKED


@pytest.mark.parametrize("state", RouteState)
def test_a_route_is_complete_only_where_it_has_said_that_it_closes(state):
    if ROUTE_TRANSITIONS[state].get(RouteEvent.REPORTED) is RouteState.COMPLETE:
        assert state in (RouteState.CLOSING, RouteState.LAST_KNOWN)


@pytest.mark.parametrize("state", WorkerState)
def test_a_worker_that_joins_is_open_and_one_whose_connection_broke_is_cut(state):
    assert WORKER_TRANSITIONS[state][WorkerEvent.JOINED] is WorkerState.OPEN
    after = WORKER_TRANSITIONS[state].get(WorkerEvent.BROKE, state)
    assert after is WorkerState.CUT


def test_a_worker_is_asked_for_jobs_only_where_it_may_have_some_to_give():
    asked = [state for state in WorkerState if WorkerEvent.ASK in WORKER_TRANSITIONS[state]]
    assert asked == [WorkerState.OPEN]


@pytest.mark.parametrize("state", set(PullerState) - {PullerState.LEFT})
def test_a_puller_answers_each_challenge_until_it_has_left(state):
    table = PULLER_TRANSITIONS[state]
    assert table[PullerEvent.CHALLENGED] is PullerState.ANSWERED
    assert table[PullerEvent.LEAVES] is PullerState.LEFT
    assert not PULLER_TRANSITIONS[PullerState.LEFT]
