"""Takes what publishers and relays announce of themselves: who they are, and where.

::

    over TCP, first on each connection: WELCOME ────────────────────────────────┐
    to a group, each 200 ms:            WELCOME ──new, or ended───────────────┐ │
                                         │ │  └──of another place──▶ rejoin ──┤ │
                                         │ └─────as it is known──▶ it is here │ ▼
    of a relay: WELCOME, SESSIONS ──▶ a route to each of its sessions ────────┴─▶ PROBE
    of a feed: its session, which is joined at once

"""

from typing import TYPE_CHECKING, Any

from p2pmsg import control, wire
from p2pmsg.start import Start
from p2pmsg.subscriber.rejoin import KEEP_ALIVE_NS, LOST_NS, Rejoin
from p2pmsg.subscriber.session_table import UNJOINED_MAX, SessionTable
from p2pmsg.subscriber.sessions import GroupState, Session
from p2pmsg.subscriber.states import Event, RouteEvent
from p2pmsg.wire import Frame, FrameError
from recovery import Feedback
from transports.endpoint import host_of, parse_endpoint
from transports.errors import EndpointError

if TYPE_CHECKING:
    from p2pmsg.mold.feed import SessionAnnounced

_MS = 1_000_000


_HEADERS_BYTES = 512
"""More than a frame has in addition to its only message: topic, header, ends of columns."""


def large_text(welcome: control.Welcome, limit: int) -> str:
    """Return a warning where a publisher may send messages above `limit`; else ""."""
    most = welcome.message_bytes_max
    is_multicast = welcome.receivers >= 0  # there, messages come in parts
    if not most or most + _HEADERS_BYTES <= limit or is_multicast:
        return ""
    return (
        f"publisher {welcome.name!r} may send messages of {most:,} bytes (its "
        f"message_bytes_max); with headers, what is larger than frame_bytes_max ({limit:,} "
        "bytes, SubscriberConfig) is lost here, as too_large"
    )


def reached_from(recovery: str, address: Any) -> str:
    """Return a recovery endpoint as it is reached where an announcement comes from."""
    try:
        return str(parse_endpoint(recovery).reached_by(host_of(address)))
    except EndpointError:
        return recovery  # who connects there says what is wrong with it


