from random import Random
from unittest import mock

import pytest

from recovery import Feedback, Loss, LossReason, NackScheduler, nack
from tests.steps import lines_run
from tests.still import Still

MS = 1_000_000


def scheduler(*gaps, gaps_max=nack.GAPS_MAX, **options) -> NackScheduler:
    with mock.patch.object(nack, "GAPS_MAX", gaps_max):
        made = NackScheduler(Still(1), **options)
    for start, stop in gaps:
        made.add(start, stop, now_ns=0)
    return made


def test_a_gap_is_asked_for_at_once_and_again_with_back_off():
    nacks = scheduler((3, 7))
    asked = []
    for _ in range(9):
        now_ns = nacks.next_deadline_ns()
        assert nacks.due(now_ns=now_ns) == [(3, 7)]
        asked.append(now_ns // MS)
    assert asked == [0, 20, 60, 140, 300, 620, 1260, 2260, 3260]
    assert nacks.sent == 9


def test_ranges_that_touch_are_asked_for_as_one():
    nacks = scheduler((0, 2))
    nacks.due(now_ns=0)
    nacks.add(2, 4, now_ns=MS)
    assert len(nacks) == 2
    assert nacks.due(now_ns=40 * MS) == [(0, 4)]


def test_a_nack_takes_so_many_ranges_and_leaves_the_rest_due():
    gaps = [(start, start + 1) for start in range(0, 200, 2)]
    nacks = scheduler(*gaps)
    first = nacks.due(now_ns=0)
    assert nacks.next_deadline_ns() <= 0
    assert len(first) == nack.RANGES_MAX
    assert sorted(first + nacks.due(now_ns=0)) == gaps


def test_an_answer_is_waited_for_as_long_as_answers_take():
    nacks = scheduler((0, 1000))
    waits, now_ns = [], 0
    for at, taken_ms in enumerate([5, 60, 200] + 40 * [10]):
        nacks.due(now_ns=now_ns)
        now_ns += taken_ms * MS
        nacks.fill(at, at + 1, now_ns=now_ns)
        waits.append((nacks.next_deadline_ns() - now_ns) // MS)
    assert waits[:2] == [20, 74]
    assert sorted(waits[3:], reverse=True) == waits[3:]
    assert waits[-1] == 20  # `RETRY_NS`, at least


def test_progress_restarts_the_deadline_and_the_wait():
    nacks = scheduler((0, 10), deadline=0.1)
    for now_ms in (0, 20, 60):
        assert nacks.due(now_ns=now_ms * MS)
    nacks.fill(0, 5, now_ns=90 * MS)
    assert nacks.due(now_ns=179 * MS) == []
    assert nacks.due(now_ns=180 * MS) == [(5, 10)]
    assert nacks.expire(now_ns=190 * MS - 1) == []
    assert nacks.expire(now_ns=190 * MS) == [Loss(5, 10, LossReason.TIMEOUT)]


def test_a_gap_after_one_that_makes_progress_waits_for_its_turn():
    nacks = scheduler((0, 1000), (2000, 2001), deadline=0.1)
    for now_ms in range(0, 1000, 10):
        nacks.due(now_ns=now_ms * MS)
        assert nacks.expire(now_ns=now_ms * MS) == []
        nacks.fill(now_ms, now_ms + 10, now_ns=now_ms * MS)
    assert nacks.ranges() == [(2000, 2001)]
    assert nacks.expire(now_ns=1089 * MS) == []
    assert nacks.expire(now_ns=1090 * MS) == [Loss(2000, 2001, LossReason.TIMEOUT)]


@pytest.mark.parametrize("deadline", [0.5, 10.0, 60.0, 3600.0])
@pytest.mark.parametrize("is_group", [False, True])
def test_without_a_bound_on_attempts_a_gap_is_given_up_at_its_deadline(deadline, is_group):
    feedback = Feedback(Random(1)) if is_group else None
    nacks = NackScheduler(Random(1), deadline=deadline, feedback=feedback)
    nacks.add(0, 1, now_ns=0)
    for _ in range(10_000):
        now_ns = nacks.next_deadline_ns()
        if losses := nacks.expire(now_ns=now_ns):
            break
        nacks.due(now_ns=now_ns)
    assert losses == [Loss(0, 1, LossReason.TIMEOUT)]
    assert now_ns == round(deadline * 1000) * MS
    assert nacks.sent >= deadline


def test_a_gap_is_lost_for_the_reason_last_set():
    nacks = scheduler((0, 5), deadline=0.1)
    nacks.set_loss_reason(0, 5, LossReason.BUDGET)
    nacks.set_loss_reason(3, 9, LossReason.PUBLISHER_GONE)
    nacks.set_loss_reason(7, 9, LossReason.CRASH)
    assert nacks.expire(now_ns=100 * MS) == [Loss(0, 5, LossReason.PUBLISHER_GONE)]


def test_a_thousand_gaps_are_postponed_in_as_many_steps_as_one():
    few, many = scheduler((0, 1)), scheduler(*((start, start + 1) for start in range(0, 2000, 2)))
    for nacks in (few, many):
        while nacks.due(now_ns=0):
            pass
    steps = [
        lines_run(lambda nacks=nacks: nacks.postpone(now_ns=5 * MS, delay_ns=5 * MS))
        for nacks in (few, many)
    ]
    assert steps[0] == steps[1] > 0


def test_who_is_postponed_for_long_gives_nothing_up_and_asks_once():
    nacks = scheduler((0, 1), (5, 6), deadline=0.1)
    assert nacks.due(now_ns=0) == [(0, 1), (5, 6)]
    for now_ms in range(1, 1000, 5):
        nacks.postpone(now_ns=now_ms * MS, delay_ns=5 * MS)
        assert nacks.due(now_ns=(now_ms + 4) * MS) == []
        assert nacks.next_deadline_ns() >= (now_ms + 5) * MS
        assert nacks.expire(now_ns=(now_ms + 4) * MS) == []
    assert nacks.due(now_ns=1001 * MS) == [(0, 1), (5, 6)]
    assert nacks.expire(now_ns=1101 * MS - 1) == []
    assert len(nacks.expire(now_ns=1101 * MS)) == 2


def test_a_gap_found_during_a_pause_has_its_full_time_after_it():
    nacks = scheduler(deadline=0.1)
    nacks.postpone(now_ns=0, delay_ns=50 * MS)
    nacks.add(0, 1, now_ns=10 * MS)
    assert nacks.expire(now_ns=150 * MS - 1) == []
    assert nacks.expire(now_ns=150 * MS) == [Loss(0, 1, LossReason.TIMEOUT)]


def test_what_is_missed_after_a_gap_being_answered_is_asked_for_at_once():
    nacks = NackScheduler(Random(1))
    assert nacks.add(0, 10, now_ns=0)
    assert nacks.due(now_ns=0) == [(0, 10)]
    nacks.fill(0, 5, now_ns=1_000_000)
    assert nacks.add(10, 20, now_ns=2_000_000)
    assert nacks.due(now_ns=2_000_000) == [(10, 20)]


def test_a_gap_waits_for_another_line_and_no_longer_once_that_is_past_it():
    nacks = scheduler()
    nacks.wait_for_line(50 * MS)
    nacks.add(3, 5, now_ns=0)
    nacks.add(8, 9, now_ns=0)
    nacks.hurry(4, now_ns=10 * MS)
    assert nacks.due(now_ns=10 * MS) == []
    nacks.hurry(5, now_ns=11 * MS)
    assert nacks.due(now_ns=11 * MS) == [(3, 5)]
    assert nacks.due(now_ns=49 * MS) == [(3, 5)]  # again, after its back-off
    assert nacks.due(now_ns=50 * MS) == [(8, 9)]


def test_what_cannot_be_asked_for_waits_for_another_line_before_it_is_given_up():
    nacks = scheduler(asks=False, deadline=0.02)
    nacks.wait_for_line(30 * MS)
    nacks.add(3, 5, now_ns=0)
    assert nacks.expire(now_ns=50 * MS - 1) == []
    assert nacks.expire(now_ns=50 * MS) == [Loss(3, 5, LossReason.TIMEOUT)]


def test_what_is_after_the_window_waits_for_the_front():
    nacks = scheduler((0, 10), (50, 60), (120, 130), (5000, 5010))

    assert nacks.due(now_ns=0, window=100) == [(0, 10), (50, 60)]
    assert nacks.due(now_ns=MS, window=100) == []
    nacks.fill(0, 10, now_ns=2 * MS)
    # Now it begins at 50: the third gap is looked at after one retry's time, the last much later.
    assert (120, 130) in nacks.due(now_ns=25 * MS, window=100)
    assert nacks.sent < 6


def asked_by_attempt(nacks, **options):
    return [pair for ranges in nacks.due_by_attempt(**options).values() for pair in ranges]


@pytest.mark.parametrize("ask", [NackScheduler.due, asked_by_attempt], ids=["due", "by attempt"])
def test_while_it_is_crowded_the_next_front_is_asked_for_at_once(ask):
    nacks = scheduler((0, 10), (20, 30), (40, 50))
    assert ask(nacks, now_ns=0, window=100, crowded=True) == [(0, 10)]
    nacks.fill(0, 5, now_ns=MS)  # the rest of this answer is on its way
    assert ask(nacks, now_ns=MS, window=100, crowded=True) == []
    nacks.fill(5, 10, now_ns=2 * MS)
    assert ask(nacks, now_ns=2 * MS, window=100, crowded=True) == [(20, 30)]
    nacks.fill(20, 30, now_ns=3 * MS)
    assert ask(nacks, now_ns=3 * MS, window=100, crowded=True) == [(40, 50)]


def test_what_was_put_off_is_asked_for_as_soon_as_there_is_space():
    nacks = scheduler((0, 10), (500, 510), (5000, 5010))
    assert nacks.due(now_ns=0, window=100) == [(0, 10)]
    nacks.fill(0, 10, now_ns=MS)

    assert nacks.due(now_ns=MS, window=100) == [(500, 510)]
    nacks.fill(500, 510, now_ns=2 * MS)
    assert nacks.due(now_ns=2 * MS, window=100) == [(5000, 5010)]


def test_a_gap_is_kept_while_its_answer_may_come_after_others():
    nacks = scheduler((0, 1), deadline=1.0)
    nacks.due(now_ns=0)
    for now_ms in range(1000, 10_000, 500):
        assert nacks.expire(now_ns=now_ms * MS, answered_ns=(now_ms - 100) * MS) == []
    lost = [Loss(0, 1, LossReason.TIMEOUT)]
    assert nacks.expire(now_ns=10_000 * MS, answered_ns=9_999 * MS) == lost


def test_a_gap_that_was_never_asked_for_is_not_kept_for_others_answers():
    nacks = scheduler((0, 1), deadline=1.0, asks=False)
    lost = [Loss(0, 1, LossReason.TIMEOUT)]
    assert nacks.expire(now_ns=1_000 * MS, answered_ns=999 * MS) == lost
