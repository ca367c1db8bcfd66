"""Decides which route to a session, its publisher or a relay, is asked for what is missing.

::

    a gap ──▶ the nearest route ──no answer for 200 ms──▶ the next nearest, and so on in turn
                │        ▲                            the one that answers is asked from then on
                │        └── the publisher's welcome: it is the first again
                └──refused──▶ those that have not refused it; lost when none is left
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.route import Route
from p2pmsg.subscriber.sessions import Session
from recovery import Loss, LossReason, RangeSet

_MS = 1_000_000
SWITCH_NS: Final = 200 * _MS
"""How long a NACK stays without an answer before another route is asked: longer than most round
trips and a scheduler's delay, short against the deadline of a gap."""

Ranges = list[tuple[int, int]]


class Plan(NamedTuple):
    """What to ask each route for, and what all of them have refused."""

    asked: list[tuple[Route, Ranges]]
    refused: Ranges


def assign(routes: list[Route], topic: str, ranges: Ranges) -> Plan:
    """Give each range to the first route that has not refused it."""
    asked: list[tuple[Route, Ranges]] = []
    left = ranges
    for route in routes:
        mine: Ranges = []
        refused: Ranges = []
        for start, stop in left:
            free = RangeSet(route.not_refused(topic, start, stop))
            mine += free
            refused += free.missing(start, stop)
        if mine:
            asked.append((route, mine))
        left = refused
    return Plan(asked, left)


class Routes:
    """Decides which route of a session is asked for what is missing."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = connections

    def plan(self, session: Session, topic: str, ranges: Ranges, now_ns: int) -> Plan:
        """Return what to ask for now; the routes count as asked."""
        plan = assign(self._in_turn(session, now_ns), topic, ranges)
        for route, _ in plan.asked:
            if route.asked_ns is None:
                route.asked_ns = now_ns
            if route is session.current and route.tried_ns is None:
                route.tried_ns = now_ns
        return plan

    def answered(self, session: Session, key: int, *, repaired: bool) -> Route | None:
        """Note an answer, and return the route that it came by; None: the session has none such."""
        found: Route | None = None
        for route in session.routes:
            if route.key == key:
                route.asked_ns = None
                found = found or route
        if found is not None and (repaired or found is session.current):
            if session.current is None or session.current.key != key:
                session.current = found
            session.current.tried_ns = None
        return found

    def put_off(self, session: Session, now_ns: int) -> None:
        """Ask another route next: the current one does not know yet."""
        if session.current is not None:
            session.current.tried_ns = now_ns - SWITCH_NS - 1

    def has_others(self, session: Session, route: Route) -> bool:
        """Whether a session has a route over a live connection besides this one."""
        return any(other.key != route.key for other in self._live(session))

    def refused(
        self, session: Session, topic: str, route: Route, ranges: Ranges, reason: LossReason
    ) -> None:
        """Remember what a route, by whatever connection, has refused."""
        for other in session.routes:
            if other.key == route.key:
                for start, stop in ranges:
                    other.on_refused(topic, start, stop, reason)

    def losses(self, session: Session, topic: str, ranges: Ranges) -> list[Loss]:
        """Return as losses what all routes have refused, with the reason of the nearest one."""
        routes = sorted(self._live(session), key=lambda route: route.hops)
        return [
            loss
            for start, stop in ranges
            for route in routes
            for loss in route.reasons(topic, start, stop)
        ]

    def is_publisher_heard(self, session: Session) -> bool:
        """Whether the publisher itself is there, or the session has ended and will not return."""
        return session.gone or any(
            one.session == session.session and one.is_heard for one in self._connections
        )

    def _in_turn(self, session: Session, now_ns: int) -> list[Route]:
        """Return the routes to ask, the best first."""
        routes = sorted(self._live(session), key=lambda route: route.hops)
        by_key = {route.key: route for route in reversed(routes)}
        order = [route for route in routes if by_key[route.key] is route]
        if not order:
            return []
        current = session.current
        if current not in order:
            current = order[0]
            current.tried_ns = None
        assert current is not None
        at = order.index(current)
        if current.tried_ns is not None and now_ns - current.tried_ns > SWITCH_NS:
            at = (at + 1) % len(order)
            order[at].tried_ns = None
        session.current = order[at]
        return [order[at], *order[:at], *order[at + 1 :]]

    def _live(self, session: Session) -> list[Route]:
        """Return the routes whose connections are not silent; all, where all are."""
        connections = self._connections
        live = []
        for route in session.routes:
            if route is session.own:
                at_it = [one for one in connections if one.session == session.session]
                is_live = not at_it or any(one.is_heard for one in at_it)
            else:
                is_live = connections[route.line].is_heard
            if is_live:
                live.append(route)
        return live or session.routes
