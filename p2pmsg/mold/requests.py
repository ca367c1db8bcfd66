"""What a subscriber asks the request servers of a MoldUDP64 session for, and of which one. No I/O.

One is asked as long as it answers, and then the next one.
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
WAIT_NS: Final = 100 * _MS
"""How long an answer is waited for."""
FAILURES_MAX: Final = 3
"""When a server has left so many requests without an answer, one after the other, the next one is
asked."""
PER_ANSWER: Final = 16
PACKET_BYTES: Final = 1400
"""How many messages are asked for at first, and how large a packet servers are known to fill."""


@dataclass(slots=True)
class _Asked:
    """A request without an answer."""

    count: int
    server: int
    asked_ns: int


class MoldRequests:
    """Turns what the core asks for into requests to request servers, and answers back.

    An answer may bring less than was asked for; the rest is asked for at once, and later requests
    ask for no more than came. After one that brought all, they ask for as many such messages as a
    packet holds.

    Args:
        feed: of the session.
        session: its 64-bit id.

    Attributes:
        outgoing: (server, packet) to send, oldest first; a server is an index.
        silenced: servers that did not answer, until the shell has reported them.

    """

    def __init__(self, feed: MoldFeed, session: int) -> None:
        self._feed = feed
        self._session = session
        self._name = feed.name_of(session)
        self._server = self._unanswered = 0
        self._per_answer = PER_ANSWER
        self._packet_bytes = PACKET_BYTES
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
        left = REQUESTS_PER_NACK
        for start, stop in control.read_body(frame, control.Nack).ranges:
            while start < stop and left:
                before = self._asked.get(start)
                if before is not None and now_ns - before.asked_ns < WAIT_NS:
                    count = before.count  # its answer is on its way
                else:
                    if before is not None:
                        self._on_unanswered(before.server, reachable)
                    count = min(stop - start, self._per_answer)
                    if self._server not in reachable:
                        self._server = reachable[0]
                    self._ask(start, count, self._server, now_ns)
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
        if server is None and asked is not None:
            server = asked.server
        if server == self._server:
            self._unanswered = 0
        if not packet.messages:
            return None
        brought = len(packet.messages)
        self._packet_bytes = max(self._packet_bytes, len(data))
        if asked is not None:
            self._fit(brought, asked.count, len(data))
            if brought < asked.count:
                again = asked.server if server is None else server
                self._ask(packet.sequence + brought, asked.count - brought, again, now_ns)
        return self._feed.answer(self._session, packet, wall_ns=wall_ns)

    def _fit(self, brought: int, wanted: int, size: int) -> None:
        """Ask for what fits into a packet, going by an answer and its size in bytes."""
        if brought < wanted:
            self._per_answer = brought
        else:
            fitting = min(wanted * self._packet_bytes // size, codec.MESSAGES_MAX)
            self._per_answer = max(self._per_answer, fitting)

    def _on_unanswered(self, server: int, reachable: Sequence[int]) -> None:
        """Go on with the next server, if this one has left enough requests without an answer."""
        if server != self._server:
            return
        self._unanswered += 1
        if self._unanswered >= FAILURES_MAX:
            self._unanswered = 0
            self.silenced.append(server)
            self._server = next((one for one in reachable if one > server), reachable[0])

    def _ask(self, start: int, count: int, server: int, now_ns: int) -> None:
        if len(self._asked) >= ASKED_MAX:
            self._asked.clear()
        self._asked[start] = _Asked(count, server, now_ns)
        self.outgoing.append((server, codec.request(self._name, start, count)))
