"""Which route is asked for what is missing, without a subscriber's core."""

import pytest

from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.routes import SWITCH_NS, Routes, assign
from p2pmsg.subscriber.sessions import Route
from recovery import Loss, LossReason
from tests.unit.p2pmsg import subscriber_talk

SESSION = 7


@pytest.fixture
def connections():
    """The publisher's own, and those to two relays."""
    return [Connection(session=SESSION), Connection(relay=100), Connection(relay=200)]


@pytest.fixture
def session():
    made = subscriber_talk.session(SESSION)
    made.direct = True
    made.relayed = [Route(100, 1, 1, now_ns=0), Route(200, 2, 2, now_ns=0)]
    return made


def keys(plan):
    return [(route.key, ranges) for route, ranges in plan.asked]


def test_the_nearest_route_is_asked(connections, session):
    plan = Routes(connections).plan(session, "t", [(0, 5)], 0)

    assert keys(plan) == [(SESSION, [(0, 5)])]
    assert plan.refused == []


def test_the_next_nearest_is_asked_when_there_was_no_answer(connections, session):
    routes = Routes(connections)
    routes.plan(session, "t", [(0, 5)], 0)

    assert keys(routes.plan(session, "t", [(0, 5)], SWITCH_NS)) == [(SESSION, [(0, 5)])]
    assert keys(routes.plan(session, "t", [(0, 5)], SWITCH_NS + 1)) == [(100, [(0, 5)])]


def test_the_route_that_answers_is_asked_from_then_on(connections, session):
    routes = Routes(connections)
    routes.plan(session, "t", [(0, 5)], 0)

    assert routes.answered(session, 200, repaired=True) is session.relayed[1]
    assert keys(routes.plan(session, "t", [(0, 5)], 1)) == [(200, [(0, 5)])]


def test_an_answer_from_elsewhere_is_of_no_route(connections, session):
    assert Routes(connections).answered(session, 300, repaired=True) is None


def test_a_silent_connection_is_not_asked(connections, session):
    connections[0].lost_ns = connections[0].heard_ns = 5

    assert keys(Routes(connections).plan(session, "t", [(0, 5)], 10)) == [(100, [(0, 5)])]


def test_what_one_route_refused_is_asked_of_the_next(connections, session):
    routes = Routes(connections)
    routes.refused(session, "t", session.own, [(0, 3)], LossReason.EVICTED)

    plan = routes.plan(session, "t", [(0, 5)], 0)
    assert keys(plan) == [(SESSION, [(3, 5)]), (100, [(0, 3)])]


def test_what_all_refused_is_lost_for_the_reason_of_the_nearest(connections, session):
    routes = Routes(connections)
    routes.refused(session, "t", session.own, [(0, 3)], LossReason.EVICTED)
    for route in session.relayed:
        routes.refused(session, "t", route, [(0, 5)], LossReason.CRASH)

    plan = routes.plan(session, "t", [(0, 3)], 0)
    assert (plan.asked, plan.refused) == ([], [(0, 3)])
    assert routes.losses(session, "t", plan.refused)[0] == Loss(0, 3, LossReason.EVICTED)


def test_without_any_route_nothing_is_asked(session):
    assert assign([], "t", [(0, 5)]) == ([], [(0, 5)])
