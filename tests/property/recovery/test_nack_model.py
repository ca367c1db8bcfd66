"""The scheduler of ranges against one dictionary entry a missing sequence."""

from random import Random
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from recovery import LossReason, NackScheduler, RangeSet, nack

MS = 1_000_000
GAPS_MAX = 6
STEP = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 3), st.integers(1, 12)),
    st.tuples(
        st.sampled_from(["fill", "fill", "refuse", "cause"]), st.integers(0, 60), st.integers(1, 12)
    ),
    st.tuples(st.just("miss_again"), st.integers(0, 60), st.integers(1, 12)),
    st.tuples(st.just("time"), st.integers(1, 400), st.just(0)),
    st.tuples(st.just("postpone"), st.integers(0, 100), st.integers(0, 1)),
)


class Run:
    """A scheduler next to a model that knows each missing sequence on its own."""

    def __init__(self, seed: int) -> None:
        with mock.patch.object(nack, "GAPS_MAX", GAPS_MAX):
            self.nacks = NackScheduler(Random(seed), deadline=0.3)
        self.now_ns = 0
        self.quiet_until_ns = 0
        self.added_ns: dict[int, int] = {}
        self.asked_ns: dict[int, int] = {}
        self.stop = 0

    def forget(self, sequences) -> None:
        for sequence in sequences:
            del self.added_ns[sequence]
            self.asked_ns.pop(sequence, None)

    def overlapping(self, start: int, stop: int) -> list[int]:
        return [sequence for sequence in range(start, stop) if sequence in self.added_ns]

    def add(self, distance: int, count: int) -> None:
        start = self.stop + distance
        if self.nacks.add(start, start + count, now_ns=self.now_ns):
            self.added_ns |= dict.fromkeys(range(start, start + count), self.now_ns)
            self.stop = start + count
        else:
            assert len(self.nacks) == GAPS_MAX

    def fill(self, start: int, count: int) -> None:
        missing = self.overlapping(start, start + count)
        ages_most = len(missing)
        if not self.nacks.can_fill(start, start + count):
            assert self.nacks.fill(start, start + count, now_ns=self.now_ns) == []
            assert len(self.nacks) == GAPS_MAX
            return
        ages = self.nacks.fill(start, start + count, now_ns=self.now_ns)
        assert len(ages) <= ages_most
        assert all(0 <= age <= self.now_ns for age in ages)
        self.forget(missing)

    def miss_again(self, start: int, count: int) -> None:
        """Give up what is there of a range, up to the last gap's end."""
        there = [n for n in range(start, min(start + count, self.stop)) if n not in self.added_ns]
        if not there or len(self.nacks) >= GAPS_MAX:
            return
        stop = next((n for n in range(there[0], self.stop) if n not in there), self.stop)
        self.nacks.miss_again(there[0], stop, now_ns=self.now_ns)
        # What it has become one with starts again, and may be asked for when that is.
        self.added_ns |= dict.fromkeys(range(there[0], stop), self.now_ns)

    def refuse(self, start: int, count: int) -> None:
        missing = self.overlapping(start, start + count)
        possible = self.nacks.can_fill(start, start + count)
        losses = self.nacks.reject(start, start + count, LossReason.EVICTED, now_ns=self.now_ns)
        assert all(loss.reason is LossReason.EVICTED for loss in losses)
        assert sequences_of((loss.start, loss.stop) for loss in losses) == missing * possible
        self.forget(missing * possible)

    def cause(self, start: int, count: int) -> None:
        self.nacks.set_loss_reason(start, start + count, LossReason.BUDGET)

    def postpone(self, delay_ms: int, kind: int) -> None:
        self.quiet_until_ns = max(self.quiet_until_ns, self.now_ns + delay_ms * MS)
        self.nacks.postpone(
            now_ns=self.now_ns,
            delay_ns=delay_ms * MS,
            stopped_ns=delay_ms * MS if kind == 1 else None,
        )

    def time(self, elapsed_ms: int, _: int) -> None:
        """Let time pass as a shell does: from deadline to deadline."""
        end_ns = self.now_ns + elapsed_ms * MS
        while (deadline_ns := self.nacks.next_deadline_ns()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.ask()
            self.give_up()
        self.now_ns = end_ns

    def ask(self) -> None:
        for start, stop in (due := self.nacks.due(now_ns=self.now_ns)):
            for sequence in range(start, stop):
                asked_ns = self.asked_ns.get(sequence, -(10**15))
                assert sequence in self.added_ns
                # A tenth is what jitter may take off.
                assert self.now_ns - asked_ns >= 18 * MS
                assert self.now_ns >= self.quiet_until_ns
                self.asked_ns[sequence] = self.now_ns
        assert due == sorted(due)

    def give_up(self) -> None:
        for loss in self.nacks.expire(now_ns=self.now_ns):
            assert loss.reason in (LossReason.TIMEOUT, LossReason.BUDGET, LossReason.OVERFLOW)
            for sequence in range(loss.start, loss.stop):
                assert sequence in self.asked_ns, "given up without having been asked for"
            self.forget(range(loss.start, loss.stop))

    def check(self) -> None:
        assert sequences_of(self.nacks.ranges()) == sorted(self.added_ns)
        assert self.nacks.missing_count == len(self.added_ns) == RangeSet(self.nacks.ranges()).size
        assert len(self.nacks) <= GAPS_MAX
        assert (self.nacks.next_deadline_ns() is None) == (not self.added_ns)


def sequences_of(ranges) -> list[int]:
    return [sequence for start, stop in ranges for sequence in range(start, stop)]


@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=40), st.integers(0, 99))
@example([("add", 0, 1), ("time", 232, 0), ("fill", 0, 1), ("miss_again", 0, 1)], 0)
def test_the_scheduler_keeps_every_sequence_as_if_it_were_alone(steps, seed):
    run = Run(seed)
    for name, first, second in steps:
        getattr(run, name)(first, second)
        run.check()
    left_ns = max(run.now_ns, run.quiet_until_ns)
    run.time(10_000, 0)
    run.check()
    assert not run.added_ns, f"something is missing for ever, since {left_ns}"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 10**7))
def test_a_gap_of_millions_is_one_gap(start, count):
    nacks = NackScheduler(Random(1))
    assert nacks.add(start, start + count, now_ns=0)
    assert nacks.due(now_ns=0) == [(start, start + count)]
    assert nacks.missing_count == count
    assert len(nacks) == 1
