"""What a subscriber asks the request servers of a MoldUDP64 session for, and of which one. No I/O.

::

    asked in turn ──FAILURES_MAX requests without an answer, ANSWER_NS──▶ silent
         ▲───── an answer to a copy of a request, which it gets each PROBE_NS ────┘

A request that a server leaves without an answer costs a gap a whole retry, which goes to all
servers but silent ones. While all are silent, all are asked.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from p2pmsg import control
from p2pmsg.mold import codec
from p2pmsg.mold.feed import MoldFeed
from p2pmsg.wire import Frame, FrameError, Kind

_MS: Final = 1_000_000
REQUESTS_PER_NACK: Final = 64
"""So many are in flight at once, for each session."""
ASKED_MAX: Final = 4096
"""Requests that are remembered until their answer; beyond it all are forgotten."""
FAILURES_MAX: Final = 3
ANSWER_NS: Final = 250 * _MS
"""A server that answered none of so many requests, the first of them so long ago, is silent:
longer than a round trip across an ocean takes, and one lost request is no failure."""
WAIT_NS: Final = 100 * _MS
WAIT_MIN_NS: Final = 10 * _MS
"""How long a request is not repeated: twice a round trip, but that at least; at first, while none
was measured, `WAIT_NS`, and `ANSWER_NS` at most."""
PER_ANSWER: Final = 16
PACKET_BYTES: Final = 1400
"""How many messages are asked for at first, and how large a packet servers are known to fill."""
PROBE_NS: Final = 5000 * _MS
"""How long a silent server gets no copy."""


@dataclass(slots=True)
class _Server:
    """A request server.

    `unanswered` requests went there since its last answer, the first of them at `asked_ns`.
    """

    unanswered: int = 0
    asked_ns: int = 0
    is_silent: bool = False
    probe_due_ns: int = 0


@dataclass(slots=True)
class _Asked:
    """A request without an answer; it was sent at `since_ns` first, and last at `asked_ns`."""

    count: int
    servers: tuple[int, ...]
    since_ns: int
    asked_ns: int


class MoldRequests:
    """Turns what the core asks for into requests to request servers, and answers back.

    An answer may bring less than was asked for; the rest is asked for at once, and later requests
    ask for no more than came. After one that brought all, they ask for as many such messages as a
    packet holds. Each time that a range is asked for again, it is another server's turn; not before
    its answer can have come.

    Args:
        feed: of the session.
        session: its 64-bit id.
        servers: how many there are; a server is an index.

    Attributes:
        outgoing: (server, packet) to send, oldest first.
        silenced: servers that have become silent, until the shell has reported them.

    """

    def __init__(self, feed: MoldFeed, session: int, servers: int) -> None:
        self._feed = feed
        self._session = session
        self._name = feed.name_of(session)
        self._servers = [_Server() for _ in range(servers)]
        self._turn = 0
        self._per_answer = PER_ANSWER
        self._packet_bytes = PACKET_BYTES
        self._round_trip_ns: int | None = None
        self._wait_ns = WAIT_NS
        self._asked: dict[int, _Asked] = {}
        self.outgoing: deque[tuple[int, bytes]] = deque()
        self.silenced: deque[int] = deque(maxlen=64)

    def send(self, data: bytes, reachable: Sequence[int], *, now_ns: int) -> None:
        """Take what the core would send to a publisher; all but NACKs have no meaning here.

        `reachable` are the servers whose addresses are known. While it is unconfirmed whether the
        session is still the same one, nothing is asked: the answers might be another one's.
        """
        frame = Frame(data)
        if frame.kind != Kind.NACK or not reachable or self._feed.unconfirmed(self._session):
            return
        self._turn += 1
        self._drop_silent(now_ns)
        left = REQUESTS_PER_NACK
        for start, stop in control.read_body(frame, control.Nack).ranges:
            while start < stop and left:
                before = self._asked.get(start)
                if before is not None and now_ns - before.asked_ns < self._wait_ns:
                    count = before.count  # its answer is on its way
                else:
                    count = min(stop - start, self._per_answer)
                    self._ask(start, count, self._choose(start, reachable, now_ns), now_ns)
                start += count
                left -= 1

    def receive(
        self, data: bytes, server: int | None, *, now_ns: int, wall_ns: int
    ) -> bytes | None:
        """Take a datagram of a server (None: of an unknown one); returns a frame for the core."""
        packet = codec.read_packet(data)
        if packet.session != self._name:
            raise FrameError("session")
        if self._feed.unconfirmed(self._session):
            return None
        asked = self._asked.pop(packet.sequence, None) if packet.messages else None
        if server is None and asked is not None and len(asked.servers) == 1:
            server = asked.servers[0]
        if server is not None:
            self._servers[server].is_silent, self._servers[server].unanswered = False, 0
        if not packet.messages:
            return None
        brought = len(packet.messages)
        self._packet_bytes = max(self._packet_bytes, len(data))
        if asked is not None:
            self._on_round_trip(now_ns - asked.since_ns)
            self._fit(brought, asked.count, len(data))
            if brought < asked.count:
                again = asked.servers if server is None else (server,)
                rest = asked.count - brought
                self._ask(packet.sequence + brought, rest, again, now_ns)
        return self._feed.answer(self._session, packet, wall_ns=wall_ns)

    def _fit(self, brought: int, wanted: int, size: int) -> None:
        """Ask for what fits into a packet, going by an answer and its size in bytes."""
        if brought < wanted:
            self._per_answer = brought
        else:
            fitting = min(wanted * self._packet_bytes // size, codec.MESSAGES_MAX)
            self._per_answer = max(self._per_answer, fitting)

    def _on_round_trip(self, took_ns: int) -> None:
        """Note how long an answer took; a request that was lost is a small part of many."""
        took_ns = min(took_ns, ANSWER_NS)
        before_ns = took_ns if self._round_trip_ns is None else self._round_trip_ns
        self._round_trip_ns = (7 * before_ns + took_ns) // 8
        self._wait_ns = min(max(WAIT_MIN_NS, 2 * self._round_trip_ns), ANSWER_NS)

    def _choose(self, start: int, reachable: Sequence[int], now_ns: int) -> tuple[int, ...]:
        """Return whom to ask for what begins at `start`."""
        well = [index for index in reachable if not self._servers[index].is_silent]
        if not well:
            return tuple(reachable)
        if start not in self._asked:
            well = [well[self._turn % len(well)]]
        for index in reachable:
            server = self._servers[index]
            if server.is_silent and now_ns >= server.probe_due_ns:
                server.probe_due_ns = now_ns + PROBE_NS
                well.append(index)
        return tuple(well)

    def _drop_silent(self, now_ns: int) -> None:
        for index, server in enumerate(self._servers):
            silent_ns = now_ns - server.asked_ns if server.unanswered >= FAILURES_MAX else 0
            if silent_ns >= ANSWER_NS and not server.is_silent:
                server.is_silent, server.probe_due_ns = True, now_ns + PROBE_NS
                self.silenced.append(index)

    def _ask(self, start: int, count: int, servers: tuple[int, ...], now_ns: int) -> None:
        if len(self._asked) >= ASKED_MAX:
            self._asked.clear()
        before = self._asked.get(start)
        since_ns = now_ns if before is None else before.since_ns
        self._asked[start] = _Asked(count, servers, since_ns, now_ns)
        for index in servers:
            server = self._servers[index]
            if not server.unanswered:
                server.asked_ns = now_ns
            server.unanswered += 1
        packet = codec.request(self._name, start, count)
        self.outgoing.extend((server, packet) for server in servers)
