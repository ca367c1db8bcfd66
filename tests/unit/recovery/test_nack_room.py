"""Gaps for which a receiver has no room are not asked for, however many there are."""

from random import Random

from recovery import NackConfig, NackScheduler

MS = 1_000_000


def make(gaps, now_ns=0):
    scheduler = NackScheduler(NackConfig(), Random(1))
    for start, stop in gaps:
        scheduler.add(start, stop, now_ns=now_ns)
    return scheduler


def test_what_is_behind_the_window_waits_for_the_front():
    scheduler = make([(0, 10), (50, 60), (120, 130), (5000, 5010)])

    assert scheduler.due(now_ns=0, window=100) == [(0, 10), (50, 60)]
    assert scheduler.due(now_ns=MS, window=100) == []
    scheduler.fill(0, 10, now_ns=2 * MS)
    # Now it begins at 50: the third gap is looked at after one retry's time, the last much later.
    assert (120, 130) in scheduler.due(now_ns=25 * MS, window=100)
    assert scheduler.sent < 6


def test_a_gap_without_room_is_not_looked_at_again_and_again():
    scheduler = make([(0, 10), *((at, at + 1) for at in range(1000, 3000, 2))])

    assert scheduler.due(now_ns=0, window=100) == [(0, 10)]
    deadline_ns = scheduler.next_deadline_ns()
    assert deadline_ns is not None
    assert deadline_ns > 10 * MS
    assert scheduler.sent == 1


def test_while_it_is_crowded_the_next_front_is_asked_for_at_once():
    scheduler = make([(0, 10), (20, 30), (40, 50)])

    assert scheduler.due(now_ns=0, window=100, crowded=True) == [(0, 10)]
    scheduler.fill(0, 5, now_ns=MS)  # the rest of this answer is on its way
    assert scheduler.due(now_ns=MS, window=100, crowded=True) == []
    scheduler.fill(5, 10, now_ns=2 * MS)
    assert scheduler.due(now_ns=2 * MS, window=100, crowded=True) == [(20, 30)]
    scheduler.fill(20, 30, now_ns=3 * MS)
    assert scheduler.due(now_ns=3 * MS, window=100, crowded=True) == [(40, 50)]


def test_with_room_again_all_are_asked_for():
    scheduler = make([(0, 10), (20, 30), (40, 50)])
    scheduler.due(now_ns=0, window=100, crowded=True)

    assert scheduler.due(now_ns=21 * MS, window=100) == [(0, 10), (20, 30), (40, 50)]
