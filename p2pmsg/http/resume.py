"""What a connection that comes back must get before it joins the others. No clock, no socket."""

from collections.abc import Mapping
from dataclasses import dataclass, field
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
        unknown: streams that the connection names and nobody has; only where nothing is to be read.

    """

    rewound: dict[Key, tuple[int, int]] = field(default_factory=dict)
    read: tuple[Key, int, int] | None = None
    unknown: list[Key] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the connection has all, and may join."""
        return not self.rewound and self.read is None and not self.unknown


class Resume:
    """The positions of a connection until it joins.

    Args:
        positions: the next sequence of each stream that its id names.

    Attributes:
        positions: the same, as it advances.

    """

    def __init__(self, positions: Mapping[Key, int]) -> None:
        self.positions = dict(positions)

    def step(self, missed: Mapping[Key, int], went_back: Mapping[Key, int]) -> Step:
        """Return what to do next; a position above its stream's place is moved back at once.

        Args:
            missed: the next sequence of each stream that it is to have; see `Fanout.missed`.
            went_back: where publishers have gone back to since the last step.

        """
        found = Step()
        for key, at in missed.items():
            position = self.positions.get(key, 0)
            back = min(at, went_back.get(key, at))
            if position > back and key in self.positions:
                found.rewound[key] = back, position
                self.positions[key] = position = back
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
