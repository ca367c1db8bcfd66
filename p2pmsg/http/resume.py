"""What a connection that comes back must get before it joins the others. No clock, no socket.

A position may be after the place that this gateway has read up to: the connection comes from
another gateway, or this one was slow or suspended. Only heads that were asked for since then show
whether the publisher itself is at an earlier place.

::

    position < at     read ─▶ from what publishers keep
    position > at     ahead ─▶ heads of its publisher ─▶ before the position: rewound
                                                      └▶ else: wait until `at` is there
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from p2pmsg.http.positions import Key

READ_MAX: Final = 4096
"""Messages of one step: others run in between, and what is read is bounded."""
UNKNOWN_S: Final = 2.0
"""For how long all endpoints must have been there before a stream that none has is given up, and
for how long one that stands still is waited for."""
_STEP_S: Final = 0.5
"""As much counts at most from one look to the next: the rest the process was suspended."""


@dataclass(slots=True)
class Step:
    """What is to be done next.

    Attributes:
        rewound: streams whose publisher is at an earlier place than the connection: the new place
            and the connection's.
        read: the range that is to be read of one stream, from what publishers keep.
        ahead: streams that this gateway has read less of than the connection, and how far.
        unknown: streams that the connection names and nobody has; only where nothing is to be read.

    """

    rewound: dict[Key, tuple[int, int]] = field(default_factory=dict)
    read: tuple[Key, int, int] | None = None
    ahead: dict[Key, int] = field(default_factory=dict)
    unknown: list[Key] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the connection has all that this gateway has, and may join."""
        return not self.rewound and self.read is None and not self.unknown


class Resume:
    """The positions of a connection until it joins.

    Args:
        positions: the next sequence of each stream that its id names.
        begun: where it begins in streams that its id does not name. Default: at 0, as they began
            while it was away.

    Attributes:
        positions: the same, as it advances.

    """

    def __init__(
        self, positions: Mapping[Key, int], begun: Mapping[Key, int] = MappingProxyType({})
    ) -> None:
        self.positions = dict(positions)
        self._begun = begun
        self._ahead_of: dict[Key, int] = {}
        self._rewound: set[Key] = set()

    def step(self, missed: Mapping[Key, int], went_back: Mapping[Key, int]) -> Step:
        """Return what to do next; the position in a stream that went back is moved at once.

        Args:
            missed: the next sequence of each stream that it is to have; see `Fanout.missed`.
            went_back: where publishers have gone back to since the last step.

        """
        found = Step()
        for key, at in missed.items():
            if key not in self.positions and key in self._begun:  # at once, so that ids name it
                self.positions[key] = min(at, self._begun[key])
            position = self.positions.get(key, 0)
            back = min(at, went_back.get(key, at))
            if key in self._rewound:
                self._rewound.discard(key)
                back = min(back, self._ahead_of.get(key, at))
            elif key not in went_back:
                back = position
            if position > back and key in self.positions:
                found.rewound[key] = back, position
                self.positions[key] = position = back
            if position > at:
                found.ahead[key] = at
                self._ahead_of[key] = min(at, self._ahead_of.get(key, at))
                continue
            self._ahead_of.pop(key, None)
            if position < at and found.read is None:
                found.read = key, position, min(at, position + READ_MAX)
            elif key not in self.positions and not at:
                self.positions[key] = 0
        if found.read is None:
            found.unknown = [key for key in self.positions if key not in missed]
        return found

    def note_rewound(self, key: Key) -> None:
        """Note that the publisher of a stream that is ahead has gone back.

        The next step goes on from where the stream was first found: what has come since then is of
        the new messages.
        """
        self._rewound.add(key)

    def advance(self, key: Key, following: int) -> None:
        """Note that all before `following` was delivered or reported lost."""
        self.positions.pop(key, None)
        self.positions[key] = following

    def forget(self, key: Key) -> None:
        """Leave out a stream that nobody has."""
        del self.positions[key]


@dataclass(frozen=True, slots=True)
class SessionHeads:
    """Where the streams of a session stand, as its publisher says, or else relays.

    Attributes:
        following: the next sequence, by topic. Of several relays the highest.
        is_own: whether the publisher itself has said so; a relay may have read less than it.
        is_whole: whether all endpoints have answered, of the session or that they do not have it.

    """

    following: Mapping[str, int]
    is_own: bool
    is_whole: bool


class Patience:
    """How long a connection waits for what this gateway does not have yet, and what it does then.

    Only time in which the process runs counts.

    Args:
        timeout: `resume_timeout`, in seconds.
        now_s: the time.

    """

    def __init__(self, timeout: float, now_s: float) -> None:
        self._timeout = timeout
        self._looked_s = now_s
        self._waited_s = 0.0
        self._moved: dict[Key, tuple[int, float]] = {}

    def look(self, now_s: float) -> None:
        """Note that it is still waiting."""
        self._waited_s += min(max(now_s - self._looked_s, 0.0), _STEP_S)
        self._looked_s = now_s

    def judge(
        self, key: Key, position: int, at: int, heads: SessionHeads | None
    ) -> Literal["wait", "rewound", "join"]:
        """Return what to do about a stream that this gateway has read less of than the connection.

        Args:
            key: the stream.
            position: the connection's.
            at: how far this gateway has read; it is waited for while that moves.
            heads: what was asked for since the connection came; None: there is no answer yet.

        """
        known, since_s = self._moved.get(key, (-1, 0.0))
        if known != at:
            since_s = self._waited_s
            self._moved[key] = at, since_s
        still_s = self._waited_s - since_s
        head = None if heads is None else heads.following.get(key[1])
        if heads is None or head is None or head >= position:
            return "wait" if still_s < min(UNKNOWN_S, self._timeout) else "join"
        return "rewound" if heads.is_own or still_s >= self._timeout else "wait"

    def is_nowhere(self, key: Key, heads: SessionHeads | None, settled_s: float) -> bool:
        """Return whether a stream is given up that this gateway does not know.

        Args:
            key: the stream.
            heads: as in `judge`.
            settled_s: for how many seconds all endpoints have been connected.

        """
        if self._waited_s >= self._timeout:
            return True
        is_absent = heads is not None and heads.is_whole and key[1] not in heads.following
        return is_absent and settled_s >= UNKNOWN_S
