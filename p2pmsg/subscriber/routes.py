"""Decides which route to a session, its publisher or a relay, is asked for what is missing.

::

    a gap ──▶ the nearest route ──no answer for 200 ms──▶ the next nearest, while that is so
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
PUT_OFF_NS: Final = 1000 * _MS
"""How long others are asked before a relay that does not know yet what it will have."""

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
        return plan

    def answered(self, session: Session, key: int) -> Route | None:
        """Note an answer, and return the route that it came by; None: the session has none such."""
        found: Route | None = None
        for route in session.routes:
            if route.key == key:
                route.asked_ns = None
                found = found or route
        return found

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
        """Return the routes to ask, the best first; one for each recovery channel."""
        live = self._live(session)
        late = {route.key for route in live if _is_late(route, now_ns)}
        order: dict[int, Route] = {}
        for route in sorted(live, key=lambda route: (route.key in late, route.hops)):
            order.setdefault(route.key, route)
        return list(order.values())

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


def _is_late(route: Route, now_ns: int) -> bool:
    """Whether others are asked first: no answer comes, or it does not know yet."""
    since_ns = now_ns if route.asked_ns is None else route.asked_ns
    return now_ns - since_ns > SWITCH_NS or now_ns < route.put_off_until_ns
