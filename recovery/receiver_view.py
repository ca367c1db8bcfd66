"""What there is to see of the receiving side of a stream."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from recovery.delivery import Delivery
from recovery.loss import Loss
from recovery.lost_record import LostRecord
from recovery.nack import NackScheduler
from recovery.reorder import ReorderBuffer

T = TypeVar("T")


class ReceiverView(Generic[T]):
    """The places that a sequence can be in at a `StreamReceiver`, and how much is in each."""

    __slots__ = (
        "_earliest_early",
        "_expected",
        "_first_early",
        "_head",
        "_head_early",
        "_lost",
        "_nacks",
        "_reorder",
        "_slot",
        "_start",
    )

    _earliest_early: int
    _expected: int
    _first_early: int
    _head: int
    _head_early: int
    _lost: LostRecord[T]
    _nacks: NackScheduler
    _reorder: ReorderBuffer[tuple[int, T]]
    _slot: Delivery[T] | None
    _start: int

    @property
    def started(self) -> bool:
        """Whether `start_at` has been called."""
        return self._start >= 0

    @property
    def first_known(self) -> int:
        """Until started: the lowest sequence or head that was heard of, or 0."""
        return max(0, self._first_early)

    @property
    def earliest_known(self) -> int:
        """Until started: the lowest earliest sequence kept that was heard of, or 0."""
        return max(0, self._earliest_early)

    @property
    def start(self) -> int:
        """The first sequence wanted; 0 until started."""
        return max(0, self._start)

    @property
    def expected(self) -> int:
        """The next sequence to hand on; 0 until started."""
        return max(0, self._expected)

    @property
    def head(self) -> int:
        """The highest next sequence known, at least `expected`; 0 until started."""
        return max(0, self._head)

    @property
    def head_known(self) -> int:
        """The highest next sequence that was heard of, also before it is started."""
        return max(0, self._head, self._head_early)

    @property
    def received_stop(self) -> int:
        """Up to where messages have come or are lost for sure; 0 until started.

        It is below `head` where that was only heard of.
        """
        if self._start < 0:
            return 0
        stop = max(self._expected, self._lost.stop, *self._reorder_stops[-1:])
        return stop if self._slot is None else max(stop, self._slot.sequence + self._slot.count)

    @property
    def early_stops(self) -> tuple[int, ...]:
        """Until started: where what has come ends, range by range."""
        return () if self.started else tuple(self._reorder_stops)

    @property
    def _reorder_stops(self) -> list[int]:
        return [stop for _, stop in self._reorder.covered]

    @property
    def published(self) -> int:
        """How many messages are known to have been published since `start`."""
        return self._head - self._start

    @property
    def missing(self) -> int:
        """How many messages are missing now."""
        return self._nacks.missing_count

    @property
    def missing_stop(self) -> int:
        """Where the last gap ends; 0 where nothing is missing."""
        return self._nacks.stop

    @property
    def missing_ranges(self) -> Iterable[tuple[int, int]]:
        """The gaps, in order."""
        return self._nacks.ranges()

    @property
    def buffered(self) -> int:
        """How many messages wait to be handed on; 0 until started."""
        if self._start < 0:
            return 0
        slot = self._slot
        in_slot = slot.count if slot is not None else 0
        return self._reorder.messages_held + in_slot + self._lost.late_count

    @property
    def bytes_held(self) -> int:
        """Bytes in the reorder buffer; the one frame whose turn it is does not count."""
        return self._reorder.bytes_held

    @property
    def frames_held(self) -> int:
        """Frames in the reorder buffer; the one frame whose turn it is does not count."""
        return self._reorder.frames_held

    @property
    def nacks_sent(self) -> int:
        """NACKs that were due, one for each gap and attempt."""
        return self._nacks.nacks

    @property
    def lost_ranges(self) -> list[Loss]:
        """What was lost, sorted, coalesced by reason; the lowest are forgotten at `losses_max`."""
        return list(self._lost)

    @property
    def lost_ranges_forgotten(self) -> int:
        """Losses that `lost_ranges` had to forget."""
        return self._lost.forgotten
