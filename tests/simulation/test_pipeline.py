"""The pipeline's rules over a network that loses, delays and reorders, with pullers that die."""

import random
from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg.queue.pipeline.dealing import ALLOWED_MIN, Dealer, Piece, Share
from p2pmsg.queue.pipeline.taking import Intake

MS = 1_000_000
BODY = b"x" * 100


def part_of(piece, start, stop):
    return Piece(piece.first + start, stop - start, piece.body)


class Puller:
    """An intake, what of it is done, and whether its process runs."""

    def __init__(self, share):
        self.share = share
        self.intake = Intake(share.id)
        self.current, self.done, self.up_to = None, 0, 0
        self.stopped = False
        self.confirmed = set()

    def work(self, rng, sequences, frames):
        """Do some jobs; a frame counts as done with its last one."""
        for _ in range(rng.randrange(4)):
            if self.current is None:
                taken = self.intake.take()
                if taken is None:
                    return
                assert taken.number == self.up_to, "in order"
                self.current, self.done = frames[taken.frame], 0
            sequences.append(self.current.first + self.done)
            self.done += 1
            if self.done == self.current.jobs:
                self.current, self.done, self.up_to = None, 0, self.up_to + 1

    def state(self, now_ns):
        return self.share, self.up_to, self.done, self.intake.missing(now_ns=now_ns)


class World:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.dealer = Dealer(4000, part_of)
        self.now_ns = 0
        self.pullers, self.wire, self.frames = [], [], {}
        self.sequences, self.at_most_again, self.pushed, self.made = [], Counter(), 0, 0

    def add(self):
        self.made += 1
        share = Share(self.made, b"%d" % self.made, "one", self.now_ns)
        self.dealer.add(share)
        self.pullers.append(Puller(share))

    def send(self, what):
        if self.rng.random() > 0.2:
            self.wire.append((self.now_ns + self.rng.randrange(30) * MS, self.rng.random(), what))

    def frame(self, share, number, piece):
        name = b"%d/%d" % (share.id, number)
        self.frames[name] = piece
        self.send(("jobs", share.id, number, name))

    def give_up(self, puller):
        """What the puller did and the pusher has not heard of may be done twice; nothing else."""
        share = puller.share
        part = share.part
        for piece in share.dealt:
            self.at_most_again.update(range(piece.first + part, piece.first + piece.jobs))
            part = 0
        self.dealer.give_up(share, now_ns=self.now_ns)
        self.pullers.remove(puller)

    def step(self, pushes=True):
        rng = self.rng
        self.now_ns += 5 * MS
        if pushes and rng.random() < 0.5:
            jobs = rng.randrange(1, 8)
            self.dealer.accept(Piece(self.pushed, jobs, BODY))
            self.pushed += jobs
        for share, number, piece in self.dealer.deal(lambda share: True, now_ns=self.now_ns):
            assert share.jobs <= max(share.allowed, piece.jobs)
            self.frame(share, number, piece)
        due = sorted(each for each in self.wire if each[0] <= self.now_ns)
        self.wire = [each for each in self.wire if each[0] > self.now_ns]
        for _, _, what in due:
            self.arrive(*what)
        for puller in self.pullers:
            if not puller.stopped:
                puller.work(rng, self.sequences, self.frames)
                self.send(("state", *puller.state(self.now_ns)))

    def arrive(self, kind, *what):
        if kind == "state":
            share, up_to, part, missing = what
            if self.dealer.shares.get(share.id) is not share:
                return  # late: it changes nothing
            assert self.dealer.confirm(share, up_to, part)
            for number, piece in self.dealer.again(share, missing, 10**6):
                self.frame(share, number, piece)
            self.send(("head", share.id, share.next))
            return
        for puller in self.pullers:
            if puller.share.id == what[0] and not puller.stopped:
                if kind == "jobs":
                    puller.intake.receive(*what[1:], now_ns=self.now_ns)
                else:
                    puller.intake.on_head(what[1], now_ns=self.now_ns)


