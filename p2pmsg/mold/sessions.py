"""The sessions of MoldUDP64 feeds, as all lines of a subscriber know them.

A session that begins again under its name uses its sequences a second time. Its packets look like
old ones that come late; what distinguishes them is that no line goes on meanwhile.
"""

from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

_MS: Final = 1_000_000
LATE_NS: Final = 50 * _MS
"""So soon after a packet that went on, one that falls back is late. After that it may be of a
session that begins again: it is dropped, and asked for where it is missing."""
AGAIN_NS: Final = 500 * _MS
"""After so long one of the first packets, or any packet after the end, shows that the session has
begun again: longer than a network delays what it repeats."""
AGAIN_LATER_NS: Final = 2000 * _MS
"""After so long any packet does: twice the time between heartbeats."""
FIRST_MAX: Final = 256
"""A packet that begins with so low a sequence is one of the first."""
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
        head: the highest next sequence that any line showed.
        went_on_ns: when a line last went on, or said where it stands.
        end: the sequence after its last one, once it has said that it is over.
        is_former: whether its name has begun again since.

    """

    name: bytes
    number: int
    session: int
    head: int = 0
    went_on_ns: int = 0
    end: int | None = None
    is_former: bool = False

    def begins_again_ns(self, sequence: int) -> int:
        """Return how long no line must have gone on for a packet to show that it begins again."""
        is_soon = self.end is not None or sequence <= FIRST_MAX
        return AGAIN_NS if is_soon else AGAIN_LATER_NS


@dataclass(slots=True)
class LineView:
    """What one line has shown of a session.

    Attributes:
        session: which it is now.
        head: the highest next sequence that this line showed.
        unconfirmed: whether its last packet fell back, so that it may have begun again.

    """

    session: MoldSession
    head: int
    unconfirmed: bool = False


class MoldSessions:
    """Names and sessions; one object for all lines of a subscriber.

    Args:
        can_ask: whether there is any request server.

    Attributes:
        restarts: (name, how far it was, where it is) of sessions that began again, until the shell
            has reported them.

    """

    def __init__(self, *, can_ask: bool) -> None:
        self.can_ask = can_ask
        self.restarts: deque[tuple[str, int, int]] = deque(maxlen=64)
        self._newest: dict[bytes, MoldSession] = {}
        self._by_id: dict[int, MoldSession] = {}

    def find(self, name: bytes) -> MoldSession | None:
        """Return the last session of a name; None: there was none."""
        return self._newest.get(name)

    def newest(self, name: bytes) -> MoldSession:
        """Return the last session of a name, which is a new one where there was none."""
        return self.find(name) or self._make(name, 0)

    def begin_again(self, former: MoldSession) -> MoldSession:
        """Return the session that came after `former` under its name; another line may know it."""
        newest = self._newest.get(former.name)
        if newest is not None and newest.number > former.number:
            return newest
        former.is_former = True
        return self._make(former.name, former.number + 1)

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
