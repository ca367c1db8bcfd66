from collections import Counter
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery import RangeSet, RetransmitScheduler, TokenBucket, retransmit

S = 1_000_000_000
MS = 1_000_000
NAMES = [b"a", b"b", b"c"]
WHO = st.sampled_from(NAMES)
STREAM = st.sampled_from(["x", "y"])
RANGES = st.lists(st.tuples(st.integers(-1, 40), st.integers(-1, 40)), max_size=4)
STEP = st.one_of(
    st.tuples(st.just("request"), WHO, STREAM, RANGES),
    st.tuples(st.just("serve"), st.integers(1, 4), st.integers(1, 300), st.booleans()),
    st.tuples(st.just("time"), st.integers(0, 30), st.none(), st.none()),
    st.tuples(st.sampled_from(["block", "forget"]), WHO, st.integers(1, 30), st.none()),
)
RANGES_MAX, REQUESTERS_MAX = 3, 2


class Run:
    def __init__(self) -> None:
        self.scheduler = RetransmitScheduler(
            linger=0.01, budget_bytes_s=10_000, budget_burst_bytes=500
        )
        self.now_ns = 0
        self.wanted: dict[tuple[bytes, str], RangeSet] = {}
        self.blocked_ns: dict[bytes, int] = {}

    def request(self, who: bytes, stream: str, ranges: list[tuple[int, int]]) -> None:
        sound = [(a, b) for a, b in ranges if 0 <= a < b]
        before = {n for a, b in self.scheduler.waiting(who, stream) for n in range(a, b)}
        refused = self.scheduler.request(who, stream, ranges, now_ns=self.now_ns)
        after = {n for a, b in self.scheduler.waiting(who, stream) for n in range(a, b)}
        asked = {n for a, b in sound for n in range(a, b)}
        assert before <= after <= before | asked
        assert {n for a, b in refused for n in range(a, b)} <= asked

    def serve(self, frames: int, size: int, kept: bool) -> None:
        job = self.scheduler.next_job(now_ns=self.now_ns)
        due_ns = self.scheduler.next_deadline_ns(now_ns=self.now_ns)
        assert (job is not None) == (due_ns == self.now_ns)
        if job is None:
            return
        who, stream, start, stop = job
        assert self.blocked_ns.get(who, 0) <= self.now_ns
        assert (start, stop) in list(self.scheduler.waiting(who, stream))
        stop = min(stop, start + frames)
        if kept:
            self.scheduler.sent(who, stream, start, stop, size, now_ns=self.now_ns)
        else:
            self.scheduler.drop_range(who, stream, start, stop)
        assert start not in self.scheduler.waiting(who, stream)

    def time(self, elapsed_ms: int, *_: None) -> None:
        self.now_ns += elapsed_ms * MS

    def block(self, who: bytes, delay_ms: int, _: None) -> None:
        waits = any(self.scheduler.waiting(who, stream) for stream in "xy")
        if waits:
            self.scheduler.block(who, self.now_ns + delay_ms * MS)
            self.blocked_ns[who] = max(self.blocked_ns.get(who, 0), self.now_ns + delay_ms * MS)

    def forget(self, who: bytes, *_: object) -> None:
        self.scheduler.forget(who)
        self.blocked_ns.pop(who, None)


@mock.patch.multiple(retransmit, RANGES_MAX=RANGES_MAX, REQUESTERS_MAX=REQUESTERS_MAX)
@settings(max_examples=300, deadline=None)
@given(st.lists(STEP, max_size=50))
def test_only_what_was_asked_for_is_served_within_the_bounds(steps):
    run = Run()
    for name, *arguments in steps:
        getattr(run, name)(*arguments)
        scheduler = run.scheduler
        assert len(scheduler) <= REQUESTERS_MAX
        for who in NAMES:
            # Served or forgotten, a block ends with what it was for.
            if not any(scheduler.waiting(who, stream) for stream in "xy"):
                run.blocked_ns.pop(who, None)
            held = sum(len(scheduler.waiting(who, stream)) for stream in "xy")
            assert held <= RANGES_MAX
    while (due_ns := run.scheduler.next_deadline_ns(now_ns=run.now_ns)) is not None:
        run.now_ns = due_ns
        run.serve(100, 50, True)
    assert not any(run.scheduler.waiting(who, stream) for who in NAMES for stream in "xy")


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 5), st.integers(1, 400))
def test_requesters_get_equal_shares_whatever_they_ask_for(count, size):
    scheduler = RetransmitScheduler()
    names = [bytes([index]) for index in range(count)]
    for index, name in enumerate(names):
        scheduler.request(name, "s", [(0, 1000 * 10**index)], now_ns=0)
    shares: Counter[bytes] = Counter()
    for _ in range(count * 20):
        job = scheduler.next_job(now_ns=0)
        assert job is not None
        scheduler.sent(job[0], job[1], job[2], job[2] + 1, size, now_ns=0)
        shares[job[0]] += 1
    assert set(shares.values()) == {20}


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 20))
def test_nobody_gets_more_than_his_budget_and_one_frame(size, seconds):
    scheduler = RetransmitScheduler(budget_bytes_s=1000, budget_burst_bytes=2000)
    scheduler.request(b"greedy", "s", [(0, 10**9)], now_ns=0)
    now_ns = sequence = 0
    while (due_ns := scheduler.next_deadline_ns(now_ns=now_ns)) is not None:
        now_ns = due_ns
        if now_ns > seconds * S or sequence > 5000:
            break
        job = scheduler.next_job(now_ns=now_ns)
        if job is not None:
            scheduler.sent(b"greedy", "s", job[2], job[2] + 1, size, now_ns=now_ns)
            sequence += 1
        assert sequence * size <= 2000 + 1000 * now_ns / S + size


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 10**9),
    st.integers(1, 10**6),
    st.lists(st.tuples(st.integers(0, S), st.integers(0, 10**6)), max_size=20),
)
def test_a_bucket_is_ready_exactly_when_it_says_so(rate, burst, takes):
    bucket, now_ns = TokenBucket(rate, burst), 0
    for elapsed_ns, amount in takes:
        now_ns += elapsed_ns
        assert bucket.available(now_ns) <= burst
        bucket.take(amount, now_ns)
        ready_ns = bucket.ready_at_ns(now_ns)
        if ready_ns > now_ns:
            assert bucket.available(ready_ns - 1) < 1
        assert bucket.available(ready_ns) >= 1
        now_ns = ready_ns
