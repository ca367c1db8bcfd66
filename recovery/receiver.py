"""The receiving side of one stream: what comes in by frames goes out in order, or as a loss.

Every sequence from `start` to `head` is in exactly one of four places, at any moment::

    handed | lost | missing | buffered        head - start == the sum of the four

`missing` is what the `NackScheduler` asks for; `buffered` is what waits for something before it.
"""

from dataclasses import dataclass
from random import Random
from typing import Generic, TypeVar

from recovery.checks import check_fields
from recovery.errors import RecoveryError
from recovery.feedback import AnswerTime, Feedback
from recovery.loss import Delivery, Loss, LossRanges, LossReason, LostRecord
from recovery.nack import GAPS_MAX, NackScheduler
from recovery.reorder import InsertResult, ReorderBuffer

T = TypeVar("T")
_AGES_MAX = 65_536
FRAMES_MAX = GAPS_MAX
"""Frames that wait, so that tiny ones cannot cost more in bookkeeping than in bytes: as many as
there may be gaps."""
LOSSES_MAX = 1024
"""Length of `lost_ranges`, and losses that wait for their place in the order before different
reasons are merged. They cost some 200 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverConfig:
    """How one stream is received. Raises `ValueError` for a value out of limits."""

    deadline: float = 10.0
    """Time without any progress after which what is missing is given up, in seconds; see
    `NackScheduler`."""

    asks: bool = True
    """Whether missing messages are asked for; otherwise they only may come."""

    reorder_bytes_max: int = 16 * 2**20
    """Bound on the bytes that wait for something before them. 16 MiB hold 100 ms of a gigabit
    link, several times what a repair takes. What does not fit is dropped and asked for again."""

    wait_for_repair: bool = True
    """Whether to wait for missing messages. False reports them lost at once, reason `SKIPPED`,
    for streams in which only the newest matters."""

    def __post_init__(self) -> None:
        check_fields(self, deadline=1e-9)


class StreamReceiver(Generic[T]):
    """The receiving side of one stream.

    Put frames, heartbeats, refusals and time in; take `next_output()` and `nacks.due()` out. A
    frame that arrives in order is handed straight on, whatever its size; one that arrives early
    waits within the bounds; one that would pass them is dropped and stays missing.

    Args:
        config: waits and bounds.
        rng: source of the jitter.
        feedback, answer: see `NackScheduler`.

    Attributes:
        nacks: when what is missing is asked for, and given up.
        handed: messages handed on by `next_output`.
        lost: messages reported lost, since the moment that is decided.
        duplicates: messages received again, partial overlaps included.
        late: messages that arrived after they had been decided to be lost; dropped, or without
            `wait_for_repair` handed on as late where there is space.
        repaired: messages that were missing and then arrived with `repaired=True`.

    """

    __slots__ = (
        "_ages_ns",
        "_config",
        "_earliest_early",
        "_expected",
        "_first_early",
        "_head",
        "_head_early",
        "_lost",
        "_pending_losses",
        "_reorder",
        "_slot",
        "_start",
        "duplicates",
        "handed",
        "late",
        "lost",
        "nacks",
        "repaired",
    )

    def __init__(
        self,
        config: ReceiverConfig,
        rng: Random,
        feedback: Feedback | None = None,
        answer: AnswerTime | None = None,
    ) -> None:
        self._config = config
        self.nacks = NackScheduler(
            rng, deadline=config.deadline, asks=config.asks, feedback=feedback, answer=answer
        )
        # Kept frames are (sequence of the item's first message, item), cut to what was new.
        self._reorder: ReorderBuffer[tuple[int, T]] = ReorderBuffer(
            config.reorder_bytes_max, FRAMES_MAX
        )
        self._slot: Delivery[T] | None = None  # the frame whose turn it is, outside the bounds
        self._pending_losses = LossRanges()
        late_max = 0 if config.wait_for_repair else FRAMES_MAX
        self._lost: LostRecord[T] = LostRecord(LOSSES_MAX, late_max)
        self._ages_ns: list[int] = []
        self._start = self._expected = self._head = -1  # -1: not started, matches no frame
        self._head_early = self._first_early = self._earliest_early = -1
        self.handed = self.lost = self.duplicates = self.late = self.repaired = 0

    def start_at(self, sequence: int, *, now_ns: int, head_max: int | None = None) -> None:
        """Want messages from `sequence` on; frames that came before this call are put in place.

        Those that reach beyond `head_max` are dropped: it cannot be that there are such.
        Raises `RecoveryError` where it has started.
        """
        if self.started:
            raise RecoveryError(f"the stream has started at {self._start} already")
        self._start = self._expected = self._head = sequence
        for held in self._reorder.drain():
            start, item = held.item
            if head_max is None or held.stop <= head_max:
                self.receive(start, held.stop - start, held.size, item, now_ns=now_ns)
        if head_max is None or self._head_early <= head_max:
            self.observe_head(self._head_early, now_ns=now_ns)

    def receive(
        self, start: int, count: int, size: int, item: T, *, now_ns: int, repaired: bool = False
    ) -> None:
        """Take a frame of `count` messages from sequence `start` on.

        `size` is what it costs in bytes, `repaired` says that it is an answer to a NACK. Raises
        `ValueError` for a count below 1 or a negative start or size.
        """
        if start == self._head == self._expected and count > 0:
            # In order with nothing outstanding, as nearly every frame: no bookkeeping at all.
            self._head = start + count
            self._slot = Delivery(item, start, 0, count)
            return
        if count < 1 or start < 0 or size < 0:
            raise ValueError(f"a frame needs count >= 1, start, size >= 0: {count, start, size}")
        if self._start < 0:
            self._hold_early(start, start + count, size, item)
            return
        stop = start + count
        if start < self._head:
            self._receive_below_head(start, min(stop, self._head), size, item, now_ns, repaired)
        if stop > self._head:
            self._receive_above_head(start, stop, size, item, now_ns)

    def accept(self, start: int, count: int) -> bool:
        """Take a frame that is in order, for handing on at once; False: use `receive` instead.

        It is `receive` and `next_output` in one, for nearly every frame: the caller hands on the
        whole frame if it returns True. `count` must be above 0.
        """
        if start == self._head == self._expected and self._slot is None:
            self._head = self._expected = start + count
            self.handed += count
            return True
        return False

    def observe_head(self, next_sequence: int, *, now_ns: int, earliest: int | None = None) -> None:
        """Take a heartbeat: the publisher's next sequence, and the earliest that it keeps.

        What is missing below `earliest` is lost at once, reason `EVICTED`; leave it None where
        somebody else may keep more. A head below the known one is out of date and ignored.
        """
        if next_sequence <= self._head and (earliest is None or earliest <= self._expected):
            return
        if self._start < 0:
            self._on_early(next_sequence, next_sequence)
            if earliest is not None and not 0 <= self._earliest_early <= earliest:
                self._earliest_early = earliest
            return
        if earliest is not None and earliest > self._expected:
            if earliest > self._head:
                evicted = min(earliest, max(next_sequence, self._head))
                if evicted > self._head:
                    start, self._head = self._head, evicted
                    self._lose([Loss(start, evicted, LossReason.EVICTED)])
            self.reject(self._expected, earliest, LossReason.EVICTED, now_ns=now_ns)
        if next_sequence > self._head:
            self._miss(next_sequence, now_ns)

    def hear_of(self, start: int, stop: int, *, now_ns: int) -> None:
        """Take note that `[start, stop)` was published; a frame with it came and was dropped."""
        if self._start < 0:
            self._on_early(start, stop)
        else:
            self.observe_head(stop, now_ns=now_ns)

    def reject(self, start: int, stop: int, reason: LossReason, *, now_ns: int) -> None:
        """Take an answer that `[start, stop)` cannot be had: what of it is missing is lost."""
        self._lose(self.nacks.reject(start, stop, reason, now_ns=now_ns))

    def give_up(self, reason: LossReason) -> None:
        """Give up everything that is missing: nobody is left to ask."""
        self._lose(self.nacks.give_up(reason))

    def rewind(self, expected: int, handed: int, *, now_ns: int) -> None:
        """Miss everything from `expected` on; before it, `handed` messages were handed on.

        For a caller whose calls an exception cut short, so that nothing else is certain.
        """
        self._reorder.drain()
        if not self.started:
            return
        self.nacks.give_up(LossReason.TIMEOUT)
        self._slot, self._pending_losses = None, LossRanges()
        self._lost.rewind(expected)
        head = max(self._head, expected)
        self._expected = self._head = expected
        self.handed, self.lost = handed, expected - self._start - handed
        if head > expected:
            self._miss(head, now_ns)

    def handle_timer(
        self, *, now_ns: int, answered_ns: int = -1, reason: LossReason | None = None
    ) -> None:
        """Give up what has been missing for too long; see `NackScheduler.expire`."""
        self._lose(self.nacks.expire(now_ns=now_ns, answered_ns=answered_ns, reason=reason))

    def evict_beyond(
        self, beyond: int, size: int, *, now_ns: int, bytes_max: int | None = None
    ) -> bool:
        """Make space for a frame of `size` bytes that ends at `beyond`, by frames further ahead.

        They are missing again. It is what keeps those that come first from keeping out those whose
        turn comes first. False, with nothing done, where it would not help. Default of `bytes_max`:
        the buffer's own bound.
        """
        nacks = self.nacks
        if not self._config.wait_for_repair or self._start < 0:
            return False
        # Each may be a gap of its own, and what they make way for may split one.
        gaps_left = nacks.space - 1
        taken = self._reorder.evict_beyond(beyond, size, bytes_max, frames_max=gaps_left)
        for frame in taken:
            nacks.miss_again(frame.start, frame.stop, now_ns=now_ns)
        return bool(taken)

    def next_deadline_ns(self) -> int | None:
        """Return when `handle_timer` or `nacks.due` has something to do, or None."""
        return self.nacks.next_deadline_ns()

    def next_output(self) -> Delivery[T] | Loss | None:
        """Return what comes next in the order, or None while that is missing or unknown."""
        delivery = self._slot
        if self._lost.late_frames and (late := self._lost.pop_late(self._expected)) is not None:
            self.handed += late.count
            return late
        if delivery is not None:
            self._slot = None
        else:
            expected = self._expected
            if expected == self._head:
                return None
            loss = self._pending_losses.pop_at(expected)
            if loss is not None:
                self._expected = loss.stop
                return loss
            held = self._reorder.pop(expected)
            if held is None:
                return None
            first, item = held.item
            delivery = Delivery(item, expected, expected - first, held.stop - expected)
        self._expected += delivery.count
        self.handed += delivery.count
        return delivery

    def has(self, start: int, count: int) -> bool:
        """Whether all of a frame has come or is lost, so that it need not come again."""
        stop = start + count
        return self._start >= 0 and stop <= self._head and not self.nacks.overlap(start, stop)

    def lacks(self, start: int, count: int) -> int:
        """Return how many messages of a frame have neither come nor been lost."""
        stop = start + count
        if self._start < 0:
            held = self._reorder.covered.overlap(start, stop)
            return count - sum(last - first for first, last in held)
        gaps = self.nacks.overlap(start, stop)
        return max(0, stop - max(self._head, start)) + sum(last - first for first, last in gaps)

    def drain_repair_ages(self) -> list[int]:
        """Take out the times from detection to repair, in ns, one for each gap repaired."""
        ages, self._ages_ns = self._ages_ns, []
        return ages

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
        _, held_stop = self._reorder.covered.last or (0, 0)
        stop = max(self._expected, self._lost.stop, held_stop)
        return stop if self._slot is None else max(stop, self._slot.sequence + self._slot.count)

    @property
    def published(self) -> int:
        """How many messages are known to have been published since `start`."""
        return self._head - self._start

    @property
    def missing(self) -> int:
        """How many messages are missing now."""
        return self.nacks.missing_count

    @property
    def missing_ranges(self) -> list[tuple[int, int]]:
        """The gaps, in order."""
        return self.nacks.ranges()

    @property
    def buffered(self) -> int:
        """How many messages wait to be handed on; 0 until started."""
        if self._start < 0:
            return 0
        in_slot = 0 if self._slot is None else self._slot.count
        return self._reorder.messages_held + in_slot + self._lost.late_count

    @property
    def bytes_held(self) -> int:
        """Bytes in the reorder buffer; the one frame whose turn it is does not count."""
        return self._reorder.bytes_held

    @property
    def lost_ranges(self) -> list[Loss]:
        """What was lost, sorted, coalesced by reason; the lowest are forgotten at `LOSSES_MAX`."""
        return list(self._lost)

    def _hold_early(self, start: int, stop: int, size: int, item: T) -> None:
        result = self._reorder.insert(start, stop, size, (start, item))
        if result is InsertResult.DUPLICATE:
            self.duplicates += stop - start
        self._on_early(start, stop)

    def _on_early(self, start: int, stop: int) -> None:
        self._head_early = max(self._head_early, stop)
        if not 0 <= self._first_early <= start:
            self._first_early = start

    def _receive_below_head(
        self, start: int, stop: int, size: int, item: T, now_ns: int, repaired: bool
    ) -> None:
        known = max(start, min(stop, self._start))
        held_before = stop - known
        for piece_start, piece_stop in self.nacks.overlap(known, stop):
            held_before -= piece_stop - piece_start
            if not self.nacks.can_fill(piece_start, piece_stop) or not self._keep(
                piece_start, piece_stop, size, start, item, now_ns
            ):
                self.nacks.set_loss_reason(piece_start, piece_stop, LossReason.OVERFLOW)
                continue
            self._ages_ns += self.nacks.fill(piece_start, piece_stop, now_ns=now_ns)
            del self._ages_ns[_AGES_MAX:]
            if repaired:
                self.repaired += piece_stop - piece_start
        if held_before:
            late = self._lost.count(known, stop)
            self.late += late
            self.duplicates += held_before - late
            if late:
                self.lost -= self._lost.came_late(known, stop, start, item)

    def _receive_above_head(self, start: int, stop: int, size: int, item: T, now_ns: int) -> None:
        if start > self._head and not self._miss(start, now_ns):
            return
        piece_start = self._head
        if self._keep(piece_start, stop, size, start, item, now_ns):
            self._head = stop
            return
        if not self._config.wait_for_repair:
            self._head = stop
            self._lose([Loss(piece_start, stop, LossReason.OVERFLOW)])
        else:
            self._miss(stop, now_ns, LossReason.OVERFLOW)

    def _keep(self, start: int, stop: int, size: int, first: int, item: T, now_ns: int) -> bool:
        if start == self._expected and self._slot is None:
            # Bounds do not apply: a full buffer must not keep out what it is waiting for.
            self._slot = Delivery(item, start, start - first, stop - start)
            return True
        kept = (start, stop, size, (first, item))
        result = self._reorder.insert(*kept)
        if result is InsertResult.FULL and self.evict_beyond(stop, size, now_ns=now_ns):
            result = self._reorder.insert(*kept)
        return result is InsertResult.KEPT

    def _miss(self, stop: int, now_ns: int, reason: LossReason = LossReason.TIMEOUT) -> bool:
        """Make `[head, stop)` missing, or lost; False where it cannot be recorded, head unmoved."""
        start = self._head
        if not self._config.wait_for_repair:
            self._head = stop
            self._lose([Loss(start, stop, LossReason.SKIPPED)])
            return True
        if not self.nacks.add(start, stop, now_ns=now_ns, reason=reason):
            return False
        self._head = stop
        return True

    def _lose(self, losses: list[Loss]) -> None:
        for loss in losses:
            self.lost += loss.count
            merge = len(self._pending_losses) >= LOSSES_MAX
            self._pending_losses.add(loss, merge_reasons=merge)
            self._lost.add(loss)
