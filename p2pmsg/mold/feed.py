"""A MoldUDP64 feed as a subscriber's core sees it: a stream of one session. No I/O.

Packets become DATA frames and heartbeats, whose sequences are the feed's own; what the core asks
for becomes requests. So a feed has the ledger, the gap policies and the second lines that every
stream has.
"""

from typing import NamedTuple, Protocol

from p2pmsg import control, wire
from p2pmsg.mold import codec
from p2pmsg.mold.sessions import LATE_NS, LineView, MoldSession, MoldSessions
from p2pmsg.publisher.packing import pack_slice
from p2pmsg.wire import FrameError, Kind

FIRST = 1
"""The first sequence of every MoldUDP64 session."""
SUCCESSOR_NS = 2_000_000_000
"""How long a session that has not ended is silent before another one is believed: twice the time
between heartbeats."""
_VIEWS_MAX = 64
"""Sessions that a line's packets are assigned to; the oldest is forgotten first."""


class SessionAnnounced(NamedTuple):
    """A session of a feed whose first packet has come.

    Attributes:
        session: its 64-bit id, and `name` what it is called.
        topic: that its messages get.
        first: the first sequence of any session.
        following: the sequence of the packet.
        can_ask: whether there is anybody to ask for what is missing.

    """

    session: int
    name: str
    topic: str
    first: int
    following: int
    can_ask: bool


class Arrival(NamedTuple):
    """When packets came, by the clock that no one sets and by the wall's.

    With `shed`, their messages are only noted to exist.
    """

    now_ns: int
    wall_ns: int
    shed: bool


class FeedTaker(Protocol):
    """Takes what a feed brings; `SubscriberCore` does.

    Events that a generator yields would cost 0.5 µs of a packet's 4.
    """

    def receive_frame(self, line: int, data: bytes, *, now_ns: int, shed: bool = False) -> None:
        """Take a frame."""

    def reject(self, reason: str) -> None:
        """Count what was dropped."""

    def on_heard(self, line: int, now_ns: int) -> None:
        """Note that a line is not silent."""

    def current_feed(self, line: int) -> tuple[int, int] | None:
        """Return the session of a line, and when it was last heard; None: it has none."""

    def announce(
        self, line: int, feed: SessionAnnounced, now_ns: int
    ) -> tuple[int | None, int | None]:
        """Take a session for the line's.

        Returns where a cursor resumes it, or 0, or None if it was known already; and the session
        that has ended because of it.
        """

    def end_feed(self, session: int, topic: str, stop: int | None) -> bool:
        """Note that a session ends at `stop`, or (None) at what is known; False: it is unknown."""

    def revoke_end(self, session: int, topic: str) -> None:
        """Take back that a session has ended."""


