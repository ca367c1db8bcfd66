"""A receiver on a network that loses, repeats, reorders and splits frames."""

from random import Random
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import Delivery, Loss, LossReason, ReceiverConfig, StreamReceiver, nack, receiver

MS = 1_000_000
FRAME = 100
CONFIGS = st.builds(
    lambda size, wait: ReceiverConfig(deadline=0.2, reorder_bytes_max=size, wait_for_repair=wait),
    st.integers(0, 6 * FRAME),
    st.sampled_from([True, True, True, False]),
)
BOUNDS = st.fixed_dictionaries(
    {
        "GAPS_MAX": st.integers(1, 8),
        "FRAMES_MAX": st.integers(1, 6),
        "LOSSES_MAX": st.integers(1, 4),
    }
)
WHERE = st.integers(0, 80)
COUNT = st.integers(1, 10)
STEP = st.one_of(
    st.tuples(st.just("live"), st.integers(0, 6), COUNT),
    st.tuples(st.just("live"), st.just(0), COUNT),
    st.tuples(st.sampled_from(["old", "repair", "refuse", "cause"]), WHERE, COUNT),
    st.tuples(st.just("heartbeat"), st.integers(0, 6), st.one_of(st.none(), WHERE)),
    st.tuples(st.just("time"), st.integers(1, 100), st.none()),
    st.tuples(st.just("take"), st.integers(1, 5), st.none()),
    st.tuples(st.just("answer"), st.integers(0, 5), COUNT),
    st.tuples(st.sampled_from(["split", "split_refusal"]), st.integers(0, 3), st.integers(1, 3)),
)


