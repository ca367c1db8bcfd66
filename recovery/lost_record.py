"""What a stream lost, and what of it came after all."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from recovery.delivery import Delivery
from recovery.loss import Loss, LossRanges, LossReason

T = TypeVar("T")


class LostRecord(Generic[T]):
    """The ranges that a stream lost, the lowest forgotten at a bound, and what came late of them.

    Args:
        ranges_max: how many ranges are kept.
        late_max: from how many frames on that came late no more are taken; 0: none ever.

    Attributes:
        forgotten: ranges that had to be forgotten.

    """

    __slots__ = ("_late", "_late_max", "_ranges", "_ranges_max", "forgotten")

    def __init__(self, ranges_max: int, late_max: int) -> None:
        self._ranges = LossRanges()
        self._ranges_max = ranges_max
        self._late: deque[Delivery[T]] = deque()
        self._late_max = late_max
        self.forgotten = 0

    def add(self, loss: Loss) -> None:
        """Note a loss."""
        self._ranges.add(loss)
        if len(self._ranges) > self._ranges_max:
            self._ranges.forget_first()
            self.forgotten += 1

    def count(self, start: int, stop: int) -> int:
        """Return how many messages of `[start, stop)` are known to be lost."""
        return self._ranges.overlap_count(start, stop)

    def came_late(self, start: int, stop: int, first: int, item: T) -> int:
        """Keep what of `[start, stop)` was skipped for handing on; returns how much is no loss now.

        `item` is the frame that has it, and `first` the sequence of that frame's first message.
        """
        if len(self._late) >= self._late_max:
            return 0
        found = 0
        for low, high in self._ranges.take(start, stop, LossReason.SKIPPED, self._ranges_max):
            self._late.append(Delivery(item, low, low - first, high - low, late=True))
            found += high - low
        return found

    def pop_late(self, expected: int) -> Delivery[T] | None:
        """Take out what came late, once its loss was told: when all before `expected` was."""
        late = self._late
        if late and late[0].sequence + late[0].count <= expected:
            return late.popleft()
        return None

    def rewind(self, expected: int) -> None:
        """Forget what is behind `expected`; what came late and was not handed on stays lost."""
        while self._late:
            late = self._late.popleft()
            self.add(Loss(late.sequence, late.sequence + late.count, LossReason.SKIPPED))
        self._ranges.forget_from(expected)

    @property
    def stop(self) -> int:
        """Where the last loss ends; 0 where there is none."""
        return self._ranges.stop

    @property
    def late_count(self) -> int:
        """How many messages came late and wait to be handed on."""
        return sum(delivery.count for delivery in self._late)

    @property
    def late_frames(self) -> int:
        """How many pieces of frames those are."""
        return len(self._late)

    def __iter__(self) -> Iterator[Loss]:
        return iter(self._ranges)