class MoldFeed:
    """Takes the packets of one line.

    Args:
        taker: gets the frames, and the sessions.
        line: which of its lines this is.
        topic: that the messages get.
        sessions: what all lines know of them.

    """

    def __init__(self, taker: FeedTaker, line: int, topic: str, sessions: MoldSessions) -> None:
        self._taker = taker
        self._line = line
        self._topic = topic
        self._sessions = sessions
        self._views: dict[bytes, LineView] = {}
        self._buffer = bytearray()
        self._prefix = b""
        self._prefix_of: MoldSession | None = None

    def receive(self, data: bytes | memoryview, arrival: Arrival) -> None:
        """Take a packet; what is malformed is counted."""
        try:
            packet = codec.read_packet(data)
            view = self._views.get(packet.session) or self._begin(packet, arrival.now_ns)
            self._take(view, packet, arrival)
        except FrameError as error:
            self._taker.reject(str(error))

    def name_of(self, session: int) -> bytes:
        """Return a session's name."""
        return self._sessions.of(session).name

    def answer(self, session: int, packet: codec.Packet, *, wall_ns: int) -> bytes:
        """Return the frame of a packet that answers a request."""
        return self._frame(self._sessions.of(session), packet, wall_ns)

    def unconfirmed(self, session: int) -> bool:
        """Whether a session has perhaps begun again, so that answers would be the new one's."""
        return any(
            view.unconfirmed and view.session.session == session for view in self._views.values()
        )

    def _take(self, view: LineView, packet: codec.Packet, arrival: Arrival) -> None:
        now_ns = arrival.now_ns
        falls_back = packet.sequence < view.head
        silent_ns = now_ns - view.session.went_on_ns
        is_former = view.session.is_former and not falls_back
        if is_former or (falls_back and silent_ns >= view.session.begins_again_ns(packet.sequence)):
            self._begin_again(view, packet, now_ns)
        elif falls_back and silent_ns >= LATE_NS:
            view.unconfirmed = True
            self._taker.reject("unconfirmed")
            self._taker.on_heard(self._line, now_ns)
            return
        session, stop = view.session, packet.sequence + len(packet.messages)
        if packet.sequence >= view.head:
            session.went_on_ns, view.unconfirmed = now_ns, False
        view.head = max(view.head, stop)
        session.head = max(session.head, stop)
        self._pass_on(session, packet, arrival)

    def _begin_again(self, view: LineView, packet: codec.Packet, now_ns: int) -> None:
        """Take a session's name for that of a new one, of which this packet is."""
        former = view.session
        view.session, view.head = self._sessions.begin_again(former), 0
        name = former.name.decode("latin-1").rstrip()
        self._sessions.restarts.append((name, former.head, packet.sequence))
        self._join(packet, view.session, now_ns)

    def _pass_on(self, session: MoldSession, packet: codec.Packet, arrival: Arrival) -> None:
        now_ns, wall_ns, shed = arrival
        if packet.messages:
            frame = self._frame(session, packet, wall_ns)
        else:
            earliest = control.Heartbeat(0)
            frame = wire.control_frame(
                Kind.HEARTBEAT, session.session, earliest, sequence=packet.sequence,
                topic=self._topic.encode(),
            )  # fmt: skip
        self._taker.receive_frame(self._line, frame, now_ns=now_ns, shed=shed)
        if packet.is_end:
            self._end(session, packet.sequence)
        elif session.end is not None and session.head > session.end:
            session.end = None  # it was not the end
            self._taker.revoke_end(session.session, self._topic)

    def _end(self, session: MoldSession, stop: int) -> None:
        if stop < session.head:
            self._taker.reject("end")
            return
        if session.end is None and self._taker.end_feed(session.session, self._topic, stop):
            session.end = stop

    def _frame(self, session: MoldSession, packet: codec.Packet, wall_ns: int) -> bytes:
        if self._prefix_of is not session:
            self._prefix_of = session
            self._prefix = wire.stream_prefix(self._topic, session.session)
        prefix, messages, buffer = self._prefix, packet.messages, self._buffer
        return pack_slice(prefix, packet.sequence, wall_ns, messages, None, None, buffer)[0]

    def _begin(self, packet: codec.Packet, now_ns: int) -> LineView:
        """Join a session that was not known; `FrameError` where it is not believed."""
        known = self._sessions.find(packet.session)
        current = self._taker.current_feed(self._line)
        if current is not None and (known is None or current[0] != known.session):
            goes_on = now_ns - current[1] < SUCCESSOR_NS
            if goes_on and not self._has_ended(current[0]):
                # a feed has one session at a time: somebody forged this one, which is not noted
                raise FrameError("session")
        session = known or self._sessions.newest(packet.session)
        head = self._join(packet, session, now_ns)
        view = LineView(session, head)
        if len(self._views) >= _VIEWS_MAX:
            del self._views[next(iter(self._views))]
        self._views[packet.session] = view
        return view

    def _has_ended(self, session: int) -> bool:
        try:
            return self._sessions.of(session).end is not None
        except KeyError:
            return True

    def _join(self, packet: codec.Packet, session: MoldSession, now_ns: int) -> int:
        """Make a session the line's; returns the head that a cursor knows of it, or 0."""
        name = packet.session.decode("latin-1").rstrip()
        can_ask = self._sessions.can_ask
        feed = SessionAnnounced(session.session, name, self._topic, FIRST, packet.sequence, can_ask)
        resumed, former = self._taker.announce(self._line, feed, now_ns)
        if resumed is not None:
            session.head, session.went_on_ns = max(session.head, resumed), now_ns
        if former is not None and not self._has_ended(former):
            self._taker.end_feed(former, self._topic, None)
        return resumed or 0