@pytest.mark.rounds(8, 2000)
def test_every_job_is_done_and_twice_only_what_was_not_confirmed(rounds):
    for seed in range(rounds):
        world = World(seed)
        for _ in range(3):
            world.add()
        for _ in range(200):
            world.step()
            if world.rng.random() < 0.03 and world.pullers:
                puller = world.rng.choice(world.pullers)
                if world.rng.random() < 0.5:
                    puller.stopped = True
                else:
                    world.give_up(puller)
                    world.add()
        for puller in [each for each in world.pullers if each.stopped]:
            world.give_up(puller)
        if not world.pullers:
            world.add()
        for _ in range(5000):
            if not world.dealer.jobs:
                break
            world.step(pushes=False)
        times = Counter(world.sequences)
        assert not world.dealer.jobs, seed
        assert world.dealer.bytes == 0, seed
        assert world.dealer.done == world.pushed, seed
        assert set(times) == set(range(world.pushed)), seed
        for sequence, count in times.items():
            assert count <= 1 + world.at_most_again[sequence], (seed, sequence)


def dealt(*jobs):
    dealer = Dealer(10**6, part_of)
    share = Share(1, b"a", "a", 0)
    dealer.add(share)
    first = 0
    for count in jobs:
        dealer.accept(Piece(first, count, BODY))
        first += count
    list(dealer.deal(lambda share: True, now_ns=0))
    return dealer, share


@given(
    jobs=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    says=st.lists(st.tuples(st.integers(0, 10), st.integers(0, 6)), max_size=20),
)
@settings(deadline=None)
def test_confirmations_in_any_order_keep_the_counters_right(jobs, says):
    dealer, share = dealt(*jobs)
    best = (0, 0)
    for up_to, part in says:
        possible = (up_to < len(jobs) and part <= jobs[up_to]) or (up_to, part) == (len(jobs), 0)
        taken = dealer.confirm(share, up_to, part)
        if possible:
            assert taken
            whole = up_to < len(jobs) and part == jobs[up_to]
            best = max(best, (up_to + 1, 0) if whole else (up_to, part))
        elif (up_to, part) > best:
            assert not taken
        expected = sum(jobs[: best[0]]) + best[1]
        assert dealer.done == share.done == expected
        assert dealer.jobs == share.jobs == sum(jobs) - expected
    left = dealer.give_up(share, now_ns=0)
    assert left == dealer.jobs == sum(piece.jobs for piece in dealer.waiting)
    assert dealer.bytes == sum(piece.size for piece in dealer.waiting)


def test_a_slow_puller_does_not_collect_what_others_could_do():
    dealer, slow = dealt()
    fast = Share(2, b"b", "b", 0)
    dealer.add(fast)
    for number in range(20):
        dealer.accept(Piece(10 * number, 10, BODY))
    now_ns = 0
    while dealer.jobs > slow.jobs:
        list(dealer.deal(lambda share: True, now_ns=now_ns))
        now_ns += 5 * MS
        assert dealer.confirm(fast, fast.next, 0)
    assert slow.jobs <= ALLOWED_MIN
    assert fast.allowed > ALLOWED_MIN
    assert fast.done >= 130


def paced(rng, job_ns, lates):
    """Yield the share of a puller that confirms what it did 5 ms apart, after each of some turns.

    The pusher is late `lates` times, for up to 2 s: then it handles what gathered, all in a turn
    or in two that follow each other.
    """
    dealer, share = dealt()
    turns, now_ns = [], 0
    for _ in range(200):
        now_ns += rng.randrange(1, 10) * MS
        turns.append(now_ns)
    for _ in range(lates):
        late = rng.randrange(100, 2000) * MS
        at = rng.randrange(len(turns))
        turns[at:] = [turn_ns + late for turn_ns in turns[at:]]
        turns.insert(at + 1, turns[at] + rng.randrange(10 * MS))
    done = first = logged_ns = 0
    free_ns = 0
    came, dealt_ns = deque(), deque()
    for turn_ns in sorted(turns):
        while dealt_ns and max(free_ns, dealt_ns[0]) + job_ns <= turn_ns:
            free_ns = max(free_ns, dealt_ns.popleft()) + job_ns
            done += 1
            if free_ns - logged_ns >= 5 * MS or not dealt_ns:
                logged_ns = free_ns
                came.append(done)
        for _ in range(rng.randrange(len(came) + 1) if rng.random() < 0.1 else len(came)):
            assert dealer.confirm(share, came.popleft(), 0)
        while len(dealer.waiting) < 2 * share.allowed:
            dealer.accept(Piece(first, 1, BODY))
            first += 1
        dealt_ns.extend(turn_ns for _ in dealer.deal(lambda share: True, now_ns=turn_ns))
        yield share