class Run:
    def __init__(self, config: ReceiverConfig, bounds: dict[str, int], start: int) -> None:
        self.config, self.bounds = config, bounds
        self.receiver: StreamReceiver[range] = StreamReceiver(config, Random(7))
        self.now_ns = 0
        self.published = 0
        self.start = start
        self.position = start
        self.outcome: dict[int, str] = {}
        self.arrived: set[int] = set()
        # One late frame may fill as many ranges as there are.
        self.late_max = bounds["FRAMES_MAX"] + bounds["LOSSES_MAX"]

    def put(self, start: int, count: int, repaired: bool = False) -> None:
        item = range(start, start + count)
        self.arrived |= set(item)
        self.receiver.receive(start, count, FRAME, item, now_ns=self.now_ns, repaired=repaired)

    def live(self, skipped: int, count: int) -> None:
        self.published += skipped
        self.put(self.published, count)
        self.published += count

    def old(self, start: int, count: int, repaired: bool = False) -> None:
        count = min(count, self.published - start)
        if count > 0:
            self.put(start, count, repaired)

    def repair(self, start: int, count: int) -> None:
        self.old(start, count, repaired=True)

    def refuse(self, start: int, count: int) -> None:
        self.receiver.reject(start, start + count, LossReason.EVICTED, now_ns=self.now_ns)

    def cause(self, start: int, count: int) -> None:
        self.receiver.nacks.set_loss_reason(start, start + count, LossReason.BUDGET)

    def heartbeat(self, more: int, earliest: int | None) -> None:
        self.published += more
        if earliest is not None:
            earliest = min(earliest, self.published)
        self.receiver.observe_head(self.published, now_ns=self.now_ns, earliest=earliest)

    def time(self, elapsed_ms: int, _: None) -> None:
        self.now_ns += elapsed_ms * MS
        for start, stop in self.receiver.nacks.due(now_ns=self.now_ns):
            assert self.receiver.expected <= start < stop <= self.receiver.head
        self.receiver.handle_timer(now_ns=self.now_ns)

    def answer(self, before: int, count: int) -> None:
        """Repair what is missing, with frames that reach beyond it on both sides."""
        for start, stop in list(self.receiver.missing_ranges)[:2]:
            self.repair(max(0, start - before), min(stop - start, count) + before)

    def split(self, gap: int, count: int) -> None:
        """Repair the middle of a gap."""
        for start, stop in list(self.receiver.missing_ranges)[gap : gap + 1]:
            self.repair((start + stop) // 2, count)

    def split_refusal(self, gap: int, count: int) -> None:
        for start, stop in list(self.receiver.missing_ranges)[gap : gap + 1]:
            self.refuse((start + stop) // 2, count)

    def take(self, times: int, _: None) -> None:
        for _ in range(times):
            output = self.receiver.next_output()
            if output is None:
                return
            self.took(output)

    def took(self, output: Delivery[range] | Loss) -> None:
        if isinstance(output, Delivery) and output.late:
            self.took_late(output)
            return
        if isinstance(output, Loss):
            assert output.start == self.position
            sequences, outcome = range(output.start, output.stop), "lost"
        else:
            assert output.sequence == self.position
            sequences = output.item[output.skip : output.skip + output.count]
            assert len(sequences) == output.count > 0
            outcome = "delivered"
        assert sequences[0] == self.position
        for sequence in sequences:
            assert sequence not in self.outcome
            assert outcome == "lost" or sequence in self.arrived
            self.outcome[sequence] = outcome
        self.position = sequences[-1] + 1

    def took_late(self, output: Delivery[range]) -> None:
        """What was reported lost comes after all, once, where nobody waited for it."""
        assert not self.config.wait_for_repair
        sequences = output.item[output.skip : output.skip + output.count]
        assert len(sequences) == output.count > 0
        assert sequences[0] == output.sequence
        for sequence in sequences:
            assert self.outcome[sequence] == "lost"
            assert sequence in self.arrived
            self.outcome[sequence] = "delivered"

    def check(self) -> None:
        receiver = self.receiver
        ledger = receiver.handed + receiver.lost + receiver.missing + receiver.buffered
        assert receiver.head - receiver.start == ledger == receiver.published
        assert receiver.bytes_held <= self.config.reorder_bytes_max
        assert len(receiver._reorder._frames) <= self.bounds["FRAMES_MAX"]
        assert len(list(receiver.missing_ranges)) <= self.bounds["GAPS_MAX"]
        assert len(receiver.lost_ranges) <= self.bounds["LOSSES_MAX"]
        assert receiver.expected == (self.position if receiver.started else 0)
        outcomes = list(self.outcome.values())
        assert receiver.handed == outcomes.count("delivered")
        assert receiver.lost + receiver._lost.late_count >= outcomes.count("lost")
        assert receiver._lost.late_frames <= self.late_max
        assert (receiver.next_deadline_ns() is None) == (receiver.missing == 0)
        if not self.config.wait_for_repair:
            assert receiver.missing == 0

    def heal(self) -> None:
        """The network is well again: every NACK is answered in frames of one message."""
        for _ in range(400):
            self.take(1000, None)
            self.receiver.observe_head(self.published, now_ns=self.now_ns)
            if self.position >= self.published:
                break
            deadline_ns = self.receiver.next_deadline_ns()
            self.now_ns = max(self.now_ns, deadline_ns or 0)
            for start, stop in self.receiver.nacks.due(now_ns=self.now_ns):
                for sequence in range(start, stop):
                    self.put(sequence, 1, repaired=True)
                    self.take(10, None)
            self.receiver.handle_timer(now_ns=self.now_ns)
            self.check()
        self.take(1000, None)


@settings(max_examples=500, deadline=None)
@given(
    CONFIGS, BOUNDS, st.sampled_from([0, 5]), st.lists(STEP, max_size=60), st.integers(0, 10),
    st.integers(0, 10),
)  # fmt: skip
def test_every_message_comes_once_in_order_or_is_reported_lost(
    config, bounds, delay_ms, steps, start, start_after
):
    gaps = mock.patch.object(nack, "GAPS_MAX", bounds["GAPS_MAX"])
    rest = {name: bounds[name] for name in ("FRAMES_MAX", "LOSSES_MAX")}
    with gaps, mock.patch.multiple(receiver, **rest):
        run = Run(config, bounds, start)
        run.receiver.nacks.delay(delay_ms * MS)
        follow(run, steps, start, start_after)


def follow(run, steps, start, start_after):
    for index, (name, first, second) in enumerate(steps):
        if index == start_after:
            run.receiver.start_at(start, now_ns=run.now_ns)
        getattr(run, name)(first, second)
        run.check()
    if not run.receiver.started:
        run.receiver.start_at(start, now_ns=run.now_ns)
    run.published = max(run.published, start)
    run.heal()
    run.check()
    assert run.position == run.published
    assert sorted(run.outcome) == list(range(start, run.published))
    assert run.receiver.missing == run.receiver.buffered == 0
    assert run.receiver.lost == list(run.outcome.values()).count("lost")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=40), st.randoms())
def test_what_is_answered_is_never_lost(frames, random):
    receiver: StreamReceiver[range] = StreamReceiver(ReceiverConfig(), random)
    receiver.start_at(0, now_ns=0)
    sent: list[range] = []
    arriving: list[range] = []
    for count, lost in frames:
        start = sent[-1].stop if sent else 0
        sent.append(range(start, start + count))
        if not lost:
            arriving.append(sent[-1])
    random.shuffle(arriving)
    for item in arriving:
        receiver.receive(item.start, len(item), 1, item, now_ns=0)
    receiver.observe_head(sent[-1].stop if sent else 0, now_ns=0)
    while receiver.missing:
        now_ns = receiver.next_deadline_ns()
        assert now_ns is not None
        for start, stop in receiver.nacks.due(now_ns=now_ns):
            for item in sent:
                if item.start < stop and start < item.stop:
                    receiver.receive(item.start, len(item), 1, item, now_ns=now_ns, repaired=True)
    got: list[int] = []
    while (output := receiver.next_output()) is not None:
        assert isinstance(output, Delivery)
        got += output.item[output.skip : output.skip + output.count]
    assert got == list(range(sent[-1].stop if sent else 0))
    assert receiver.lost == receiver.missing == 0
