"""A MoldUDP64 feed as a subscriber's core sees it: a stream of one session. No I/O.

Packets become DATA frames and heartbeats, whose sequences are the feed's own; what the core asks
for becomes requests. So a feed has the ledger, the gap policies and the second lines that every
stream has.
"""

from collections import deque
from hashlib import blake2b
from typing import TYPE_CHECKING

from p2pmsg import control, wire
from p2pmsg.batch import pack_slice
from p2pmsg.mold import codec
from p2pmsg.subscriber_lines import Command
from p2pmsg.subscriber_peer import Peer
from p2pmsg.wire import Frame, FrameError, Kind

if TYPE_CHECKING:
    from p2pmsg.subscriber_core import SubscriberCore

FIRST = 1
"""The first sequence of every MoldUDP64 session."""
SUCCESSOR_NS = 2_000_000_000
"""How long a session that has not ended is silent before another one is believed: twice the time
between heartbeats."""
REQUESTS_PER_NACK = 64
_ASKED_MAX = 4096


def session_id(session: bytes) -> int:
    """Return the 64-bit id that stands for a session's name."""
    return int.from_bytes(blake2b(session, digest_size=8).digest(), "big")


class MoldFeed:
    """Takes the packets of one line.

    Attributes:
        ended: the sessions that have said that they are over.

    """

    def __init__(self, core: "SubscriberCore", line: int, topic: str) -> None:
        self._core = core
        self._line = line
        self._topic = topic
        self._names: dict[int, bytes] = {}
        self._prefix: dict[bytes, tuple[int, bytes]] = {}
        self._buffer = bytearray()
        self.ended: set[int] = set()

    def receive(self, data: bytes | memoryview, *, now_ns: int, wall_ns: int, shed: bool) -> None:
        """Take a packet; what is malformed is counted."""
        core = self._core
        try:
            packet = codec.read_packet(data)
        except FrameError as error:
            core.frames_received += 1
            core.invalid[str(error)] += 1
            return
        known = self._prefix.get(packet.session)
        if known is None:
            known = self._begin(packet, now_ns)
            if known is None:
                core.frames_received += 1
                core.invalid["session"] += 1
                return
        session, prefix = known
        if packet.messages:
            frame = self._frame(prefix, packet, wall_ns)
        else:
            earliest = control.Heartbeat(0)
            frame = wire.control_frame(
                Kind.HEARTBEAT, session, earliest, sequence=packet.sequence,
                topic=self._topic.encode(),
            )  # fmt: skip
            if packet.is_end:
                self.ended.add(session)
        core.receive_frame(self._line, frame, now_ns=now_ns, shed=shed)

    def name_of(self, session: int) -> bytes:
        """Return a session's name."""
        return self._names[session]

    def answer(self, packet: codec.Packet, *, wall_ns: int) -> bytes:
        """Return the frame of a packet that answers a request."""
        return self._frame(self._prefix[packet.session][1], packet, wall_ns)

    def _frame(self, prefix: bytes, packet: codec.Packet, wall_ns: int) -> bytes:
        messages, buffer = packet.messages, self._buffer
        return pack_slice(prefix, packet.sequence, wall_ns, messages, None, None, buffer)[0]

    def _begin(self, packet: codec.Packet, now_ns: int) -> tuple[int, bytes] | None:
        """Join a session that was not known."""
        core, desk = self._core, self._core.desk
        session = session_id(packet.session)
        state = core.lines[self._line]
        current = core.peers.get(state.session or 0)
        goes_on = current is not None and now_ns - current.heard_ns < SUCCESSOR_NS
        if goes_on and state.session != session and state.session not in self.ended:
            return None  # a feed has one session at a time: somebody forged this one
        peer = core.peers.get(session)
        if peer is None:
            try:
                desk._forget_peers()
            except FrameError:
                return None
            name = packet.session.decode("latin-1").rstrip()
            welcome = control.Welcome(name, "", -1.0)
            peer = Peer(session, welcome, returning=state.contacted, now_ns=now_ns)
            peer.joined = peer.direct = True
            peer.probe_line = self._line
            core.peers[session] = peer
            stream = core._add_stream(peer, self._topic)
            stream.receiver.start_at(self._start(packet, peer), now_ns=now_ns)
            if core.cursor is not None:
                core.cursor.note(peer)
            core.commands.append(Command("connect", self._line, session))
        former, state.session, state.contacted = state.session, session, True
        if former in core.peers and all(line.session != former for line in core.lines):
            desk.end_peer(core.peers[former], now_ns)
        known = session, wire.stream_prefix(self._topic, session)
        self._names[session] = packet.session
        self._prefix[packet.session] = known
        return known

    def _start(self, packet: codec.Packet, peer: Peer) -> int:
        start, cursor = self._core.start, self._core.cursor
        resumed = None if cursor is None else cursor.start_of(peer.session, self._topic, FIRST)
        if resumed is not None:
            return max(FIRST, resumed)
        if start.kind == "sequence":
            return max(FIRST, start.position)
        if start.kind == "earliest" or peer.returning:
            return FIRST
        return packet.sequence


class MoldRequests:
    """Turns what the core asks for into requests to retransmission servers, and answers back.

    An answer may bring less than was asked for; the rest is asked for at once. Each time that a
    range is asked for anew, it is another server's turn.

    Attributes:
        outgoing: (server, packet) to send, oldest first; a server is an index.
        requests_sent: packets put there.

    """

    def __init__(self, feed: MoldFeed, session: int, servers: int) -> None:
        self._feed = feed
        self._name = feed.name_of(session)
        self._servers = servers
        self._turn = 0
        self._per_answer = 16
        self._asked: dict[int, int] = {}
        self.outgoing: deque[tuple[int, bytes]] = deque()
        self.requests_sent = 0

    def send(self, data: bytes) -> None:
        """Take what the core would send to a publisher; all but NACKs have no meaning here."""
        frame = Frame(data)
        if frame.kind != Kind.NACK or not self._servers:
            return
        self._turn += 1
        for start, stop in control.read_body(frame, control.Nack).ranges:
            while start < stop and len(self.outgoing) < REQUESTS_PER_NACK:
                count = min(stop - start, self._per_answer)
                self._ask(start, count)
                start += count

    def receive(self, data: bytes, *, wall_ns: int) -> bytes | None:
        """Take a datagram of a server; returns the frame for the core, or None."""
        packet = codec.read_packet(data)
        if packet.session != self._name:
            raise FrameError("session")
        if not packet.messages:
            return None
        brought = len(packet.messages)
        wanted = self._asked.pop(packet.sequence, brought)
        self._per_answer = max(1, brought if brought < wanted else max(brought, self._per_answer))
        if brought < wanted:
            self._ask(packet.sequence + brought, wanted - brought)
        return self._feed.answer(packet, wall_ns=wall_ns)

    def _ask(self, start: int, count: int) -> None:
        if len(self._asked) >= _ASKED_MAX:
            self._asked.clear()
        self._asked[start] = count
        self.requests_sent += 1
        self.outgoing.append((self._turn % self._servers, codec.request(self._name, start, count)))