@given(seed=st.integers(0, 2**32), job_ms=st.integers(4, 50), lates=st.integers(0, 3))
@settings(deadline=None, max_examples=30)
def test_confirmations_that_gathered_do_not_make_a_slow_puller_a_fast_one(seed, job_ms, lates):
    for share in paced(random.Random(seed), job_ms * MS, lates):
        assert share.jobs <= 2 * ALLOWED_MIN


def test_a_fast_puller_has_what_it_does_in_a_fifth_of_a_second():
    *_, share = paced(random.Random(1), MS // 100, 0)
    assert 10_000 <= share.allowed <= 30_000


def test_a_gap_is_asked_for_at_once_and_a_lost_tail_after_a_while():
    intake = Intake(1)
    intake.receive(0, b"a", now_ns=0)
    intake.receive(3, b"d", now_ns=0)
    assert intake.missing(now_ns=0) == [(1, 3)]
    assert intake.missing(now_ns=1) == []
    assert intake.missing(now_ns=51 * MS) == [(1, 3)]
    intake.receive(1, b"b", now_ns=52 * MS)
    intake.receive(2, b"c", now_ns=52 * MS)
    assert [intake.take().frame for _ in range(4)] == [b"a", b"b", b"c", b"d"]
    intake.on_head(6, now_ns=60 * MS)
    assert intake.missing(now_ns=61 * MS) == []
    assert intake.missing(now_ns=111 * MS) == [(4, 6)]
    assert not intake.receive(3, b"d", now_ns=112 * MS)
    intake.receive(5, b"f", now_ns=112 * MS)
    assert intake.end() == 1
    assert intake.take().frame == b"f"
    assert intake.bytes == 0


@pytest.mark.internal
@given(
    jobs=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    poison=st.sets(st.integers(0, 60), max_size=3),
    pullers=st.integers(1, 3),
    comes_back=st.booleans(),
)
@settings(deadline=None)
def test_jobs_that_end_connections_are_given_up_and_all_others_are_done(
    jobs, poison, pullers, comes_back
):
    dealer = Dealer(10**6, part_of)
    poison = {number for number in poison if number < sum(jobs)}
    first = made = now_ns = 0
    for count in jobs:
        dealer.accept(Piece(first, count, BODY))
        first += count
    done, intakes = set(), {}

    def passes(number, piece, intake):
        if poison & {*range(piece.first, piece.first + piece.jobs)}:
            return False
        intake.receive(number, b"%d %d" % (piece.first, piece.jobs), now_ns=now_ns)
        return True

    while dealer.jobs:
        assert now_ns < 600_000 * MS
        now_ns += 50 * MS
        for at in range(pullers):
            if at not in intakes or intakes[at][0].id not in dealer.shares:
                made += 1
                intakes[at] = Share(made, b"%d" % made, "one", now_ns, puller=at), Intake(made)
                dealer.add(intakes[at][0])
        cut = set()
        for share, number, piece in dealer.deal(lambda share: True, now_ns=now_ns):
            intake = intakes[share.puller][1]
            if share.id not in cut and not passes(number, piece, intake):
                cut.add(share.id)  # and what follows is lost with the connection
        for share, intake in intakes.values():
            intake.on_head(share.next, now_ns=now_ns)
            while (taken := intake.take()) is not None:
                begin, count = map(int, taken.frame.split())
                done.update(range(begin, begin + count))
                assert dealer.confirm(share, taken.number + 1, 0)
            if not (missing := intake.missing(now_ns=now_ns)):
                continue
            frames = dealer.again(share, missing, 10**6)
            if share.unconfirmed is not None:
                dealer.give_up(share, now_ns=now_ns)
            elif not all(passes(number, piece, intake) for number, piece in frames):
                if comes_back:
                    made += 1
                    share.identity = b"%d" % made
                else:  # it is away for longer than `grace`
                    dealer.on_gone(share)
                    dealer.give_up(share, now_ns=now_ns)
    assert done == {*range(sum(jobs))} - poison
    assert dealer.undeliverable == len(poison)
    assert dealer.done == len(done)
    assert (dealer.bytes, dealer.aside, dealer._failures) == (0, [], {})
    assert not poison or now_ns >= 15_000 * MS
