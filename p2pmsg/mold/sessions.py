"""The sessions of MoldUDP64 feeds, as all lines of a subscriber know them.

A session that begins again under the same name uses its sequences a second time. Its packets look
like old ones that come late. What distinguishes them::

    line's packets fall back ──▶ unconfirmed ──one at the head comes──▶ they were late
                                    ├──only such packets, and no line at the head, for
                                    │  UNCONFIRMED_NS──▶ a new session of that name
                                    └──all from the first to the head, AGAIN_NS after the former
                                       ones──▶ likewise

A later line does not fall back: it is compared with what it brought itself. Those that came from
the first to the head are believed where they say something else, or are many; a few packets that
say the same once more are taken for what the network repeats.
"""

from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from p2pmsg.mold.codec import Packet

_MS: Final = 1_000_000
UNCONFIRMED_NS: Final = 2000 * _MS
"""How long nothing but sequences that are known already must come, while the head is not heard of:
twice the time between heartbeats."""
UNCONFIRMED_ENDED_NS: Final = 500 * _MS
"""The same where the session has said that it is over."""
AGAIN_NS: Final = 500 * _MS
"""How much later than the line's first packets all of them must come again: longer than a network
delays what it repeats."""
QUIET_NS: Final = 50 * _MS
"""How long nothing of a session that has not ended came before one packet alone shows that it has
begun again. Else the next one must go on after it: a forged packet ends no busy session."""
AGAIN_PACKETS: Final = 32
"""So many packets in order are no repetition, though they say the same."""
DIGESTS_MAX: Final = 256
"""Messages, from the first on, of which a hash is kept to see whether others say the same."""
HELD_BYTES: Final = 4 * 2**20
"""What is kept meanwhile of what may be the new session; beyond it, it is asked for later."""
NAMES_MAX: Final = 4096
"""Sessions that are remembered; the oldest are forgotten first."""


def session_id(session: bytes, number: int = 0) -> int:
    """Return the 64-bit id that stands for a session's name, begun again `number` times."""
    again = b"" if not number else b"#%d" % number
    return int.from_bytes(blake2b(session + again, digest_size=8).digest(), "big")


@dataclass(slots=True)
class MoldSession:
    """One sequence space of a feed.

    Attributes:
        name: as it goes over the wire.
        number: how often the name had begun again before.
        session: its 64-bit id.
        head: the highest next sequence that any line showed, and when one last did.
        since_ns: when its first packet came.
        end: the sequence after its last one, once it has said that it is over.
        is_former: whether its name has begun again since.
        digests: hashes of its first messages, by sequence.
        last: the highest sequence of a message that came, and `last_digest` its hash: a packet that
            begins before the head, and reaches it, has that message.

    """

    name: bytes
    number: int
    session: int
    head: int = 0
    head_ns: int = 0
    since_ns: int = 0
    end: int | None = None
    is_former: bool = False
    digests: dict[int, int] = field(default_factory=dict)
    last: int = 0
    last_digest: int = 0

    def on_messages(self, packet: Packet) -> None:
        """Note what the first messages, and the last one, say; there is one at least."""
        start, messages = packet.sequence, packet.messages
        if start <= DIGESTS_MAX:
            for sequence, message in enumerate(messages[: DIGESTS_MAX + 1 - start], start):
                self.digests.setdefault(sequence, hash(message))
        last = start + len(messages) - 1
        if last > self.last:
            self.last, self.last_digest = last, hash(messages[-1])

    def differs(self, packet: Packet) -> bool:
        """Whether a packet is known to say something else than this session did."""
        start, messages = packet.sequence, packet.messages
        at = self.last - start
        if 0 <= at < len(messages) and hash(messages[at]) != self.last_digest:
            return True
        return start <= DIGESTS_MAX and any(
            self.digests.get(sequence, hash(message)) != hash(message)
            for sequence, message in enumerate(messages[: DIGESTS_MAX + 1 - start], start)
        )


@dataclass(slots=True)
class Unconfirmed:
    """Packets of a line that are perhaps those of a session that began again.

    Attributes:
        since_ns: when the first one came.
        packets: how many came.
        covered: different messages that came, in order, up to `reached`.
        held: the packets, and when each came, as far as there is space.

    """

    since_ns: int
    packets: int = 0
    covered: int = 0
    reached: int = 0
    held: deque[tuple[Packet, int]] = field(default_factory=deque)
    held_bytes: int = 0

    def uncovered(self, packet: Packet) -> int:
        """How many messages of a packet are not covered yet."""
        stop = packet.sequence + len(packet.messages)
        return max(0, stop - max(self.reached, packet.sequence))

    def hold(self, packet: Packet, now_ns: int) -> bool:
        """Keep a packet; False: there is no space for it."""
        size = sum(map(len, packet.messages)) + 64
        self.packets += 1
        self.covered += self.uncovered(packet)
        self.reached = max(self.reached, packet.sequence + len(packet.messages))
        if self.held_bytes + size > HELD_BYTES:
            return False
        self.held.append((packet, now_ns))
        self.held_bytes += size
        return True


@dataclass(slots=True)
class LineView:
    """What one line has shown of a session.

    Attributes:
        session: which it is now.
        head: the highest next sequence that this line showed.
        since_ns: when it brought the first packet.
        last_heard_ns: when it last brought a packet.
        unconfirmed: since its packets fell back.

    """

    session: MoldSession
    head: int
    since_ns: int
    last_heard_ns: int
    unconfirmed: Unconfirmed | None = None


class MoldSessions:
    """Names and sessions; one object for all lines of a subscriber.

    Args:
        can_ask: whether there is any request server.

    Attributes:
        restarts: (name, how far it was, where it is) of sessions that began again, until the shell
            has reported them.
        strange: (name, sequence) of packets that were dropped because they say something else than
            their session did, and yet do not show that it has begun again.

    """

    def __init__(self, *, can_ask: bool) -> None:
        self.can_ask = can_ask
        self.restarts: deque[tuple[str, int, int]] = deque(maxlen=64)
        self.strange: deque[tuple[str, int]] = deque(maxlen=64)
        self._newest: dict[bytes, MoldSession] = {}
        self._by_id: dict[int, MoldSession] = {}

    def find(self, name: bytes) -> MoldSession | None:
        """Return the last session of a name; None: there was none."""
        return self._newest.get(name)

    def newest(self, name: bytes) -> MoldSession:
        """Return the last session of a name, which is a new one where there was none."""
        return self.find(name) or self._make(name, 0)

    def begin_again(self, former: MoldSession, first: Packet) -> MoldSession:
        """Return the session that came after `former` under its name, and has its first packet.

        Other lines may have shown several; else it is a new one.
        """
        newest = self._newest.get(former.name)
        if newest is None or newest.number <= former.number:
            former.is_former = True
            return self._make(former.name, former.number + 1)
        for number in range(former.number + 1, newest.number):
            found = self._by_id.get(session_id(former.name, number))
            if found is not None and not found.differs(first):
                return found
        return newest

    def of(self, session: int) -> MoldSession:
        """Return the session that an id stands for; `KeyError` where it was forgotten."""
        return self._by_id[session]

    def _make(self, name: bytes, number: int) -> MoldSession:
        session = session_id(name, number)
        made = MoldSession(name, number, session)
        if len(self._by_id) >= NAMES_MAX:
            oldest = self._by_id.pop(next(iter(self._by_id)))
            if self._newest.get(oldest.name) is oldest:
                del self._newest[oldest.name]
        self._newest[name] = self._by_id[session] = made
        return made
