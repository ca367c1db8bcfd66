"""When to ask for what is missing, and when to give it up.

RFC 5401 calls the question a NACK. README.md in this folder draws the states of a gap.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from recovery.checks import to_ns
from recovery.deadlines import DeadlineHeap
from recovery.feedback import AnswerTime, Feedback
from recovery.loss import Loss, LossReason
from recovery.ranges import RangeSet
from recovery.retry import RetryPolicy

RETRY_NS: Final = 20_000_000
"""Wait before the second NACK, longer where the publisher's answers took longer; it doubles with
each one. Twice the time for which a publisher ignores repeated NACKs, so that a retry is never
ignored."""
RETRY_MAX_NS: Final = 1_000_000_000
"""Longest wait between two NACKs of a gap, the same as the rarest heartbeat: a publisher that comes
back is asked within a second."""
_RETRY: Final = RetryPolicy(RETRY_NS, RETRY_MAX_NS, jitter=0.1)
"""A jitter of a tenth is enough that receivers which lost the same frame do not ask in step for
long."""
GAPS_MAX = 4096
"""Gaps (not messages) of a stream; what would pass it is not recorded. They cost about 2 MiB, and
are more than any repairable stream has."""
RANGES_MAX: Final = 64
"""Gaps that are asked for at a time, so that the NACK fits one datagram."""
_PUT_OFF_MAX = 10  # deadlines: the longest that a gap without progress is kept for other answers
_LAPS_MAX = 50  # retries' time: the longest that a gap without space is not looked at


def answer_time() -> AnswerTime:
    """Return what times the answers of one publisher."""
    return AnswerTime(RETRY_NS, RETRY_NS, RETRY_MAX_NS)


@dataclass(slots=True, eq=False)
class Gap:
    """Messages `[start, stop)` that are missing, and how often they were asked for."""

    start: int
    stop: int
    detected_ns: int
    reason: LossReason
    attempts: int = 0
    put_off: bool = False
    """It waits until there is space for what it lacks."""
    first_ns: int = -1
    """When it was first asked for since its last progress; -1: it was not asked for yet."""
    asked_ns: int = -1
    """Since when it waits for an answer: it was asked for last, or had one; -1: not asked for."""


class NackScheduler:
    """The gaps of one stream, and when each is asked for again or given up.

    A gap is one range, however long; nothing here costs more for ten million missing messages than
    for one. Receiver and publisher go through a stream from the front, so progress in the first
    gap also keeps those after it alive: they are only waiting for their turn.

    Over TCP a gap is not given up while answers to others come: on a slow link, or for a process
    with little of a processor, its own comes after them.

    Args:
        rng: source of the jitter.
        deadline: time without any progress after which a gap is given up, in seconds. Default 10.0,
            which outlast a restart of the publisher and a TCP reconnection. While other answers of
            its publisher come over the recovery channel, its own may come after them: then it is
            kept for ten times as long at most.
        asks: whether anything is asked for; otherwise a gap only waits for its deadline.
        feedback: draws the waits, for a multicast. Default None: at once, then as `RETRY_NS` says.
        answer: how long answers take, for all streams of a publisher. Default None: of its own.

    Attributes:
        missing_count: how many messages are missing now.
        sent: NACKs counted, one a gap and attempt.

    """

    __slots__ = (
        "_admitted",
        "_answer",
        "_crowded",
        "_deadline_ns",
        "_delay_ns",
        "_due",
        "_expiry",
        "_feedback",
        "_front_start",
        "_gaps",
        "_gaps_max",
        "_hurried",
        "_line_ns",
        "_quiet_until_ns",
        "_restart_ns",
        "_rng",
        "_starts",
        "asks",
        "missing_count",
        "sent",
    )

    def __init__(
        self,
        rng: Random,
        *,
        deadline: float = 10.0,
        asks: bool = True,
        feedback: Feedback | None = None,
        answer: AnswerTime | None = None,
    ) -> None:
        self.asks = asks
        self._gaps_max = GAPS_MAX
        self._starts: list[int] = []
        self._gaps: list[Gap] = []
        self._feedback = feedback
        self._delay_ns = 0
        self._deadline_ns = to_ns(deadline)
        self._answer = answer or answer_time()
        if feedback is not None:
            self._answer = feedback.answer
        self._rng = rng
        self._due: DeadlineHeap[Gap] = DeadlineHeap()
        self._expiry: DeadlineHeap[Gap] = DeadlineHeap()
        self._quiet_until_ns = 0
        self._front_start = -1
        self._crowded = False
        self._admitted = self._line_ns = self._hurried = 0
        self._restart_ns = 0  # nothing is given up before
        self.missing_count = self.sent = 0

    def can_fill(self, start: int, stop: int) -> bool:
        """Return False where taking `[start, stop)` out would split a gap past `GAPS_MAX`."""
        if len(self._gaps) < self._gaps_max:
            return True
        touched = self._gaps[slice(*self._touched(start, stop))]
        # Of several gaps none is cut in its middle.
        return len(touched) != 1 or not touched[0].start < start < stop < touched[0].stop

    def overlap(self, start: int, stop: int) -> list[tuple[int, int]]:
        """List the parts of `[start, stop)` that are missing, in order."""
        low, high = self._touched(start, stop)
        return [(max(start, gap.start), min(stop, gap.stop)) for gap in self._gaps[low:high]]

    @property
    def stop(self) -> int:
        """Where the last gap ends; 0 where there is none."""
        return self._gaps[-1].stop if self._gaps else 0

    def ranges(self) -> list[tuple[int, int]]:
        """List the gaps in order; touching ones are not merged."""
        return [(gap.start, gap.stop) for gap in self._gaps]

    def __len__(self) -> int:
        return len(self._gaps)

    @property
    def space(self) -> int:
        """How many more gaps may be recorded."""
        return self._gaps_max - len(self._gaps)

    def delay(self, delay_ns: int) -> None:
        """Wait so long before the first NACK of a gap from now on, in ns.

        By default nothing: TCP does not reorder, so that a gap is a loss.
        """
        self._delay_ns = delay_ns

    def wait_for_line(self, wait_ns: int) -> None:
        """Wait for another line before a new gap is asked for, until `hurry`; 0: there is none.

        Where nobody can be asked, a gap is given up so much later.
        """
        self._line_ns = wait_ns

    def hurry(self, stop: int, *, now_ns: int) -> None:
        """Ask now for the gaps that end by `stop`: no other line will bring them."""
        index = bisect_left(self._starts, self._hurried)
        while index < len(self._gaps) and self._gaps[index].stop <= stop:
            gap = self._gaps[index]
            due_ns = max(now_ns + self._first_wait_ns(), self._quiet_until_ns)
            if gap.attempts == 0 and due_ns < (self._due.get(gap) or 0):
                self._due.set(gap, due_ns)
            self._hurried = gap.start + 1
            index += 1

    def add(
        self, start: int, stop: int, *, now_ns: int, reason: LossReason = LossReason.TIMEOUT
    ) -> bool:
        """Record `[start, stop)` as missing; it must overlap no gap that is known.

        Returns False, with nothing recorded, where `GAPS_MAX` is met. A range that touches the last
        gap before it was asked for becomes part of it. `reason` is that of its loss if it is given
        up; see `set_loss_reason`. Raises `ValueError` for an empty range or one that overlaps a
        gap.
        """
        if not 0 <= start < stop:
            raise ValueError(f"a gap needs 0 <= start < stop, not [{start}, {stop})")
        low, high = self._touched(start, stop)
        if low != high:
            raise ValueError(f"[{start}, {stop}) overlaps a gap that is known")
        due_ns = max(now_ns + self._first_wait_ns(self._line_ns), self._quiet_until_ns)
        if low > 0 and low == len(self._gaps):
            last = self._gaps[-1]
            # A gap whose answer is on its way waits for that; what is new must not wait with it.
            is_fresh = last.attempts == 0 and (self._due.get(last) or 0) <= due_ns
            if last.stop == start and is_fresh and last.reason is reason:
                last.stop = stop
                self.missing_count += stop - start
                self._restart_deadline(last, now_ns)
                return True
        if len(self._gaps) >= self._gaps_max:
            return False
        gap = Gap(start, stop, now_ns, reason)
        self._insert(low, gap, due_ns)
        self._restart_deadline(gap, now_ns)
        self.missing_count += stop - start
        return True

    def miss_again(self, start: int, stop: int, *, now_ns: int) -> None:
        """Record `[start, stop)` as missing once more: it had come, and gave its space away.

        It becomes one with the gaps that it touches. The whole starts again, and its next NACK is
        in `RETRY_NS`, since answers may be on their way, and well before it is given up. Raises
        `ValueError` for a range that is empty, overlaps a gap, or would be a gap past `GAPS_MAX`.
        """
        low, high = self._touched(start, stop)
        if not 0 <= start < stop or low != high or len(self._gaps) >= self._gaps_max:
            raise ValueError(f"[{start}, {stop}) overlaps a gap, or is one too many")
        detected_ns, reason = now_ns, LossReason.OVERFLOW
        if low < len(self._gaps) and self._gaps[low].start == stop:
            after = self._gaps[low]
            stop, detected_ns, reason = after.stop, after.detected_ns, after.reason
            self._delete(after)
        if low > 0 and self._gaps[low - 1].stop == start:
            before = self._gaps[low - 1]
            start, reason = before.start, before.reason
            detected_ns = min(detected_ns, before.detected_ns)
            self._delete(before)
            low -= 1
        gap = Gap(start, stop, detected_ns, reason)
        wait_ns = min(self._answer_ns(), self._deadline_ns // 2)
        due_ns = max(now_ns + wait_ns, self._quiet_until_ns)
        self._insert(low, gap, due_ns)
        self._restart_deadline(gap, now_ns)
        self.missing_count += stop - start

    def fill(self, start: int, stop: int, *, now_ns: int) -> list[int]:
        """Take out `[start, stop)`, which arrived.

        Returns, for each gap that is now wholly repaired, the time since it was detected in ns.
        What remains of a gap starts again: no attempts, a new deadline, and the next NACK in
        `RETRY_NS`, since the answer is on its way. Where a split would pass `GAPS_MAX`
        nothing happens: the caller asks `can_fill` first, and drops.
        """
        if not self.can_fill(start, stop):
            return []
        low, high = self._touched(start, stop)
        if low == high:
            return []
        ages: list[int] = []
        remains: list[Gap] = []
        for gap in self._gaps[low:high]:
            is_timed = self._feedback is None or gap.attempts == 1  # else it may be one by TCP
            if gap.asked_ns >= 0 and is_timed:
                # From the last question on: the wait doubles, so of a slow answer it is half or so,
                # and a question that was lost makes nobody slow.
                self._answer.answered(now_ns - gap.asked_ns)
                gap.asked_ns = now_ns
            remains = self._cut(gap, start, stop)
            if not remains:
                ages.append(now_ns - gap.detected_ns)
            for rest in remains:
                rest.attempts = 0
                self._due.set(rest, max(now_ns + self._answer_ns(), self._quiet_until_ns))
                self._restart_deadline(rest, now_ns)
        if low == 0:
            self._on_front_moved(now_ns)
            if self._crowded and self._gaps and not remains:
                self._gaps[0].attempts = 0
                self._due.set(self._gaps[0], max(now_ns, self._quiet_until_ns))
        return ages

    def reject(self, start: int, stop: int, reason: LossReason, *, now_ns: int) -> list[Loss]:
        """Take out `[start, stop)`, which cannot be had; returns what of it was missing.

        Where a split would pass `GAPS_MAX` nothing happens: the range stays missing, is asked for
        again and ends by a later refusal or by its deadline.
        """
        if not self.can_fill(start, stop):
            return []
        low, high = self._touched(start, stop)
        losses: list[Loss] = []
        for gap in self._gaps[low:high]:
            losses.append(Loss(max(start, gap.start), min(stop, gap.stop), reason))
            self._cut(gap, start, stop)
        if losses and low == 0:
            self._on_front_moved(now_ns)  # an answer, if a bad one: the queue moves on
        return losses

    def set_loss_reason(self, start: int, stop: int, reason: LossReason) -> None:
        """Set why the gaps that overlap `[start, stop)` are lost, should they be given up.

        It stands for the whole of such a gap, until the next call.
        """
        low, high = self._touched(start, stop)
        for gap in self._gaps[low:high]:
            gap.reason = reason

    def postpone(self, *, now_ns: int, delay_ns: int, stopped_ns: int | None = None) -> None:
        """Be quiet until `now_ns + delay_ns`: the receiver had paused reading.

        Answers may lie unread in its queue, so nothing is asked for until then, and deadlines start
        over. They move by `stopped_ns` instead where it is given: for so long nothing was done at
        all.

        Who has no space calls it at each look, without `stopped_ns`, which costs the same for a
        thousand gaps as for one.
        """
        self._quiet_until_ns = max(self._quiet_until_ns, now_ns + delay_ns)
        if stopped_ns is None:
            self._restart_ns = self._quiet_until_ns + self._deadline_ns
            return
        for gap in self._gaps:
            self._due.set(gap, max(self._due.get(gap) or 0, self._quiet_until_ns))
            expiry_ns = max(self._expiry.get(gap) or now_ns, self._restart_ns)
            self._expiry.set(gap, expiry_ns + stopped_ns)

    def due(
        self, *, now_ns: int, window: int | None = None, crowded: bool = False
    ) -> list[tuple[int, int]]:
        """Return the ranges to ask for now, sorted, touching ones coalesced, and count the attempt.

        At most `RANGES_MAX` gaps are taken at a time; where more are due, `next_deadline_ns()`
        stays in the past and the next call gives more.

        Answers for which there is no space are worse than none: what begins `window` sequences
        after the first gap waits for that to move. While it is `crowded` all but the first gap
        wait, and each gap that becomes the first is asked for at once.
        """
        by_attempt = self.due_by_attempt(now_ns=now_ns, window=window, crowded=crowded)
        return list(RangeSet(pair for ranges in by_attempt.values() for pair in ranges))

    def due_by_attempt(
        self, *, now_ns: int, window: int | None = None, crowded: bool = False
    ) -> dict[int, RangeSet]:
        """Do as `due` does, and group the ranges by which attempt it is, from 1 on.

        With feedback a gap that has just become the first starts again.
        """
        found: dict[int, RangeSet] = {}
        taken, self._crowded = 0, crowded
        if not self._gaps or now_ns < self._quiet_until_ns or not self.asks:
            return found
        front = self._gaps[0]
        if self._feedback is not None and front.start != self._front_start:
            self._front_start = front.start
            if front.attempts:
                front.attempts = 0
                self._due.set(front, now_ns)
        if window is not None and front.start + window > self._admitted:
            self._admit(front.start + window, now_ns)
        while taken < RANGES_MAX:
            gap = self._due.pop_due(now_ns)
            if gap is None:
                break
            laps = 0 if window is None else (gap.start - front.start) // window
            if laps or (crowded and gap is not front):
                if laps:
                    gap.put_off = True
                    self._admitted = min(self._admitted, gap.start)
                self._due.set(gap, now_ns + min(max(laps, 1), _LAPS_MAX) * RETRY_NS)
                continue
            due_ns = now_ns + self._retry_wait_ns(gap.attempts)
            if not gap.attempts:
                gap.first_ns = now_ns
            gap.asked_ns = now_ns
            gap.attempts += 1
            self._due.set(gap, due_ns)
            found.setdefault(gap.attempts, RangeSet()).add(gap.start, gap.stop)
            self.sent += 1
            taken += 1
        return found

    def expire(
        self, *, now_ns: int, answered_ns: int = -1, reason: LossReason | None = None
    ) -> list[Loss]:
        """Give up the gaps whose time is used up; returns them as losses, sorted.

        What was asked for is not given up while other answers come, of any stream.

        Args:
            now_ns: monotonic time.
            answered_ns: when the last answer came, over a channel that keeps their order. Default
                -1: there was none.
            reason: why all of them are lost. Default: each gap has its own.

        """
        losses: list[Loss] = []
        while (first_ns := self._first_expiry_ns()) is not None and first_ns <= now_ns:
            gap = self._expiry.pop_due(now_ns)
            assert gap is not None
            until_ns = self._waits_for_others(gap, answered_ns, now_ns)
            if until_ns is not None:
                self._expiry.set(gap, until_ns)
                continue
            losses.append(Loss(gap.start, gap.stop, reason or gap.reason))
            self._delete(gap)
        return sorted(losses, key=lambda loss: loss.start)

    def give_up(self, reason: LossReason) -> list[Loss]:
        """Give up every gap for `reason`; returns them as losses, sorted."""
        losses = [Loss(gap.start, gap.stop, reason) for gap in self._gaps]
        self._gaps.clear()
        self._starts.clear()
        self._due.clear()
        self._expiry.clear()
        self.missing_count = self._hurried = 0
        return losses

    def next_deadline_ns(self) -> int | None:
        """Return when `due` or `expire` has something to do, or None while there is no gap."""
        expiry_ns, due = self._first_expiry_ns(), self._due.first()
        if due is None or not self.asks:
            return expiry_ns
        due_ns = max(due[0], self._quiet_until_ns)
        return due_ns if expiry_ns is None else min(due_ns, expiry_ns)

    def _touched(self, start: int, stop: int) -> tuple[int, int]:
        """Find the indices of the gaps that overlap `[start, stop)`."""
        if start >= stop:
            return 0, 0
        low = bisect_right(self._starts, start)
        if low > 0 and self._gaps[low - 1].stop > start:
            low -= 1
        return low, bisect_left(self._starts, stop, low)

    def _insert(
        self, index: int, gap: Gap, due_ns: int | None, expiry_ns: int | None = None
    ) -> None:
        self._starts.insert(index, gap.start)
        self._gaps.insert(index, gap)
        if due_ns is not None:
            self._due.set(gap, due_ns)
        if expiry_ns is not None:
            self._expiry.set(gap, expiry_ns)

    def _restart_deadline(self, gap: Gap, now_ns: int) -> None:
        """Give a gap its full time from now on."""
        expiry_ns = max(now_ns, self._quiet_until_ns) + self._deadline_ns + self._line_ns
        self._expiry.set(gap, expiry_ns)

    def _first_expiry_ns(self) -> int | None:
        """Return the first deadline."""
        first = self._expiry.first()
        return None if first is None else max(first[0], self._restart_ns)

    def _delete(self, gap: Gap) -> None:
        index = bisect_left(self._starts, gap.start)
        del self._starts[index]
        del self._gaps[index]
        self._due.discard(gap)
        self._expiry.discard(gap)
        self.missing_count -= gap.stop - gap.start

    def _cut(self, gap: Gap, start: int, stop: int) -> list[Gap]:
        """Take `[start, stop)` out of `gap`; returns what remains of it."""
        start, stop = max(start, gap.start), min(stop, gap.stop)
        if start == gap.start and stop == gap.stop:
            self._delete(gap)
            return []
        index = bisect_left(self._starts, gap.start)
        self.missing_count -= stop - start
        if start == gap.start:
            gap.start = self._starts[index] = stop
            return [gap]
        if stop == gap.stop:
            gap.stop = start
            return [gap]
        rest = replace(gap, start=stop)
        gap.stop = start
        self._insert(index + 1, rest, self._due.get(gap), self._expiry.get(gap))
        return [gap, rest]

    def _first_wait_ns(self, line_ns: int = 0) -> int:
        """Return how long a gap waits before it is asked for."""
        wait_ns = max(self._delay_ns, line_ns)
        return wait_ns if self._feedback is None else wait_ns + self._feedback.delay_ns()

    def _retry_wait_ns(self, attempt: int) -> int:
        """Return how long a gap that is asked for after so many attempts waits for its answer."""
        if self._feedback is not None:
            return self._feedback.retry_ns(attempt)
        return _RETRY.wait_ns(attempt, self._rng, self._answer.wait_ns)

    def _answer_ns(self) -> int:
        """Return how long an answer that is on its way is waited for."""
        return self._answer.wait_ns if self._feedback is None else self._feedback.retry_ns(0)

    def _admit(self, stop: int, now_ns: int) -> None:
        """Ask at once for gaps before `stop` that were put off for lack of space."""
        starts = self._starts
        for gap in self._gaps[bisect_left(starts, self._admitted) : bisect_left(starts, stop)]:
            if gap.put_off:
                gap.put_off = False
                self._due.set(gap, max(now_ns, self._quiet_until_ns))
        self._admitted = stop

    def _on_front_moved(self, now_ns: int) -> None:
        """Note an answer for the first gap: as long as it goes on, all others wait their turn."""
        self._restart_ns = max(self._restart_ns, now_ns + self._deadline_ns)

    def _waits_for_others(self, gap: Gap, answered_ns: int, now_ns: int) -> int | None:
        """Return until when a gap is kept because other answers come, if it is."""
        if answered_ns < 0 or gap.first_ns < 0:
            return None
        until_ns = min(
            answered_ns + self._deadline_ns, gap.first_ns + _PUT_OFF_MAX * self._deadline_ns
        )
        return until_ns if until_ns > now_ns else None
