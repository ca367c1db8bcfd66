"""How far a subscriber has come in what a publisher sent, as its marks count it."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from recovery import StreamReceiver

WAITING_MAX: Final = 64
"""Marks with gaps before them that are remembered; the oldest go first."""

_Mark = tuple[int, list[tuple[StreamReceiver[Any], int]]]
"""A mark's position, and up to where each stream that missed something is to get."""


class ProgressMarks:
    """Remembers which marks of a session were read, and which of them have no gap before them.

    Attributes:
        read: the last mark read.
        complete: the last one without a gap before it.

    """

    __slots__ = ("_waiting", "complete", "read")

    def __init__(self) -> None:
        self.read = self.complete = 0
        self._waiting: deque[_Mark] = deque(maxlen=WAITING_MAX)

    def note(self, position: int, gaps: Sequence[StreamReceiver[Any]]) -> None:
        """Note that a mark was read, while these streams of its session missed something."""
        if not gaps:
            self.complete = position
            self._waiting.clear()
        else:
            self._waiting.append((position, [(receiver, receiver.head) for receiver in gaps]))
        self.read = position  # of this one: a false one must not stand for those that follow
        self.complete = min(self.read, self.complete)

    def has_completed(self) -> bool:
        """Note which marks have no gap before them any more; return whether there are such."""
        waiting, done = self._waiting, -1
        while waiting and all(
            receiver.expected >= head or not receiver.missing for receiver, head in waiting[0][1]
        ):
            done = waiting.popleft()[0]
        if done >= 0:
            self.complete = min(self.read, done)
        return done >= 0
