"""Takes what publishers and relays announce of themselves: who they are, and where.

::

    over TCP, first on each connection: WELCOME ────────────────────────────────┐
    to a group, each 200 ms:            WELCOME ──new, or ended───────────────┐ │
                                         │ │  └──of another place──▶ rejoin ──┤ │
                                         │ └─────as it is known──▶ it is here │ ▼
    of a relay: WELCOME, SESSIONS ──▶ a route to each of its sessions ────────┴─▶ PROBE
    of a feed: its session, which is joined at once

"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from p2pmsg import control, wire
from p2pmsg.start import Start
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.draining_feeds import DrainingFeeds
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.rejoin import KEEP_ALIVE_NS, LOST_NS, Rejoin
from p2pmsg.subscriber.relays import RelayClient
from p2pmsg.subscriber.resume import Resume
from p2pmsg.subscriber.servers import Servers
from p2pmsg.subscriber.sessions import GroupState, Route, Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.space import Space, large_text
from p2pmsg.subscriber.states import Event
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.wire import Frame, FrameError
from transports.endpoint import host_of, parse_endpoint
from transports.errors import EndpointError

if TYPE_CHECKING:
    from p2pmsg.mold.feed import SessionAnnounced
    from p2pmsg.subscriber.group import MulticastReceiver

_MS = 1_000_000


def reached_from(recovery: str, address: Any) -> str:
    """Return a recovery endpoint as it is reached where an announcement comes from."""
    try:
        return str(parse_endpoint(recovery).reached_by(host_of(address)))
    except EndpointError:
        return recovery  # who connects there says what is wrong with it


class Joiner(Protocol):
    """Owns the sessions, joins them and ends them; see `SessionJoiner`."""

    settings: Settings
    start: Start
    cursor: Resume | None
    stream_table: StreamTable
    effects: Effects
    relays: RelayClient
    servers: Servers | None
    multicast: "MulticastReceiver | None"
    rejoin: Rejoin
    former: DrainingFeeds
    space: Space
    next_check_ns: int
    lines: Sequence[Connection]
    peers: dict[int, Session]

    def send_probe(self, peer: Session, line: int, now_ns: int) -> None:
        """Ask the publisher itself for an echo."""

    def probe_route(self, peer: Session, route: Route, now_ns: int) -> None:
        """Ask a relay for an echo."""

    def on_incarnation(self, peer: Session, incarnation: int, now_ns: int) -> bool:
        """Note which incarnation of a publisher is heard of."""

    def end_replaced(self, former: int | None, now_ns: int) -> int | None:
        """End the session that a line had."""

    def end_unrouted(self, now_ns: int) -> None:
        """End the sessions to which no relay leads any more."""

    def end_peer(self, peer: Session, now_ns: int) -> None:
        """End a session."""

    def forget_peer(self, session: int) -> None:
        """Forget a session."""


class Announcements:
    """Makes sessions of announcements, and has them probed.

    Args:
        joiner: owns the sessions.

    """

    def __init__(self, joiner: Joiner) -> None:
        self._joiner = joiner

    def receive(self, line: int, frame: Frame, now_ns: int) -> None:
        """Take the first frame of a new connection, or the one that a closing publisher sends."""
        if frame.flags & wire.FLAG_RELAY or (
            frame.flags & wire.FLAG_CLOSING and self._joiner.lines[line].relay is not None
        ):
            self._receive_relay_welcome(line, frame, now_ns)
            return
        welcome = control.read_body(frame, control.Welcome)
        peer = self._joiner.peers.get(frame.session)
        if frame.flags & wire.FLAG_CLOSING:
            self._receive_closing(peer, line, now_ns)
            return
        if not self._may_announce(line, peer, "publish", welcome.name, now_ns):
            return
        state = self._joiner.lines[line]
        state.unknown_ns, state.refusal = None, ""
        self._part_from_relay(line, now_ns)
        if peer is None:
            peer = self._meet(line, frame.session, welcome, now_ns)
        elif peer.gone and not state.distrusted:
            return  # it is late: another session has its place
        else:
            self._renew(peer, line, welcome)
        if not state.contacted:
            state.contacted, state.contacted_ns = True, now_ns
        state.distrusted = False
        state.endpoint_hash = control.endpoint_hash_of(welcome.recovery)
        if state.session != frame.session:
            former, state.session = state.session, frame.session
            self._joiner.end_replaced(former, now_ns)
        self._joiner.on_incarnation(peer, welcome.incarnation, now_ns)
        self._begin_join(peer, line, now_ns)

    def receive_of_group(self, line: int, frame: Frame, address: Any, now_ns: int) -> None:
        """Take what a publisher to a group says again and again: who and where it is.

        One that contradicts what is known of its session has the publisher asked where that is
        known to be. Only where it does not answer, it is looked for where it is announced.
        """
        welcome = control.read_body(frame, control.Welcome)
        peer = self._joiner.peers.get(frame.session)
        if frame.flags & wire.FLAG_CLOSING:
            self._receive_closing(peer, line, now_ns)
            return
        if not self._may_announce(line, peer, "publish", welcome.name, now_ns):
            return
        state, member = self._joiner.lines[line], self._joiner.multicast
        assert member is not None
        state.unknown_ns, state.refusal, state.session = None, "", frame.session
        welcome.recovery = reached_from(welcome.recovery, address)
        if peer is None:
            member.make_space(now_ns)
            peer = self._meet(line, frame.session, welcome, now_ns)
            peer.group = GroupState(member.make_feedback(welcome.receivers))
        elif not peer.gone and self._fits(peer, welcome, now_ns):
            self._on_announced(peer, welcome, line, address, now_ns)
            return
        elif not peer.gone and not self._joiner.rejoin.is_lost(peer, now_ns):
            self._joiner.rejoin.ask(peer, now_ns)
            return
        else:
            self._renew(peer, line, welcome)
            self._joiner.rejoin.forget(peer.session)
            member.begin_incarnation(peer)
            if member.keys is not None:
                member.keys.ask_again(peer)
        self._begin_join(peer, line, now_ns)

    def _fits(self, peer: Session, welcome: control.Welcome, now_ns: int) -> bool:
        """Whether an announcement of a group agrees with what is known of its session.

        Over A and B lines one publisher may be reached by two hosts: that of the first is used as
        long as it answers.
        """
        is_asked = peer.probe is not None  # its echo will say of which incarnation it is
        if not is_asked and peer.incarnation and welcome.incarnation != peer.incarnation:
            return False
        is_answering = 0 <= peer.answered_ns >= now_ns - KEEP_ALIVE_NS
        return is_answering or welcome.recovery == peer.own.recovery

    def _on_announced(
        self, peer: Session, welcome: control.Welcome, line: int, address: Any, now_ns: int
    ) -> None:
        """Take an announcement that says what is known."""
        if peer.closing and not peer.handshake.has_last:
            peer.handshake.on_open()  # or its next closing says it again
        group = peer.group
        if group is None:
            return
        if group.sources.get(line, address) == address:
            peer.own.announced_ns = now_ns
            if welcome.receivers > 0:
                group.feedback.group_size = welcome.receivers
        elif now_ns - peer.heard_ns > LOST_NS and peer.probe is None:
            self._joiner.send_probe(peer, line, now_ns)  # its datagrams may come from there now
        if not peer.joined:
            return
        for other in list(self._joiner.peers.values()):
            if (
                other is peer
                or other.gone
                or other.group is None
                or other.name != peer.name
                or now_ns - other.heard_ns <= LOST_NS
            ):
                continue
            if not self._joiner.rejoin.is_lost(other, now_ns):
                self._joiner.rejoin.ask(other, now_ns)  # or this one has its place
            elif other.joined:
                self._joiner.end_peer(other, now_ns)
            else:
                self._joiner.forget_peer(other.session)

    def _begin_join(self, peer: Session, line: int, now_ns: int) -> None:
        """Probe a session that is announced at a line, where its publisher is."""
        peer.last_heard_ns = now_ns
        peer.own.is_open, peer.current, peer.own.refused = True, None, {}
        peer.own.user = "" if self._joiner.servers is None else self._joiner.servers.users[line]
        self._joiner.next_check_ns = now_ns
        self._joiner.send_probe(peer, line, now_ns)

    def _receive_closing(self, peer: Session | None, line: int, now_ns: int) -> None:
        """Take the announcement that a publisher closes."""
        if peer is None or peer.closing or peer.gone:
            return
        peer.handshake.on_closing()
        self._joiner.next_check_ns = now_ns
        if peer.group is not None:
            # Anybody may say so in a group, which must not make the publisher send echoes to all.
            self._joiner.rejoin.ask(peer, now_ns, self._joiner.settings.patterns)
        else:
            self._joiner.send_probe(peer, line, now_ns)  # its echo has the last heads

    def _meet(self, line: int, session: int, welcome: control.Welcome, now_ns: int) -> Session:
        """Make a session that was announced; `FrameError` where there is no space for it."""
        state = self._joiner.lines[line]
        self._joiner.space.for_session()
        returning = state.contacted
        if state.shared:
            returning &= now_ns - int(welcome.age_ms * _MS) > state.contacted_ns
        start = self._joiner.start
        if returning and start.kind in ("latest", "earliest"):
            start = Start("sequence", 0)  # it began while we were here: all of it is ours
        peer = Session(session, welcome, start=start, now_ns=now_ns)
        self._joiner.peers[session] = peer
        self._joiner.effects.connect(line, session, welcome.recovery)
        if text := large_text(welcome, self._joiner.settings.config.frame_bytes_max):
            self._joiner.effects.warn(line, session, text)
        return peer

    def _part_from_relay(self, line: int, now_ns: int) -> None:
        """Note that a publisher, and no relay any more, is at the end of a line."""
        if self._joiner.lines[line].relay is not None:
            self._joiner.relays.leave_line(line)
            self._joiner.end_unrouted(now_ns)

    def _may_announce(
        self, line: int, peer: Session | None, verb: str, name: str, now_ns: int
    ) -> bool:
        """Whether the server of a line may announce a session, or itself as a relay.

        One that may send nothing is disconnected, and tried again after some seconds.
        """
        servers = self._joiner.servers
        if servers is None:
            return True
        if peer is not None and peer.own.user not in ("", servers.users[line]):
            raise FrameError("denied")  # another one's session
        if servers.check_any(line, verb, name):
            return True
        self._joiner.relays.leave_alone(
            line, f"its key has no right to {verb} anything here", now_ns
        )
        self._joiner.end_unrouted(now_ns)
        return False

    def _receive_relay_welcome(self, line: int, frame: Frame, now_ns: int) -> None:
        """Take the first frame of a connection to a relay, or the one of a closing relay."""
        welcome = control.read_body(frame, control.Welcome)
        if frame.flags & wire.FLAG_CLOSING:
            for peer, route in self._joiner.relays.routes_over(line):
                if peer.session == frame.session and not route.handshake.closing:
                    route.handshake.on_closing()
                    self._joiner.probe_route(peer, route, now_ns)
                    self._joiner.next_check_ns = now_ns
            return
        state = self._joiner.lines[line]
        if not self._may_announce(line, None, "relay", welcome.name, now_ns):
            return
        state.unknown_ns = None
        state.contacted, state.distrusted = True, False
        state.endpoint_hash = control.endpoint_hash_of(welcome.recovery)
        former, state.session = state.session, None
        self._joiner.end_replaced(former, now_ns)
        self._joiner.relays.meet(line, frame.session, welcome, now_ns)
        for peer, route in self._joiner.relays.routes_over(line):
            self._joiner.probe_route(peer, route, now_ns)
        if self._joiner.relays.ask_or_refuse(frame.session, now_ns):
            self._joiner.next_check_ns = now_ns
        self._joiner.end_unrouted(now_ns)

    def receive_sessions(self, relay: int, frame: Frame, now_ns: int) -> None:
        """Take a page of the sessions that a relay serves."""
        for up, entry in self._joiner.relays.receive_sessions(relay, frame, now_ns):
            peer = self._joiner.peers.get(entry.session)
            if peer is None:
                self._joiner.space.for_session()
                welcome = control.Welcome(entry.name, "", up.stall_ms)
                start = self._joiner.start
                if up.complete and start.kind == "latest":
                    start = Start("earliest")  # it began since we came: all the relay has is ours
                peer = Session(entry.session, welcome, start=start, now_ns=now_ns)
                self._joiner.peers[entry.session] = peer
            for route in self._joiner.relays.add_routes(up, peer, entry, now_ns):
                self._joiner.probe_route(peer, route, now_ns)
        self._joiner.end_unrouted(now_ns)

    def receive_feed(
        self, line: int, feed: "SessionAnnounced", now_ns: int
    ) -> tuple[int | None, int | None]:
        """Join a session of a feed; see `p2pmsg.mold.feed.FeedTaker`."""
        state = self._joiner.lines[line]
        resumed = None
        if feed.session not in self._joiner.peers:
            self._joiner.space.for_session()
            resumed = self._join_feed(line, feed, now_ns)
        former, state.session, state.contacted = state.session, feed.session, True
        return resumed, self._joiner.former.replace(former, feed, now_ns)

    def _join_feed(self, line: int, feed: "SessionAnnounced", now_ns: int) -> int:
        """Make a session of a feed; it is joined at once, without an echo."""
        welcome = control.Welcome(feed.name, "", -1.0)
        returning, start = self._joiner.lines[line].contacted, self._joiner.start
        peer = Session(feed.session, welcome, start=start, now_ns=now_ns)
        peer.on(Event.ECHOED)
        peer.own.is_open = True
        peer.handshake.line = line
        self._joiner.peers[feed.session] = peer
        stream = self._joiner.stream_table.add(peer, feed.topic, can_ask=feed.can_ask)
        resumed = None
        if self._joiner.cursor is not None:
            resumed = self._joiner.cursor.start_of(feed.session, feed.topic, feed.first)
        if resumed is not None:
            at = resumed = max(feed.first, resumed)
        elif start.kind == "sequence":
            at = max(feed.first, start.position)
        else:
            at = feed.first if start.kind == "earliest" or returning else feed.following
        stream.receiver.start_at(at, now_ns=now_ns)
        if self._joiner.cursor is not None:
            self._joiner.cursor.note(peer)
        self._joiner.effects.connect(line, feed.session)
        return resumed or 0

    def _renew(self, peer: Session, line: int, welcome: control.Welcome) -> None:
        """Note that a session is alive: its publisher may have restarted on its log."""
        is_moved = peer.own.recovery != welcome.recovery or peer.group is not None
        if peer.gone or not peer.direct or is_moved:
            self._joiner.effects.disconnect(peer.session)
            self._joiner.effects.connect(line, peer.session, welcome.recovery)
        peer.on(Event.ANNOUNCED)
        peer.handshake.renew(
            is_same_incarnation=welcome.incarnation != 0 and welcome.incarnation == peer.incarnation
        )
        peer.name, peer.own.recovery = welcome.name, welcome.recovery
        peer.own.stall_ms = welcome.stall_ms
