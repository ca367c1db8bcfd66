"""What a receiver does when it learns that frames had announced messages that never were."""

from random import Random

import pytest

from recovery import Delivery, Loss, NackConfig, ReceiverConfig, StreamReceiver

MS = 1_000_000


def receiver(start=0, **changes):
    made = StreamReceiver(ReceiverConfig(**changes), Random(1))
    made.start_at(start, now_ns=0)
    return made


def outputs(made):
    found = []
    while (output := made.next_output()) is not None:
        kind = "lost" if isinstance(output, Loss) else "given"
        start = output.start if isinstance(output, Loss) else output.sequence
        found.append((kind, start, start + output.count))
    return found


def balanced(made):
    held = made.handed + made.lost + made.missing + made.buffered
    return made.head - made.start == held


def test_a_head_that_was_false_is_taken_back_and_the_next_messages_are_delivered():
    made = receiver()
    made.receive(0, 10, 100, "real", now_ns=0)
    assert outputs(made) == [("given", 0, 10)]
    made.observe_head(5000, now_ns=0)
    assert made.missing == 4990

    assert made.retract(10) == 4990
    assert (made.head, made.missing, made.nacks.stop) == (10, 0, 0)
    assert made.next_deadline_ns() is None
    made.receive(10, 100, 100, "next", now_ns=MS)
    assert outputs(made) == [("given", 10, 110)]
    assert balanced(made)


def test_frames_beyond_the_true_head_are_dropped_and_real_gaps_stay():
    made = receiver()
    made.receive(5, 5, 100, "real", now_ns=0)
    made.receive(50, 1, 100, "forged", now_ns=0)
    made.receive(12, 1, 100, "forged", now_ns=0)
    assert made.bytes_held == 300

    made.retract(10)
    assert list(made.missing_ranges) == [(0, 5)]
    assert (made.head, made.bytes_held, made.buffered) == (10, 100, 5)
    made.receive(0, 5, 100, "repair", now_ns=MS, repaired=True)
    assert outputs(made) == [("given", 0, 5), ("given", 5, 10)]
    assert balanced(made)


def test_a_frame_across_the_true_head_is_dropped_whole():
    made = receiver()
    made.receive(4, 10, 100, "half of it cannot be", now_ns=0)

    made.retract(8)
    assert (made.head, made.buffered) == (4, 0)
    made.observe_head(8, now_ns=0)
    assert next(iter(made.missing_ranges))[0] == 0
    assert made.missing == 8
    assert balanced(made)


def test_a_gap_across_the_true_head_is_cut():
    made = receiver()
    made.observe_head(100, now_ns=0)
    made.retract(40)
    assert list(made.missing_ranges) == [(0, 40)]
    assert made.missing == 40
    assert balanced(made)


@pytest.mark.parametrize("head", [0, 3, 10])
def test_what_was_handed_on_stays(head):
    made = receiver()
    made.receive(0, 10, 100, "a", now_ns=0)
    outputs(made)
    assert made.retract(head) == 0
    assert made.head == 10
    assert balanced(made)


def test_what_waits_to_be_handed_on_stays():
    made = receiver()
    made.receive(0, 10, 100, "in the slot", now_ns=0)
    made.observe_head(20, now_ns=0)
    made.retract(5)
    assert made.head == 10
    assert outputs(made) == [("given", 0, 10)]


def test_what_is_decided_to_be_lost_stays_lost():
    made = receiver(nack=NackConfig(deadline=0.01))
    made.observe_head(5, now_ns=0)
    made.handle_timer(now_ns=20 * MS)
    assert made.lost == 5
    made.observe_head(50, now_ns=20 * MS)
    made.retract(0)
    assert made.head == 5
    assert outputs(made) == [("lost", 0, 5)]
    assert balanced(made)


def test_before_the_start_nothing_is_taken_back():
    made = StreamReceiver(ReceiverConfig(), Random(1))
    made.receive(7, 1, 10, "early", now_ns=0)
    assert made.retract(0) == 0


def test_frames_that_came_early_are_dropped_beyond_what_can_be():
    made = StreamReceiver(ReceiverConfig(), Random(1))
    made.receive(0, 2, 10, "real", now_ns=0)
    made.receive(2**62, 1, 10, "forged", now_ns=0)
    made.start_at(0, now_ns=0, head_max=1000)
    assert made.head == 2
    assert isinstance(made.next_output(), Delivery)
    assert balanced(made)


def test_random_calls_keep_the_ledger():
    for seed in range(200):
        rng = Random(seed)
        made = receiver(reorder_frames_max=8, nack=NackConfig(gaps_max=5, deadline=0.02))
        for now in range(60):
            draw, at = rng.random(), rng.randrange(120)
            if draw < 0.5:
                made.receive(at, rng.randrange(1, 9), 10, "x", now_ns=now * MS)
            elif draw < 0.7:
                made.observe_head(at, now_ns=now * MS)
            elif draw < 0.9:
                made.retract(at)
            else:
                made.handle_timer(now_ns=now * MS)
            if rng.random() < 0.5:
                outputs(made)
            assert balanced(made), (seed, now)
            assert made.missing == sum(b - a for a, b in made.missing_ranges)
