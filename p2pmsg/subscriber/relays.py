"""The relays that a subscriber is connected to, which sessions each serves, and routes over them.

::

    WELCOME, with the relay's flag ──▶ SESSIONS_REQUEST (over recovery) ──▶ SESSIONS
        for each session a `Route`, with its own handshake

The list is asked for again every second, when the relay says that it has changed, and when frames
of an unknown session come.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random
from typing import Final

from p2pmsg import control
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.effects import Action, Command, Effects
from p2pmsg.subscriber.relay_list import RelayList
from p2pmsg.subscriber.route import Route
from p2pmsg.subscriber.sessions import Session, Stream
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.states import Event, RouteEvent
from p2pmsg.wire import Frame, FrameError, Kind
from recovery.checks import to_ns

_MS = 1_000_000
REFUSED_NS: Final = 5000 * _MS
"""How long a line in a loop is left alone, at least; up to twice as long, so that not all relays of
a ring come back at once."""
REFORM_NS: Final = 30_000 * _MS
"""How long a relay may be away, or be new and not know its upstreams yet, until what it may have is
given up: a process, or a machine, is started again meanwhile."""
QUIET_NS: Final = 2500 * _MS
"""How long a relay says nothing until it counts as away: two of its heartbeats and a half."""
LOOP: Final = "it gets what it has from this relay: a loop"


class Standing(Enum):
    """What is known of who is at the end of a line."""

    KNOWN = auto()
    """It has said who it is, and what it has."""
    OPEN = auto()
    """It has not, and is not silent."""
    AWAY = auto()
    """It is silent, or a relay that does not know yet what it will have; for `REFORM_NS`."""
    GONE = auto()
    """It stayed so for longer: nothing is awaited of it."""


@dataclass(slots=True, eq=False, kw_only=True)
class RelayConnection(RelayList):
    """A relay at the other end of one or more lines."""

    name: str
    recovery: str
    stall_ms: float
    met_ns: int
    """When its welcome came."""
    lines: list[int] = field(default_factory=list)


def merge_heads(several: list[control.Heads]) -> control.Heads:
    """Return heads that reach as far as any of these."""
    if len(several) == 1:
        return several[0]
    found: dict[str, control.Head] = {}
    for head in (head for heads in several for head in heads.streams):
        known = found.get(head.topic, head)
        earliest, start = min(known.earliest, head.earliest), min(known.start, head.start)
        found[head.topic] = control.Head(head.topic, earliest, max(known.next, head.next), start)
    name = next((heads.name for heads in several if heads.name), "")
    # One that denies more than it lists says `*`.
    some = [set(heads.denied) for heads in several if "*" not in heads.denied]
    denied = sorted(set.intersection(*some)) if some else ["*"]
    floor = max(heads.floor for heads in several)
    return control.Heads(name, list(found.values()), floor, denied=denied)


class RelayClient:
    """Asks relays what they serve, and keeps the routes over them.

    Args:
        own: the id of the relay that this subscriber is the receiving side of, or None.
        peers: the sessions; their routes are kept here.
        hurry: called with when `check` is due, if that is sooner than was known.

    Attributes:
        upstreams: the relays at the other ends, by their ids.
        loops_refused: how often a line was refused because it leads back to `own`.

    """

    def __init__(
        self,
        settings: Settings,
        own: int | None,
        *,
        peers: Mapping[int, Session],
        lines: Sequence[Connection],
        effects: Effects,
        hurry: Callable[[int], None],
        rng: Random,
        now_ns: int,
    ) -> None:
        self.own = own
        self._start = settings.start
        self._peers = peers
        self._lines = lines
        self._effects = effects
        self._hurry = hurry
        self._rng = rng
        self.upstreams: dict[int, RelayConnection] = {}
        self.loops_refused = 0
        self._born_ns = now_ns
        self._timeout_ns = to_ns(settings.config.publisher_timeout)
        # First echoes, by session and route, and since when, until the others have come.
        self._held: dict[int, tuple[int, dict[int, control.Heads]]] = {}

    def unsettled(self, now_ns: int) -> bool:
        """Whether another line may still turn out to be a route to a session that is known.

        What one route refuses may be had over that one.
        """
        lines = self._lines
        return len(lines) > 1 and any(
            self._standing(line, now_ns) is Standing.OPEN for line in lines
        )

    def reforming(self, now_ns: int) -> bool:
        """Whether a relay may still come to have what is missing: nothing is given up then."""
        awaited = (Standing.OPEN, Standing.AWAY)
        return (self.own is not None or bool(self.upstreams)) and any(
            self._standing(line, now_ns) in awaited for line in self._lines
        )

    def _standing(self, line: Connection, now_ns: int) -> Standing:
        """Return what is known of who is at a line, by when that was last heard."""
        up = self.upstreams.get(line.relay or -1)
        if up is None and line.is_answered:
            return Standing.KNOWN
        heard_ns = self._born_ns
        if up is not None:
            heard_ns = min(line.last_heard_ns, max(up.met_ns, up.answered_ns))
        if now_ns - heard_ns >= REFORM_NS:
            return Standing.GONE
        if up is None or not up.complete:
            return Standing.OPEN if line.is_heard else Standing.AWAY
        return Standing.KNOWN if up.settled and now_ns - heard_ns <= QUIET_NS else Standing.AWAY

    def on_progress(self, stream: Stream, now_ns: int) -> None:
        """Note that a relay has come further with what we have already: it will have the rest."""
        if stream.receiver.missing:
            stream.receiver.nacks.postpone(now_ns=now_ns, delay_ns=0)

    def hold(
        self, peer: Session, key: int, heads: control.Heads, now_ns: int
    ) -> control.Heads | None:
        """Return where to begin a session whose first echoes these are; None: wait for more.

        A subscriber that starts at `earliest`, or at a time, begins where the route that reaches
        back farthest does. So it waits for all routes, as long as a publisher may be silent.
        """
        if peer.joined or len(self._lines) < 2 or self._start.kind not in ("earliest", "time"):
            return heads
        since_ns, held = self._held.setdefault(peer.session, (now_ns, {}))
        held[key] = heads
        waits = self.unsettled(now_ns) or any(route.key not in held for route in peer.routes)
        if waits and now_ns - since_ns <= self._timeout_ns:
            return None
        return merge_heads(self.take_held(peer.session))

    def take_held(self, session: int) -> list[control.Heads]:
        """Take out what first echoes of a session have said."""
        return [*self._held.pop(session, (0, {}))[1].values()]

    def forget(self, session: int) -> None:
        """Forget what there is of a session."""
        self._held.pop(session, None)

    @property
    def waiting(self) -> list[int]:
        """The relays that an answer may come from."""
        return [relay for relay, up in self.upstreams.items() if up.asked_ns is not None]

    def path_beyond(self) -> list[int]:
        """Return all relays from which anything comes."""
        return [relay for up in self.upstreams.values() for relay in (up.id, *up.path)]

    def meet(self, line: int, relay: int, welcome: control.Welcome, now_ns: int) -> None:
        """Take what a new connection to a relay begins with; `ask_or_refuse` goes on."""
        state = self._lines[line]
        up = self.upstreams.get(relay)
        if up is None:
            up = self.upstreams[relay] = RelayConnection(
                relay, name=welcome.name, recovery=welcome.recovery,
                stall_ms=welcome.stall_ms, met_ns=now_ns,
            )  # fmt: skip
            self._effects.connect(line, relay, welcome.recovery)
        elif up.recovery != welcome.recovery:
            self._effects.disconnect(relay)
            self._effects.connect(line, relay, welcome.recovery)
        up.name, up.recovery, up.stall_ms = welcome.name, welcome.recovery, welcome.stall_ms
        former, state.relay = state.relay, relay
        for _, route in self.routes_over(line):
            if route.key != relay:  # it was restarted without its log
                route.key, route.refused = relay, {}
                route.on(RouteEvent.REPLACED)
            route.on(RouteEvent.ANNOUNCED)  # one that closes sends no welcome
        if former is not None and former != relay:
            self._part(line, former)
        if line not in up.lines:
            up.lines.append(line)
            self._effects.subscribe(line, Kind.HEARTBEAT, relay)

    def ask_or_refuse(self, relay: int, now_ns: int) -> bool:
        """Ask a relay that was met for its list; False: it leads back to us, and is refused."""
        up = self.upstreams[relay]
        if relay == self.own:
            self._refuse(up, now_ns)
            return False
        up.page = 0
        self._ask(up, now_ns)
        return True

    def _part(self, line: int, relay: int) -> None:
        up = self.upstreams.get(relay)
        if up is None or line not in up.lines:
            return
        up.lines.remove(line)
        self._effects.unsubscribe(line, Kind.HEARTBEAT, relay)
        if not up.lines:
            del self.upstreams[relay]
            self._effects.disconnect(relay)

    def leave_line(self, line: int) -> None:
        """Give up the routes over a line: there is no relay at its end any more."""
        state = self._lines[line]
        relay, state.relay = state.relay, None
        if relay is not None:
            self._part(line, relay)
        for peer, route in list(self.routes_over(line)):
            self._drop(peer, route)

    def routes_over(self, line: int) -> Iterator[tuple[Session, Route]]:
        """Yield the routes over a line, with their sessions."""
        for peer in list(self._peers.values()):
            for route in peer.relayed:
                if route.line == line:
                    yield peer, route

    def _drop(self, peer: Session, route: Route) -> None:
        route.cancel(self._effects)
        peer.relayed.remove(route)

    def unrouted(self) -> list[Session]:
        """List the sessions that have lost their last route and have not ended yet."""
        known = self._peers.values()
        return [peer for peer in known if not (peer.relayed or peer.direct or peer.gone)]

    def receive_heartbeat(self, frame: Frame, now_ns: int) -> int:
        """Take a relay's own heartbeat; return what stands for its place."""
        body = control.read_body(frame, control.Heartbeat)
        up = self.upstreams[frame.session]
        up.on_pulse(frame.sequence, now_ns)
        self._hurry(up.due_ns)
        return body.endpoint_hash

    def on_head(self, peer: Session, line: int, frame: Frame, now_ns: int) -> None:
        """Note how far a relay is with a stream, as its heartbeat says."""
        if not any(route.line == line for route in peer.relayed):
            self.on_unknown(line, now_ns)
        stream = peer.streams.get(frame.topic)
        if stream is None:  # the session is held back until its echo, and is new to it
            return
        known = stream.repairs.relay_heads.get(line, 0)
        stream.repairs.relay_heads[line] = frame.sequence
        if known < frame.sequence:
            self.on_progress(stream, now_ns)

    def on_unknown(self, line: int, now_ns: int) -> None:
        """Note that frames of a session came that the relay has not announced."""
        up = self.upstreams.get(self._lines[line].relay or -1)
        if up is not None:
            self._ask_soon(up, now_ns)

    def _ask_soon(self, up: RelayConnection, now_ns: int) -> None:
        up.ask_soon(now_ns)
        self._hurry(up.due_ns)

    def _ask(self, up: RelayConnection, now_ns: int) -> None:
        self._effects.requests.append((up.id, up.ask(now_ns)))

    def receive_sessions(
        self, relay: int, frame: Frame, now_ns: int
    ) -> Iterator[tuple[RelayConnection, control.SessionEntry]]:
        """Take a page of the sessions that a relay serves, and yield them for `add_routes`."""
        up = self.upstreams.get(relay)
        if up is None:
            raise FrameError("session")
        entries = up.take(frame, now_ns)
        if self.own is not None and self.own in up.path:
            self._refuse(up, now_ns)
            return
        for line in up.lines:
            self._lines[line].refused_until_ns, self._lines[line].refusal = None, ""
        for entry in entries:
            yield up, entry
        if up.page and up.asked_ns is None:
            self._ask(up, now_ns)

    def add_routes(
        self, up: RelayConnection, peer: Session, entry: control.SessionEntry, now_ns: int
    ) -> list[Route]:
        """Note that a relay serves a session over each of its connections.

        Return the routes that are to be probed.
        """
        peer.on(Event.RELAYED)
        if not peer.direct:
            peer.name = entry.name or peer.name
            peer.own.stall_ms = up.stall_ms
        unprobed = []
        for line in up.lines:
            route = next((r for r in peer.relayed if r.line == line), None)
            if route is None:
                route = Route(up.id, line, entry.hops, now_ns=now_ns)
                peer.relayed.append(route)
                peer.was_relayed = True
            if not route.joined and route.probe is None:
                unprobed.append(route)
            route.hops, route.announced_ns = entry.hops, now_ns
        return unprobed

    def may_have(self, peer: Session, now_ns: int) -> bool:
        """Whether a relay may still say that it has a session that has lost its last route."""
        if not self.upstreams:
            return self.unsettled(now_ns)  # one may be met yet
        return now_ns - peer.heard_ns <= self._timeout_ns or self.reforming(now_ns)

    def _refuse(self, up: RelayConnection, now_ns: int) -> None:
        """Refuse a relay that gets from us what it would give to us."""
        self.loops_refused += 1
        up.path, up.asked_ns = [], None
        for line in list(up.lines):
            self.leave_alone(line, LOOP, now_ns)

    def leave_alone(self, line: int, why: str, now_ns: int) -> None:
        """Disconnect a line, whose server is refused, and try it again after some seconds."""
        state = self._lines[line]
        state.refusal = why
        state.refused_until_ns = now_ns + int(REFUSED_NS * (1 + self._rng.random()))
        self._effects.commands.append(Command(Action.LEAVE, line))
        self.leave_line(line)

    def receive_denied(self, relay: int, now_ns: int) -> str:
        """Note that a relay lists nothing for us, since we have no right; return its name."""
        up = self.upstreams[relay]
        up.on_answered(now_ns)
        return up.name

    def check(self, now_ns: int) -> None:
        """Ask for lists that are due, and give up routes that are not announced any more."""
        for up in self.upstreams.values():
            if now_ns >= up.due_ns:
                self._ask(up, now_ns)
        for peer in self._peers.values():
            for route in list(peer.relayed):
                known = self.upstreams.get(route.key)
                answered_ns = 0 if known is None else known.answered_ns
                if answered_ns - route.announced_ns > self._timeout_ns:
                    self._drop(peer, route)
        for index, line in enumerate(self._lines):
            if line.refused_until_ns is not None and now_ns >= line.refused_until_ns:
                line.refused_until_ns = None
                self._effects.reconnect(index)

    def ask_again(self, now_ns: int) -> None:
        """Ask all relays from the start, after an exception cut something short."""
        for up in self.upstreams.values():
            for line in up.lines[:1]:
                self._effects.connect(line, up.id, up.recovery)
            up.page, up.asked_ns, up.due_ns = 0, None, now_ns