class Announcements:
    """Makes sessions of announcements, and has them probed.

    Args:
        table: owns the sessions.
        rejoin: asks publishers for what contradicts what is known.

    """

    def __init__(self, table: SessionTable, rejoin: Rejoin) -> None:
        self._table = table
        self._rejoin = rejoin

    def receive(self, line: int, frame: Frame, now_ns: int) -> None:
        """Take the first frame of a new connection, or the one that a closing publisher sends."""
        if frame.flags & wire.FLAG_RELAY or (
            frame.flags & wire.FLAG_CLOSING and self._table.lines[line].relay is not None
        ):
            self._receive_relay_welcome(line, frame, now_ns)
            return
        welcome = control.read_body(frame, control.Welcome)
        peer = self._table.peers.get(frame.session)
        if not self._may_announce(line, peer, "publish", welcome.name, now_ns):
            return
        if frame.flags & wire.FLAG_CLOSING:
            self._receive_closing(peer, line, now_ns)
            return
        state = self._table.lines[line]
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
            self._table.end_replaced(former, now_ns)
        self._table.on_incarnation(peer, welcome.incarnation)
        self._begin_join(peer, line, now_ns)

    def receive_of_group(self, line: int, frame: Frame, address: Any, now_ns: int) -> None:
        """Take what a publisher to a group says again and again: who and where it is.

        One that contradicts what is known of its session has the publisher asked where that is
        known to be. Only where it does not answer, it is looked for where it is announced.
        """
        welcome = control.read_body(frame, control.Welcome)
        peer = self._table.peers.get(frame.session)
        if frame.flags & wire.FLAG_CLOSING:
            self._receive_closing(peer, line, now_ns)
            return
        if not self._may_announce(line, peer, "publish", welcome.name, now_ns):
            return
        table, state = self._table, self._table.lines[line]
        state.unknown_ns, state.refusal, state.session = None, "", frame.session
        welcome.recovery = reached_from(welcome.recovery, address)
        if peer is None:
            if table.forget_unjoined(now_ns) >= UNJOINED_MAX:
                raise FrameError("sessions_unconfirmed")
            peer = self._meet(line, frame.session, welcome, now_ns)
            peer.group = GroupState(Feedback(table.rng))
            if welcome.receivers > 0:
                peer.group.feedback.group_size = welcome.receivers
        elif not peer.gone and self._fits(peer, welcome, now_ns):
            self._on_announced(peer, welcome, line, address, now_ns)
            return
        elif not peer.gone and not self._rejoin.is_lost(peer, now_ns):
            self._rejoin.ask(peer, now_ns)
            return
        else:
            self._renew(peer, line, welcome)
            peer.own.urgent = None  # it is at another place
            table.begin_incarnation(peer)
            if table.keys is not None:
                table.keys.ask_again(peer)
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
        group = peer.group
        if group is None:
            return
        if group.sources.get(line, address) == address:
            peer.own.announced_ns = now_ns
            if welcome.receivers > 0:
                group.feedback.group_size = welcome.receivers
        elif now_ns - peer.heard_ns > LOST_NS and peer.probe is None:
            self._table.send_probe(peer, line, now_ns)  # its datagrams may come from there now
        if not peer.joined:
            return
        for other in list(self._table.peers.values()):
            if (
                other is peer
                or other.gone
                or other.group is None
                or other.name != peer.name
                or now_ns - other.heard_ns <= LOST_NS
            ):
                continue
            if not self._rejoin.is_lost(other, now_ns):
                self._rejoin.ask(other, now_ns)  # or this one has its place
            elif other.joined:
                self._table.end(other, now_ns)
            else:
                self._table.forget(other.session)

    def _begin_join(self, peer: Session, line: int, now_ns: int) -> None:
        """Probe a session that is announced at a line, where its publisher is."""
        peer.last_heard_ns = now_ns
        peer.own.asked_ns, peer.own.refused = None, {}
        peer.own.user = "" if self._table.servers is None else self._table.servers.users[line]
        self._table.next_check_ns = now_ns
        self._table.send_probe(peer, line, now_ns)

    def _receive_closing(self, peer: Session | None, line: int, now_ns: int) -> None:
        """Take the announcement that a publisher closes."""
        if peer is None or not peer.direct or peer.closing or peer.gone:
            return
        peer.own.on(RouteEvent.CLOSES)
        self._table.next_check_ns = now_ns
        if peer.group is None:  # else `rejoin` asks it
            self._table.send_probe(peer, line, now_ns)  # its echo has the last heads

    def _meet(self, line: int, session: int, welcome: control.Welcome, now_ns: int) -> Session:
        """Make a session that was announced; `FrameError` where there is no space for it."""
        state = self._table.lines[line]
        returning = state.contacted
        if state.shared:
            returning &= now_ns - int(welcome.age_ms * _MS) > state.contacted_ns
        start = self._table.start
        if returning and start.kind in ("latest", "earliest"):
            start = Start("sequence", 0)  # it began while we were here: all of it is ours
        peer = Session(session, welcome, start=start, now_ns=now_ns)
        peer.own.on(RouteEvent.ANNOUNCED)
        self._table.add(peer)
        self._table.effects.connect(line, session, welcome.recovery)
        if text := large_text(welcome, self._table.settings.config.frame_bytes_max):
            self._table.effects.warn(line, session, text)
        return peer

    def _part_from_relay(self, line: int, now_ns: int) -> None:
        """Note that a publisher, and no relay any more, is at the end of a line."""
        if self._table.lines[line].relay is not None:
            self._table.relays.leave_line(line)
            self._table.end_unrouted(now_ns)

    def _may_announce(
        self, line: int, peer: Session | None, verb: str, name: str, now_ns: int
    ) -> bool:
        """Whether the server of a line may announce a session, or itself as a relay.

        One that may send nothing is disconnected, and tried again after some seconds.
        """
        servers = self._table.servers
        if servers is None:
            return True
        if peer is not None and peer.own.user not in ("", servers.users[line]):
            raise FrameError("denied")  # another one's session
        if servers.check_any(line, verb, name):
            return True
        self._table.relays.leave_alone(
            line, f"its key has no right to {verb} anything here", now_ns
        )
        self._table.end_unrouted(now_ns)
        return False

    def _receive_relay_welcome(self, line: int, frame: Frame, now_ns: int) -> None:
        """Take the first frame of a connection to a relay, or the one of a closing relay."""
        welcome = control.read_body(frame, control.Welcome)
        if frame.flags & wire.FLAG_CLOSING:
            for peer, route in self._table.relays.routes_over(line):
                if peer.session == frame.session and not route.closing:
                    route.on(RouteEvent.CLOSES)
                    self._table.probe_route(peer, route, now_ns)
                    self._table.next_check_ns = now_ns
            return
        state = self._table.lines[line]
        if not self._may_announce(line, None, "relay", welcome.name, now_ns):
            return
        state.unknown_ns = None
        state.contacted, state.distrusted = True, False
        state.endpoint_hash = control.endpoint_hash_of(welcome.recovery)
        former, state.session = state.session, None
        self._table.end_replaced(former, now_ns)
        self._table.relays.meet(line, frame.session, welcome, now_ns)
        for peer, route in self._table.relays.routes_over(line):
            self._table.probe_route(peer, route, now_ns)
        if self._table.relays.ask_or_refuse(frame.session, now_ns):
            self._table.next_check_ns = now_ns
        self._table.end_unrouted(now_ns)

    def receive_sessions(self, relay: int, frame: Frame, now_ns: int) -> None:
        """Take a page of the sessions that a relay serves."""
        known = self._table.relays.upstreams.get(relay)
        was_known = known is not None and known.complete
        for up, entry in self._table.relays.receive_sessions(relay, frame, now_ns):
            peer = self._table.peers.get(entry.session)
            if peer is None:
                welcome = control.Welcome(entry.name, "", up.stall_ms)
                start = self._table.start
                if was_known and start.kind == "latest":
                    start = Start("earliest")  # it began since we came: all the relay has is ours
                peer = Session(entry.session, welcome, start=start, now_ns=now_ns)
                try:
                    self._table.add(peer)
                except FrameError as error:  # those that follow may be known
                    self._table.invalid[str(error)] += 1
                    continue
            for route in self._table.relays.add_routes(up, peer, entry, now_ns):
                self._table.probe_route(peer, route, now_ns)
        self._table.end_unrouted(now_ns)

    def receive_feed(
        self, line: int, feed: "SessionAnnounced", now_ns: int
    ) -> tuple[int | None, int | None]:
        """Join a session of a feed; see `p2pmsg.mold.feed.FeedTaker`."""
        state = self._table.lines[line]
        resumed = None
        if feed.session not in self._table.peers:
            resumed = self._join_feed(line, feed, now_ns)
        former, state.session, state.contacted = state.session, feed.session, True
        for peer in self._table.draining():
            if peer.name == feed.name or not (feed.can_ask and peer.missing):
                self._table.end(peer, now_ns)  # its servers have the new session's messages
        known = former in self._table.peers
        return resumed, former if known and not self._table.has_line(former) else None

    def _join_feed(self, line: int, feed: "SessionAnnounced", now_ns: int) -> int:
        """Make a session of a feed; it is joined at once, without an echo."""
        welcome = control.Welcome(feed.name, "", -1.0)
        returning, start = self._table.lines[line].contacted, self._table.start
        peer = Session(feed.session, welcome, start=start, now_ns=now_ns)
        peer.on(Event.ECHOED)
        peer.own.on(RouteEvent.ANNOUNCED)
        peer.own.on(RouteEvent.ECHOED)
        peer.own.line = line
        self._table.add(peer)
        stream = self._table.stream_table.add(peer, feed.topic, can_ask=feed.can_ask)
        resumed = None
        if self._table.cursor is not None:
            resumed = self._table.cursor.start_of(feed.session, feed.topic, feed.first)
        if resumed is not None:
            at = resumed = max(feed.first, resumed)
        elif start.kind == "sequence":
            at = max(feed.first, start.position)
        else:
            at = feed.first if start.kind == "earliest" or returning else feed.following
        stream.receiver.start_at(at, now_ns=now_ns)
        if self._table.cursor is not None:
            self._table.cursor.note(peer)
        self._table.effects.connect(line, feed.session)
        return resumed or 0

    def _renew(self, peer: Session, line: int, welcome: control.Welcome) -> None:
        """Note that a session is alive: its publisher may have restarted on its log."""
        is_moved = peer.own.recovery != welcome.recovery or peer.group is not None
        if peer.gone or not peer.direct or is_moved:
            self._table.effects.disconnect(peer.session)
            self._table.effects.connect(line, peer.session, welcome.recovery)
        peer.on(Event.ANNOUNCED)
        peer.own.renew(
            is_same_incarnation=welcome.incarnation != 0 and welcome.incarnation == peer.incarnation
        )
        peer.name, peer.own.recovery = welcome.name, welcome.recovery
        peer.own.stall_ms = welcome.stall_ms
