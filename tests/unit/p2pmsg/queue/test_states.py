"""Whether the tables of the states of a worker, and of a puller at a pusher, can be true."""

import pytest

from p2pmsg.queue.puller_core import PULLER_TRANSITIONS, PullerEvent, PullerState
from p2pmsg.queue.rules.worker import WORKER_TRANSITIONS, WorkerEvent, WorkerState


@pytest.mark.parametrize(
    ("first", "table"),
    [(WorkerState.OPEN, WORKER_TRANSITIONS), (PullerState.NEW, PULLER_TRANSITIONS)],
)
def test_each_state_can_be_reached(first, table):
    found, new = set(), {first}
    while new:
        found |= new
        new = {after for state in new for after in table[state].values()} - found
    assert found == set(type(first)) == table.keys()


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
