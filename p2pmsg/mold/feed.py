"""A MoldUDP64 feed as a subscriber's core sees it: a stream of one session. No I/O.

Packets become DATA frames and heartbeats, whose sequences are the feed's own; what the core asks
for becomes requests. So a feed has the ledger, the gap policies and the second lines that every
stream has.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from p2pmsg import control, wire
from p2pmsg.mold import codec
from p2pmsg.mold.sessions import (
    AGAIN_NS,
    AGAIN_PACKETS,
    DIGESTS_MAX,
    DOUBT_ENDED_NS,
    DOUBT_NS,
    Doubt,
    LineView,
    MoldSession,
    MoldSessions,
)
from p2pmsg.publisher.batch import pack_slice
from p2pmsg.subscriber.effects import Command
from p2pmsg.subscriber.sessions import Ending, Session, Stream
from p2pmsg.wire import FrameError, Kind
from recovery import ReceiverConfig

if TYPE_CHECKING:
    from p2pmsg.subscriber.core import SubscriberCore

FIRST = 1
"""The first sequence of every MoldUDP64 session."""
SUCCESSOR_NS = 2_000_000_000
"""How long a session that has not ended is silent before another one is believed: twice the time
between heartbeats."""
_NEVER_MS = 1e9
_VIEWS_MAX = 64
"""Sessions that a line's packets are told apart by; the oldest is forgotten first."""


