"""What a stream hands on: messages, and exact ranges that are lost, each with its reason."""

import enum
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class Delivery(Generic[T]):
    """Hand on `count` messages of `item` after its first `skip`; the first is `sequence`."""

    item: T
    sequence: int
    skip: int
    count: int
    late: bool = False
    """It was reported as skipped before, and those after it were handed on."""


class LossReason(enum.StrEnum):
    """Why a range could not be delivered. The values are what users and `stats()` see."""

    EVICTED = "evicted"
    """No replay buffer or log keeps it any more."""

    TIMEOUT = "timeout"
    """It was asked for as often and as long as configured, without an answer, or nobody could be
    asked for it."""

    PUBLISHER_GONE = "publisher_gone"
    """Nobody is left who could have answered."""

    BUDGET = "budget"
    """The requester's retransmission budget did not allow it."""

    CRASH = "crash"
    """The publisher crashed and skipped these sequences, so that none is used twice; or a relay's
    log came back without them, and nobody else has them."""

    SKIPPED = "skipped"
    """The subscriber does not wait for repairs."""

    MALFORMED = "malformed"
    """What arrived in this place could not be read."""

    OVERFLOW = "overflow"
    """A bound of the receiver was met."""

    REWOUND = "rewound"
    """The publisher's log came back shorter: it has lost these itself, and gives their sequences to
    other messages."""

    DENIED = "denied"
    """There is no right to them."""

    TOO_OLD = "too_old"
    """There is no right to so much history."""

    TOO_LARGE = "too_large"
    """The message is larger than what its subscriber takes, `frame_bytes_max`."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A range of sequences that is lost: from `start` up to, without, `stop`; `reason` says why."""

    start: int
    stop: int
    reason: LossReason

    @property
    def count(self) -> int:
        """Number of messages lost."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Rewound(Loss):
    """The publisher has lost `[start, stop)` and gives these sequences to other messages.

    It is no loss in the ledger: what of it had not been handed on was lost before, by itself.
    """

    @property
    def count(self) -> int:
        """Number of messages lost by this: none."""
        return 0


class LossRanges:
    """Disjoint losses sorted by sequence; touching losses of one reason are kept as one.

    It has no bound of its own: the owner looks at `len()` and uses `forget_first` or
    `merge_reasons`, whichever result it has promised.
    """

    __slots__ = ("_losses", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._losses: list[Loss] = []

    def add(self, loss: Loss, *, merge_reasons: bool = False) -> None:
        """Add a loss that overlaps none that is held.

        With `merge_reasons` a touching neighbour of another reason swallows it, so that the number
        of ranges does not grow; the neighbour's reason then stands for both.
        """
        index = bisect_left(self._starts, loss.start)
        start, stop, reason = loss.start, loss.stop, loss.reason
        low = high = index
        if index > 0:
            before = self._losses[index - 1]
            if before.stop == start and (merge_reasons or before.reason is reason):
                low, start, reason = index - 1, before.start, before.reason
        if index < len(self._losses):
            after = self._losses[index]
            swallowed = merge_reasons and low == index
            if after.start == stop and (swallowed or after.reason is reason):
                high, stop, reason = index + 1, after.stop, after.reason
        self._starts[low:high] = [start]
        self._losses[low:high] = [Loss(start, stop, reason)]

    def pop_at(self, sequence: int) -> Loss | None:
        """Take out the loss that starts at `sequence`, or None. Cheap for the first one."""
        index = bisect_left(self._starts, sequence)
        if index == len(self._starts) or self._starts[index] != sequence:
            return None
        del self._starts[index]
        return self._losses.pop(index)

    def forget_first(self) -> Loss:
        """Take out the loss with the lowest sequences; `IndexError` when there is none."""
        del self._starts[0]
        return self._losses.pop(0)

    def forget_from(self, sequence: int) -> None:
        """Forget the losses that reach beyond `sequence`."""
        count = bisect_right(self._starts, sequence)
        while count and (count > len(self._losses) or self._losses[count - 1].stop > sequence):
            count -= 1
        del self._starts[count:]
        del self._losses[count:]

    @property
    def stop(self) -> int:
        """Where the last loss ends; 0 where there is none."""
        return self._losses[-1].stop if self._losses else 0

    def take(
        self, start: int, stop: int, reason: LossReason, ranges_max: int
    ) -> list[tuple[int, int]]:
        """Take out what of `[start, stop)` is held as lost for `reason`; returns it, in order.

        What would cut a range in two is left where more than `ranges_max` would be held then.
        """
        index = max(0, bisect_right(self._starts, start) - 1)
        taken: list[tuple[int, int]] = []
        while index < len(self._losses) and self._losses[index].start < stop:
            loss = self._losses[index]
            low, high = max(start, loss.start), min(stop, loss.stop)
            rest = [
                Loss(first, last, reason)
                for first, last in ((loss.start, low), (high, loss.stop))
                if first < last
            ]
            grows = len(rest) == 2 and len(self._losses) >= ranges_max
            if low >= high or loss.reason is not reason or grows:
                index += 1
                continue
            taken.append((low, high))
            self._losses[index : index + 1] = rest
            self._starts[index : index + 1] = [part.start for part in rest]
            index += len(rest)
        return taken

    def overlap_count(self, start: int, stop: int) -> int:
        """Count the sequences of `[start, stop)` that are held as lost."""
        index = max(0, bisect_right(self._starts, start) - 1)
        total = 0
        for loss in self._losses[index : bisect_left(self._starts, stop)]:
            total += max(0, min(stop, loss.stop) - max(start, loss.start))
        return total

    def __iter__(self) -> Iterator[Loss]:
        return iter(self._losses)

    def __len__(self) -> int:
        return len(self._losses)


class LostRecord(Generic[T]):
    """The ranges that a stream lost, the lowest forgotten at a bound, and what came late of them.

    Args:
        ranges_max: how many ranges are kept.
        late_max: from how many frames on that came late no more are taken; 0: none ever.

    """

    __slots__ = ("_late", "_late_max", "_ranges", "_ranges_max")

    def __init__(self, ranges_max: int, late_max: int) -> None:
        self._ranges = LossRanges()
        self._ranges_max = ranges_max
        self._late: deque[Delivery[T]] = deque()
        self._late_max = late_max

    def add(self, loss: Loss) -> None:
        """Note a loss."""
        self._ranges.add(loss)
        if len(self._ranges) > self._ranges_max:
            self._ranges.forget_first()

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
        """Take out what came late, once its loss was reported: when all before `expected` was."""
        late = self._late
        if late and late[0].sequence + late[0].count <= expected:
            return late.popleft()
        return None

    def rewind(self, expected: int) -> None:
        """Forget what is after `expected`; what came late and was not handed on stays lost."""
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
