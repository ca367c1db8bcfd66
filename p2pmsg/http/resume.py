"""What a connection that comes back must get before it joins the others. No clock, no socket.

A position may be after the place that this gateway has read up to: the connection comes from
another gateway, or this one is slow. It waits, and what does not come in time is taken for a
publisher that has gone back.

::

    position < at     read ─▶ from what publishers keep
    position > at     ahead ─▶ it waits until `at` is there ─▶ too late: rewound
    no `at`           unknown ─▶ it waits until the stream is there ─▶ too late: given up
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from p2pmsg.http.positions import Key

READ_MAX: Final = 4096
"""Messages of one step: others run in between, and what is read is bounded."""


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
        return not (self.rewound or self.read or self.ahead or self.unknown)


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

    def step(
        self, missed: Mapping[Key, int], went_back: Mapping[Key, int], *, is_late: bool = False
    ) -> Step:
        """Return what to do next; the position in a stream that went back is moved at once.

        Args:
            missed: the next sequence of each stream that it is to have; see `Fanout.missed`.
            went_back: where publishers have gone back to since the last step.
            is_late: whether what this gateway has read less of was waited for long enough. Such a
                stream goes on from where it was first found: what has come since then is new.

        """
        found = Step()
        for key, at in missed.items():
            if key not in self.positions and key in self._begun:  # at once, so that ids name it
                self.positions[key] = min(at, self._begun[key])
            position = self.positions.get(key, 0)
            back = min(at, went_back[key]) if key in went_back else position
            if is_late and position > at:
                back = min(back, self._ahead_of.get(key, at))
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

    def advance(self, key: Key, following: int) -> None:
        """Note that all before `following` was delivered or reported lost."""
        self.positions.pop(key, None)
        self.positions[key] = following

    def forget(self, key: Key) -> None:
        """Leave out a stream that nobody has."""
        del self.positions[key]