class MoldFeed:
    """Takes the packets of one line.

    Args:
        core: gets the frames.
        line: which of its lines this is.
        topic: that the messages get.
        sessions: what all lines know of them.

    """

    def __init__(
        self, core: "SubscriberCore", line: int, topic: str, sessions: MoldSessions
    ) -> None:
        self._core = core
        self._line = line
        self._topic = topic
        self._sessions = sessions
        self._views: dict[bytes, LineView] = {}
        self._buffer = bytearray()
        self._prefix = b""
        self._prefix_of: MoldSession | None = None

    def receive(self, data: bytes | memoryview, *, now_ns: int, wall_ns: int, shed: bool) -> None:
        """Take a packet; what is malformed is counted."""
        core = self._core
        try:
            packet = codec.read_packet(data)
            view = self._views.get(packet.session) or self._begin(packet, now_ns)
            self._take(view, packet, now_ns, wall_ns, shed)
        except FrameError as error:
            core.frames_received += 1
            core.invalid[str(error)] += 1

    def name_of(self, session: int) -> bytes:
        """Return a session's name."""
        return self._sessions.of(session).name

    def answer(self, session: int, packet: codec.Packet, *, wall_ns: int) -> bytes:
        """Return the frame of a packet that answers a request."""
        return self._frame(self._sessions.of(session), packet, wall_ns)

    def in_doubt(self, session: int) -> bool:
        """Whether a session has perhaps begun again, so that answers would be the new one's."""
        return any(
            view.doubt is not None and view.session.session == session
            for view in self._views.values()
        )

    def _take(
        self, view: LineView, packet: codec.Packet, now_ns: int, wall_ns: int, shed: bool
    ) -> None:
        stop = packet.sequence + len(packet.messages)
        session = view.session
        if now_ns - view.heard_ns >= DOUBT_NS:
            newest = self._sessions.newest(packet.session)
            if newest is not session:  # the others know more than this line, which was silent
                self._join(packet, newest, now_ns)
                view.session, view.head, view.doubt, view.since_ns = newest, 0, None, now_ns
                session = newest
        view.heard_ns = now_ns
        if stop < view.head:
            self._take_old(view, packet, now_ns, wall_ns, shed)
            return
        if view.doubt is not None and self._came_again(view, view.doubt, packet):
            view.doubt.hold(packet)
            self._begin_again(view, view.doubt, now_ns, wall_ns, shed)
            return
        view.head = stop
        if stop >= session.head:
            session.head, session.head_ns = stop, now_ns
        if view.doubt is not None:
            doubt, view.doubt = view.doubt, None
            for held in doubt.held:  # they were late; what is known already is known by now
                if self._is_missing(session, held):
                    self._pass_on(session, held, now_ns, wall_ns, shed)
        self._pass_on(session, packet, now_ns, wall_ns, shed)

    def _take_old(
        self, view: LineView, packet: codec.Packet, now_ns: int, wall_ns: int, shed: bool
    ) -> None:
        """Take a packet from before what the line has shown: it is late, or the name began again.

        What is missing in the midst of a session that goes on has simply come late. In doubt it is
        kept, for it may belong to another session.
        """
        session, doubt = view.session, view.doubt
        is_missing = self._is_missing(session, packet)
        if doubt is None:
            if is_missing:
                self._pass_on(session, packet, now_ns, wall_ns, shed)
                return
            doubt = view.doubt = Doubt(now_ns)
        if not doubt.hold(packet):
            self._core.invalid["unheld"] += 1
        self._core.lines[self._line].heard_ns = now_ns
        if packet.messages and not is_missing:
            self._pass_on(session, packet, now_ns, wall_ns, shed)  # counted as a duplicate
        wait_ns = DOUBT_NS if session.end is None else DOUBT_ENDED_NS
        if doubt.packets > 1 and now_ns - max(doubt.since_ns, session.head_ns) >= wait_ns:
            self._begin_again(view, doubt, now_ns, wall_ns, shed)

    def _came_again(self, view: LineView, doubt: Doubt, packet: codec.Packet) -> bool:
        """Whether everything from the first to the head came once more, up to this packet."""
        session = view.session
        if 2 * doubt.covered < packet.sequence - FIRST or session.head_ns >= doubt.since_ns:
            return False
        if doubt.packets < AGAIN_PACKETS and not any(map(session.differs, doubt.held)):
            return False
        if doubt.since_ns - view.since_ns >= AGAIN_NS:
            return True
        self._sessions.repeated.append((packet.session.decode("latin-1").rstrip(), doubt.covered))
        return False

    def _begin_again(
        self, view: LineView, doubt: Doubt, now_ns: int, wall_ns: int, shed: bool
    ) -> None:
        """Take a session's name for that of a new one, whose packets are those in doubt."""
        former = view.session
        session = self._sessions.begin_again(former)
        first = doubt.held[0]
        self._sessions.restarts.append(
            (former.name.decode("latin-1").rstrip(), former.head, first.sequence)
        )
        view.doubt = None
        self._join(first, session, now_ns)
        view.session, view.head, view.since_ns = session, 0, doubt.since_ns
        for packet in doubt.held:
            self._take(view, packet, now_ns, wall_ns, shed)

    def _is_missing(self, session: MoldSession, packet: codec.Packet) -> bool:
        stream = self._stream_of(session.session)
        if stream is None or not packet.messages:
            return False
        return not stream.receiver.has(packet.sequence, len(packet.messages))

    def _stream_of(self, session: int) -> Stream | None:
        peer = self._core.peers.get(session)
        return None if peer is None else peer.streams.get(self._topic)

    def _pass_on(
        self,
        session: MoldSession,
        packet: codec.Packet,
        now_ns: int,
        wall_ns: int,
        shed: bool,
    ) -> None:
        if packet.messages:
            if packet.sequence <= DIGESTS_MAX:
                session.note_messages(packet)
            frame = self._frame(session, packet, wall_ns)
        else:
            earliest = control.Heartbeat(0)
            frame = wire.control_frame(
                Kind.HEARTBEAT, session.session, earliest, sequence=packet.sequence,
                topic=self._topic.encode(),
            )  # fmt: skip
        self._core.receive_frame(self._line, frame, now_ns=now_ns, shed=shed)
        if packet.is_end:
            self._end(session, packet.sequence)
        elif session.end is not None and session.head > session.end:
            session.end = None  # it was not the end
            stream = self._stream_of(session.session)
            for ending in [one for one in self._core.endings if one.stream is stream]:
                self._core.endings.remove(ending)

    def _end(self, session: MoldSession, stop: int) -> None:
        if stop < session.head:
            self._core.invalid["end"] += 1
            return
        stream = self._stream_of(session.session)
        if session.end is None and stream is not None:
            session.end = stop
            self._core.endings.append(Ending(stream, stop, announced=True))

    def _frame(self, session: MoldSession, packet: codec.Packet, wall_ns: int) -> bytes:
        if self._prefix_of is not session:
            self._prefix_of = session
            self._prefix = wire.stream_prefix(self._topic, session.session)
        prefix, messages, buffer = self._prefix, packet.messages, self._buffer
        return pack_slice(prefix, packet.sequence, wall_ns, messages, None, None, buffer)[0]

    def _begin(self, packet: codec.Packet, now_ns: int) -> LineView:
        """Join a session that was not known; `FrameError` where it is not believed."""
        core = self._core
        known = self._sessions.find(packet.session)
        state = core.lines[self._line]
        current = core.peers.get(state.session or 0)
        if current is not None and (known is None or state.session != known.session):
            goes_on = now_ns - current.heard_ns < SUCCESSOR_NS
            if goes_on and not self._has_ended(current):
                # a feed has one session at a time: somebody forged this one, which is not noted
                raise FrameError("session")
        session = known or self._sessions.newest(packet.session)
        head = self._join(packet, session, now_ns)
        view = LineView(session, head, now_ns, now_ns)
        if len(self._views) >= _VIEWS_MAX:
            del self._views[next(iter(self._views))]
        self._views[packet.session] = view
        return view

    def _has_ended(self, peer: Session) -> bool:
        try:
            return self._sessions.of(peer.session).end is not None
        except KeyError:
            return True

    def _join(self, packet: codec.Packet, session: MoldSession, now_ns: int) -> int:
        """Make a session the line's; returns the head that a cursor knows of it, or 0."""
        core, joiner = self._core, self._core.joiner
        state = core.lines[self._line]
        head = 0
        if session.session not in core.peers:
            joiner.make_room()
            head = self._make_peer(packet, session, now_ns)
        former, state.session, state.contacted = state.session, session.session, True
        if former in core.peers and all(line.session != former for line in core.lines):
            self._give_up(core.peers[former], now_ns)
        return head

    def _make_peer(self, packet: codec.Packet, session: MoldSession, now_ns: int) -> int:
        core = self._core
        name = packet.session.decode("latin-1").rstrip()
        welcome = control.Welcome(name, "", -1.0)
        returning = core.lines[self._line].contacted
        peer = Session(session.session, welcome, returning=returning, now_ns=now_ns)
        peer.joined = peer.direct = True
        peer.probe_line = self._line
        core.peers[session.session] = peer
        unasked = None if self._sessions.can_ask else self._unasked()
        stream = core.stream_table.add(peer, self._topic, unasked)
        start, resumed = self._start(packet, peer)
        stream.receiver.start_at(start, now_ns=now_ns)
        session.head, session.head_ns = max(session.head, resumed), now_ns
        if core.cursor is not None:
            core.cursor.note(peer)
        core.commands.append(Command("connect", self._line, session.session))
        return resumed

    def _give_up(self, peer: Session, now_ns: int) -> None:
        """End a session that another one took the place of."""
        stream = peer.streams.get(self._topic)
        self._core.joiner.end_peer(peer, now_ns)
        if stream is not None and not self._has_ended(peer):
            self._core.endings.append(Ending(stream, stream.receiver.head, announced=False))

    def _unasked(self) -> ReceiverConfig:
        """Return how a stream is received that nobody can be asked for."""
        core = self._core
        wait_ms = min(core.config.multicast.unasked_ms, core.config.nack.deadline_ms)
        never = replace(
            core.config.nack, delay_ms=_NEVER_MS, retry_ms=_NEVER_MS,
            retry_ceiling_ms=_NEVER_MS, deadline_ms=wait_ms,
        )  # fmt: skip
        return replace(core.receiver_config, nack=never)

    def _start(self, packet: codec.Packet, peer: Session) -> tuple[int, int]:
        """Return where a stream starts, and where a cursor says so, or 0."""
        start, cursor = self._core.start, self._core.cursor
        resumed = None if cursor is None else cursor.start_of(peer.session, self._topic, FIRST)
        if resumed is not None:
            return max(FIRST, resumed), max(FIRST, resumed)
        if start.kind == "sequence":
            return max(FIRST, start.position), 0
        if start.kind == "earliest" or peer.returning:
            return FIRST, 0
        return packet.sequence, 0
