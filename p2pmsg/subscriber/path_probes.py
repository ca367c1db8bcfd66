"""Asks publishers, and relays, over the recovery channel where streams stand, while nothing comes.

The end of a stream that is lost shows in what comes later over the data path: heartbeats, echoes.
Where nothing comes there at all, and only the recovery channel works, nobody would ever know of it.
Mostly a firewall, or a switch, lets the one through and not the other.

A group is asked, too, where only announcements come, and neither data nor heartbeats: datagrams as
large as those of data may be lost for as long as they are sent.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from p2pmsg import control, wire
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.relays import RelayClient
from p2pmsg.subscriber.servers import Servers
from p2pmsg.subscriber.sessions import Route, Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.wire import Frame, Kind
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.subscriber.group import MulticastReceiver

_MS: Final = 1_000_000
QUIET_NS: Final = 3000 * _MS
"""How long nothing comes until a publisher is asked, at least: three of the slowest heartbeats of
its streams; else `publisher_timeout`, in which it is also probed."""
FIRST_WAIT_NS: Final = 3000 * _MS
"""Between two questions, while the answers show what is missing; it doubles while they do not."""
WAIT_NS_MAX: Final = 30_000 * _MS
_WARN_NS: Final = 60_000 * _MS
NS_PER_STREAM: Final = _MS
"""How much longer to wait for each stream, so that long answers are rare."""


class Joiner(Protocol):
    """Owns the sessions, and what is known of them."""

    settings: Settings
    stream_table: StreamTable
    effects: Effects
    invalid: Counter[str]
    servers: Servers | None
    multicast: "MulticastReceiver | None"
    relays: RelayClient

    @property
    def lines(self) -> Sequence[Connection]:
        """The connections of the data path."""

    @property
    def peers(self) -> Mapping[int, Session]:
        """The sessions by their ids."""

    def on_last_heads(self, peer: Session, now_ns: int) -> None:
        """Note that a publisher closes, and has said its last heads."""


@dataclass(slots=True)
class _Quiet:
    """What is asked over one route to a session, whose data path is silent, or has no data."""

    due_ns: int
    wait_ns: int
    asked_ns: int = 0
    request: int | None = None
    answers: bool = False
    known: int = -1
    """Up to where its streams were known when it was asked, together."""


class PathProbes:
    """Looks for routes to sessions whose data path is silent, and asks there for heads.

    So the publisher is asked, where there is a connection to it, and each relay that serves it.

    Args:
        joiner: owns the sessions, and joins them.
        rng: source of the questions' ids.

    """

    def __init__(self, joiner: Joiner, rng: Random) -> None:
        config = joiner.settings.config
        self._joiner = joiner
        self._rng = rng
        self._quiet_ns = max(QUIET_NS, to_ns(config.publisher_timeout))
        self._pages = control.HeadPages(config.streams_max)
        self._found: dict[tuple[int, int], _Quiet] = {}
        self._dataless: dict[int, _Quiet] = {}
        self._warn_ns: dict[int, int] = {}

    def is_asked(self, session: int) -> bool:
        """Whether a session was asked for, and no answer has come."""
        return bool(self._found) and any(
            state.request is not None
            for (asked, _), state in self._found.items()
            if asked == session
        )

    def check(self, now_ns: int) -> None:
        """Ask over the routes that are silent, each at most every 3 s."""
        silent: set[tuple[int, int]] = set()
        for peer in self._joiner.peers.values():
            for route in _routes(peer):
                if now_ns - self._last_heard_ns(peer, route) > self._quiet_ns:
                    silent.add((peer.session, route.key))
                    self._check(peer, route, now_ns)
        self._check_data(now_ns)
        for session, key in [one for one in self._found if one not in silent]:
            del self._found[session, key]
            if key == session and session in self._joiner.peers:
                self._joiner.peers[session].quiet = False

    def _check_data(self, now_ns: int) -> None:
        """Ask publishers of groups for all heads, where only announcements come."""
        member, dataless = self._joiner.multicast, self._dataless
        if member is None:
            return
        asked: dict[int, _Quiet] = {}
        for peer in self._joiner.peers.values():
            is_of_group = peer.group is not None and peer.own in _routes(peer)
            if not is_of_group or now_ns - peer.data_ns <= self._quiet_ns:
                continue
            state = dataless.get(peer.session) or _Quiet(now_ns, FIRST_WAIT_NS)
            asked[peer.session] = state
            if peer.gaps:
                self._on_missing(peer, state, now_ns)
            if now_ns >= state.due_ns and now_ns - peer.came_ns <= self._quiet_ns:
                self._on_asked(peer, state, now_ns)
                member.confirmation.want(peer, None, now_ns)
        self._dataless = asked

    def _check(self, peer: Session, route: Route, now_ns: int) -> None:
        key = peer.session, route.key
        state = self._found.get(key)
        if state is None:
            state = self._found[key] = _Quiet(now_ns, FIRST_WAIT_NS)
        if peer.gaps:
            self._on_missing(peer, state, now_ns)
        if state.answers:
            self._on_one_way(peer, route, now_ns)
        if now_ns >= state.due_ns:
            self._ask(peer, route, state, now_ns)

    def _on_missing(self, peer: Session, state: _Quiet, now_ns: int) -> None:
        """Ask again soon, since there was something; what is missing comes over TCP only."""
        state.wait_ns = FIRST_WAIT_NS
        soon_ns = state.asked_ns + FIRST_WAIT_NS + len(peer.streams) * NS_PER_STREAM
        state.due_ns = min(state.due_ns, max(now_ns, soon_ns))

    def _last_heard_ns(self, peer: Session, route: Route) -> int:
        """Return when anything last came over the data path of a route."""
        lines = self._joiner.lines
        if route is not peer.own:
            upstream = self._joiner.relays.upstreams.get(route.key)
            over = [route.handshake.line] if upstream is None else upstream.lines
            return max((lines[at].last_heard_ns for at in over), default=0)
        own = [one.last_heard_ns for one in lines if one.session == peer.session and not one.shared]
        return max(own, default=peer.came_ns)

    def _ask(self, peer: Session, route: Route, state: _Quiet, now_ns: int) -> None:
        state.request = self._rng.getrandbits(62)
        self._on_asked(peer, state, now_ns)
        topics: list[str] = []  # of a multicast: its answer shows that it is there
        if peer.group is None:
            topics = self._joiner.settings.patterns
        body = control.Probe(state.request, topics, "latest")
        self._joiner.effects.send(
            route.key, Kind.HEADS_REQUEST, peer.session, body, sequence=state.request
        )

    def _on_asked(self, peer: Session, state: _Quiet, now_ns: int) -> None:
        known = sum(stream.receiver.head for stream in peer.streams.values())
        if known != state.known:
            state.known, state.wait_ns = known, FIRST_WAIT_NS
        state.due_ns = now_ns + state.wait_ns + len(peer.streams) * NS_PER_STREAM
        state.asked_ns = now_ns
        state.wait_ns = min(2 * state.wait_ns, WAIT_NS_MAX)

    def receive(self, peer: Session, route: Route, frame: Frame, now_ns: int) -> bool:
        """Take a page of an answer; False: it is of another question."""
        state = self._found.get((peer.session, route.key))
        if state is None or state.request != frame.sequence:
            return peer.group is None  # too late: something has come over the data path
        heads = self._pages.take(frame.sequence, control.read_body(frame, control.Heads))
        if heads is None:
            return True
        state.request, state.answers = None, True
        peer.quiet = peer.quiet or route is peer.own
        self._warn(peer, route, now_ns)
        member = self._joiner.multicast
        if peer.group is not None and member is not None:
            member.confirmation.want(peer, None, now_ns)
        elif now_ns >= peer.unconfirmed_until_ns and (
            not heads.incarnation or heads.incarnation == peer.incarnation
        ):
            self._take(peer, route, heads, now_ns)
            if frame.flags & wire.FLAG_CLOSING and route is peer.own:
                self._joiner.on_last_heads(peer, now_ns)
        return True

    def _take(self, peer: Session, route: Route, heads: control.Heads, now_ns: int) -> None:
        """Take the heads that came over a recovery channel of a session that is joined."""
        joiner = self._joiner
        if joiner.servers is not None:
            heads = joiner.servers.allowed(heads, route, peer)
        for head in heads.streams:
            if not joiner.stream_table.take_head(peer, head, now_ns):
                joiner.invalid["streams_max"] += 1

    def _warn(self, peer: Session, route: Route, now_ns: int) -> None:
        """Say it, once a minute for each line."""
        line = route.handshake.line
        if now_ns >= self._warn_ns.get(line, now_ns):
            self._warn_ns[line] = now_ns + _WARN_NS
            self._joiner.effects.warn(line, peer.session, self._text(peer, route, now_ns))

    def _on_one_way(self, peer: Session, route: Route, now_ns: int) -> None:
        line = self._joiner.lines[route.handshake.line]
        line.one_way = line.one_way or self._text(peer, route, now_ns)

    def _text(self, peer: Session, route: Route, now_ns: int) -> str:
        what, name, recovery = "publisher", peer.name, peer.recovery
        upstream = self._joiner.relays.upstreams.get(route.key)
        if route is not peer.own and upstream is not None:
            what, name, recovery = "relay", upstream.name, upstream.recovery
        silent_ns = now_ns - self._last_heard_ns(peer, route)
        return (
            f"{what} {name!r} answers at its recovery endpoint {recovery}, but nothing of "
            f"it has come over the data path for {silent_ns / 1e9:.0f} s: what is missing is asked "
            f"for there, some seconds late. Does anything drop the data path (a firewall, a switch "
            f"that forgot this member of a group)?"
        )


def _routes(peer: Session) -> list[Route]:
    """Return the routes over which a session that is joined can be asked about."""
    if peer.gone or not peer.joined:
        return []
    routes = [route for route in peer.relayed if route.handshake.joined]
    if peer.direct and peer.recovery:
        if peer.closing and peer.handshake.reported_complete:
            return []  # it may have gone on that
        routes.insert(0, peer.own)
    return routes
