"""Frames that came before their turn."""

import enum
from bisect import bisect_left, bisect_right
from typing import Generic, NamedTuple, TypeVar

from recovery.ranges import RangeSet

T = TypeVar("T")


class InsertResult(enum.Enum):
    """What became of a frame that was put into a `ReorderBuffer`."""

    KEPT = "kept"
    DUPLICATE = "duplicate"
    """Every message of it is held already; dropped."""
    FULL = "full"
    """A bound would have been passed; dropped."""


class HeldFrame(NamedTuple, Generic[T]):
    """A frame of messages `[start, stop)` that takes `size` bytes."""

    start: int
    stop: int
    size: int
    item: T


class ReorderBuffer(Generic[T]):
    """Frames of one stream, sorted by sequence, until it is their turn.

    Frames may overlap partially; they are kept as they are, and the caller skips what it has. A
    frame wholly inside what is held is a duplicate.

    Args:
        bytes_max: bound on the sum of the sizes, in bytes; at least 0 (0 holds nothing that has
            a size).
        frames_max: bound on the number of frames; at least 0.

    Attributes:
        bytes_held: sum of the sizes held.

    """

    __slots__ = (
        "_bytes_max",
        "_covered",
        "_frames",
        "_frames_max",
        "_starts",
        "bytes_held",
    )

    def __init__(self, bytes_max: int, frames_max: int) -> None:
        self._bytes_max = bytes_max
        self._frames_max = frames_max
        self._starts: list[int] = []
        self._frames: list[HeldFrame[T]] = []
        self._covered = RangeSet()
        self.bytes_held = 0

    def insert(self, start: int, stop: int, size: int, item: T) -> InsertResult:
        """Keep a frame, unless it is a duplicate or a bound is met.

        Raises `ValueError` for an empty or negative range or a negative size.
        """
        if not 0 <= start < stop or size < 0:
            raise ValueError(
                f"a frame needs 0 <= start < stop, size >= 0: [{start}, {stop}) {size}"
            )
        covered = self._covered
        if covered.overlap(start, stop) == [(start, stop)]:
            return InsertResult.DUPLICATE
        if self.bytes_held + size > self._bytes_max or len(self._frames) >= self._frames_max:
            return InsertResult.FULL
        index = bisect_right(self._starts, start)
        self._starts.insert(index, start)
        self._frames.insert(index, HeldFrame(start, stop, size, item))
        covered.add(start, stop)
        self.bytes_held += size
        return InsertResult.KEPT

    def evict_beyond(
        self, beyond: int, size: int, bytes_max: int | None, *, frames_max: int
    ) -> list[HeldFrame[T]]:
        """Take out frames until one of `size` bytes fits, those first that begin last.

        Only frames from `beyond` on are taken, at most `frames_max`, and none where that would not
        do. `bytes_max` None: the buffer's own bound. It returns them in order of their starts. The
        frames held must not overlap, as those of a receiver that has started do not.
        """
        needed = self.bytes_held + size - (self._bytes_max if bytes_max is None else bytes_max)
        at = len(self._frames)
        while (needed > 0 or at >= self._frames_max) and at and self._starts[at - 1] >= beyond:
            at -= 1
            needed -= self._frames[at].size
        short = needed > 0 or at >= self._frames_max
        if short or len(self._frames) - at > frames_max:
            return []
        taken = self._frames[at:]
        del self._frames[at:], self._starts[at:]
        for frame in taken:
            self.bytes_held -= frame.size
            self._covered.remove(frame.start, frame.stop)
        return taken

    def pop(self, expected: int) -> HeldFrame[T] | None:
        """Take out a frame that covers `expected`, or None.

        Frames that lie wholly below `expected` are dropped; what has been popped counts as
        covered no more, except where another frame holds it, too.
        """
        while self._starts and self._starts[0] <= expected:
            frame = self._take_first()
            if frame.stop > expected:
                return frame
        return None

    def drain(self) -> list[HeldFrame[T]]:
        """Take out every frame, in order of their starts."""
        frames, self._frames = self._frames, []
        self._starts.clear()
        self._covered.clear()
        self.bytes_held = 0
        return frames

    @property
    def covered(self) -> RangeSet:
        """The sequences held now; a view that must not be changed."""
        return self._covered

    @property
    def messages_held(self) -> int:
        """Number of different messages held; O(1)."""
        return self._covered.size

    def _take_first(self) -> HeldFrame[T]:
        del self._starts[0]
        frame = self._frames.pop(0)
        self.bytes_held -= frame.size
        self._covered.remove(frame.start, frame.stop)
        for other in self._frames[: bisect_left(self._starts, frame.stop)]:
            self._covered.add(other.start, other.stop)
        return frame
