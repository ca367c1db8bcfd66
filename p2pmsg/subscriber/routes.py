"""The ways to a session: its publisher, and the relays that serve it. Who is asked for what.

::

    a gap ──▶ the nearest route ──no answer for 200 ms──▶ the next nearest, and so on in turn
                │        ▲                                   whoever answers is asked from then on
                │        └── the publisher's welcome: it is the first again
                └──refused──▶ those that have not refused it; lost when none is left
"""

from typing import TYPE_CHECKING, Final

from p2pmsg import control, wire
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Loss, LossReason, RangeSet

if TYPE_CHECKING:
    from p2pmsg.subscriber.core import SubscriberCore
    from p2pmsg.subscriber.sessions import Peer, Stream

_MS = 1_000_000
SWITCH_NS: Final = 200 * _MS
"""How long a NACK is without any answer until another route is asked: longer than most round trips
and a scheduler's delay, short against the deadline of a gap."""
REFUSED_MAX: Final = 1024
"""Refused ranges that are remembered for each stream and route. Beyond it all are forgotten, and
asked for once more."""

Refusals = dict[str, dict[LossReason, RangeSet]]


class Route:
    """One way to a session.

    Attributes:
        key: what the shell calls the recovery channel: the session at its publisher, or a relay.
        line: over which its frames come; -1 where it is the publisher itself.
        hops: how many relays are in between.
        asked_ns: since when a NACK is without an answer, or None.
        refused: what cannot be had here, by topic and reason.
        probe: the id that an echo over this line is awaited for, or None.
        probe_tries: how often the probe was repeated.
        joined: an echo came.
        closing: the relay says that it is closing.
        announced_ns: when the relay last said that it has the session.

    """

    __slots__ = (
        "announced_ns",
        "asked_ns",
        "closing",
        "hops",
        "joined",
        "keep_alive_ns",
        "key",
        "line",
        "probe",
        "probe_due_ns",
        "probe_tries",
        "refused",
        "told_complete",
    )

    def __init__(self, key: int, line: int, hops: int, *, now_ns: int) -> None:
        self.key = key
        self.line = line
        self.hops = hops
        self.asked_ns: int | None = None
        self.refused: Refusals = {}
        self.probe: int | None = None
        self.probe_due_ns = self.probe_tries = self.keep_alive_ns = 0
        self.joined = self.closing = self.told_complete = False
        self.announced_ns = now_ns

    def note_refused(self, topic: str, start: int, stop: int, reason: LossReason) -> None:
        """Remember that `[start, stop)` cannot be had here."""
        by_reason = self.refused.setdefault(topic, {})
        by_reason.setdefault(reason, RangeSet()).add(start, stop)
        if sum(map(len, by_reason.values())) > REFUSED_MAX:
            del self.refused[topic]

    def not_refused(self, topic: str, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of `[start, stop)` that may be had here."""
        parts = [(start, stop)]
        for ranges in self.refused.get(topic, {}).values():
            parts = [part for a, b in parts for part in ranges.missing(a, b)]
        return parts

    def reasons(self, topic: str, start: int, stop: int) -> list[Loss]:
        """Return the parts of `[start, stop)` that were refused here, and why."""
        return [
            Loss(a, b, reason)
            for reason, ranges in self.refused.get(topic, {}).items()
            for a, b in ranges.overlap(start, stop)
        ]


Ranges = list[tuple[int, int]]


def assign(
    routes: list[Route], topic: str, ranges: Ranges
) -> tuple[list[tuple[Route, Ranges]], Ranges]:
    """Give each range to the first route that has not refused it.

    Returns:
        what each route is to be asked for, and what all of them have refused.

    """
    plan: list[tuple[Route, Ranges]] = []
    left = ranges
    for route in routes:
        mine: Ranges = []
        refused: Ranges = []
        for start, stop in left:
            free = RangeSet(route.not_refused(topic, start, stop))
            mine += free
            refused += free.missing(start, stop)
        if mine:
            plan.append((route, mine))
        left = refused
    return plan, left


class RouteDesk:
    """Asks for what is missing, by the best route; part of `SubscriberCore`."""

    def __init__(self, core: "SubscriberCore") -> None:
        self._core = core

    def ask(self, stream: "Stream", ranges: Ranges, *, now_ns: int) -> None:
        """Send NACKs for what is due of a stream; what all routes have refused is lost."""
        peer, topic = stream.peer, stream.topic
        routes = self._in_turn(peer, now_ns)
        plan, refused = assign(routes, topic, ranges)
        if refused and not self._core.relays.unsettled(now_ns):
            self._lose(stream, refused, now_ns)
        for route, wanted in plan:
            for at in range(0, len(wanted), control.RANGES_MAX):
                body = control.Nack(topic, wanted[at : at + control.RANGES_MAX])
                frame = wire.control_frame(Kind.NACK, peer.session, body)
                self._core.requests.append((route.key, frame))
            if route.asked_ns is None:
                route.asked_ns = now_ns
            if route is peer.current and peer.tried_ns is None:
                peer.tried_ns = now_ns

    def answered(self, peer: "Peer", key: int, *, repaired: bool) -> "Route | None":
        """Note an answer; returns by which route it came, or None where the peer has none such."""
        found: Route | None = None
        for route in peer.routes:
            if route.key == key:
                route.asked_ns = None
                found = found or route
        if found is not None and (repaired or found is peer.current):
            if peer.current is None or peer.current.key != key:
                peer.current = found
            peer.tried_ns = None
        return found

    def receive_refused(
        self, peer: "Peer", route: Route, frame: Frame, now_ns: int
    ) -> "Stream":
        """Take a refusal: a loss, unless another route may have it, which is asked at once."""
        body = control.read_body(frame, control.Refused)
        stream = peer.streams.get(body.topic)
        if stream is None:
            raise FrameError("stream")
        if any(start >= stop for start, stop in body.ranges):
            raise FrameError("range")
        if not body.ranges:  # it does not know yet what it will have; perhaps another one does
            peer.tried_ns = now_ns - SWITCH_NS - 1
        try:
            reason = LossReason(body.reason)
        except ValueError:
            raise FrameError("reason") from None
        if reason is LossReason.BUDGET:
            for start, stop in body.ranges:
                stream.receiver.blame(start, stop, reason)
        else:
            self._refused(stream, route, body.ranges, reason, now_ns)
        return stream

    def _refused(
        self, stream: "Stream", route: Route, ranges: Ranges, reason: LossReason, now_ns: int
    ) -> None:
        peer, topic = stream.peer, stream.topic
        others = {other.key for other in self._live(peer)} - {route.key}
        if not others and not self._core.relays.unsettled(now_ns):
            for start, stop in ranges:
                stream.receiver.refuse(start, stop, reason, now_ns=now_ns)
            return
        for other in peer.routes:
            if other.key == route.key:
                for start, stop in ranges:
                    other.note_refused(topic, start, stop, reason)
        missing = RangeSet(stream.receiver.missing_ranges)
        wanted = [part for start, stop in ranges for part in missing.overlap(start, stop)]
        if wanted:
            self.ask(stream, wanted, now_ns=now_ns)

    def settled(self, stream: "Stream") -> None:
        """Forget what was refused of a stream: nothing of it is missing."""
        for route in stream.peer.routes:
            route.refused.pop(stream.topic, None)

    def earliest(self, peer: "Peer", earliest: int, now_ns: int) -> int | None:
        """Return what is evicted everywhere if it is below `earliest` at one route; None: nothing.

        Another route may keep more; it says so itself when it is asked.
        """
        several = len(peer.routes) > 1 or self._core.relays.unsettled(now_ns)
        return None if several else earliest

    def _in_turn(self, peer: "Peer", now_ns: int) -> list[Route]:
        """Return the routes to ask, the best first."""
        routes = sorted(self._live(peer), key=lambda route: route.hops)
        by_key = {route.key: route for route in reversed(routes)}
        order = [route for route in routes if by_key[route.key] is route]
        if not order:
            return []
        current = peer.current
        if current not in order:
            current, peer.tried_ns = order[0], None
        assert current is not None
        at = order.index(current)
        if peer.tried_ns is not None and now_ns - peer.tried_ns > SWITCH_NS:
            at = (at + 1) % len(order)
            peer.tried_ns = None
        peer.current = order[at]
        return [order[at], *order[:at], *order[at + 1 :]]

    def is_publisher_heard(self, peer: "Peer") -> bool:
        """Whether the publisher itself is there, or the session has ended for good."""
        lines = self._core.lines
        return peer.gone or any(
            line.session == peer.session and line.is_heard for line in lines
        )

    def _live(self, peer: "Peer") -> list[Route]:
        """Return the routes whose lines are not silent; all, where all are."""
        lines = self._core.lines
        live = []
        for route in peer.routes:
            if route is peer.own:
                at_it = [line for line in lines if line.session == peer.session]
                is_live = not at_it or any(line.is_heard for line in at_it)
            else:
                is_live = lines[route.line].is_heard
            if is_live:
                live.append(route)
        return live or peer.routes

    def _lose(self, stream: "Stream", ranges: Ranges, now_ns: int) -> None:
        """Report what all routes have refused, for the nearest one's reason."""
        routes = sorted(self._live(stream.peer), key=lambda route: route.hops)
        for start, stop in ranges:
            for route in routes:
                for loss in route.reasons(stream.topic, start, stop):
                    stream.receiver.refuse(loss.start, loss.stop, loss.reason, now_ns=now_ns)
