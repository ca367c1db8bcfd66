from random import Random

import pytest

from recovery import (
    Delivery,
    Feedback,
    Loss,
    LossReason,
    ReceiverConfig,
    StreamReceiver,
)
from tests.still import Still

MS = 1_000_000
SIZE = 10


def receiver(*, start: int = 0, **options) -> StreamReceiver[str]:
    made: StreamReceiver[str] = StreamReceiver(ReceiverConfig(**options), Still(1))
    made.start_at(start, now_ns=0)
    return made


def put(to: StreamReceiver[str], *frames: tuple[int, int], **options) -> None:
    for start, stop in frames:
        to.receive(start, stop - start, SIZE, f"{start}-{stop}", **{"now_ns": 0} | options)


def outputs(of: StreamReceiver[str]) -> list[Delivery[str] | Loss]:
    return list(iter(of.next_output, None))


def test_what_is_no_longer_kept_is_lost_at_once():
    stream = receiver()
    put(stream, (0, 2))
    stream.observe_head(10, now_ns=0, earliest=6)
    assert outputs(stream) == [Delivery("0-2", 0, 0, 2), Loss(2, 6, LossReason.EVICTED)]
    assert list(stream.missing_ranges) == [(6, 10)]
    stream.observe_head(10, now_ns=0, earliest=8)
    assert outputs(stream) == [Loss(6, 8, LossReason.EVICTED)]
    assert stream.lost_ranges == [Loss(2, 8, LossReason.EVICTED)]


def test_losses_in_a_row_for_one_reason_are_one():
    stream = receiver()
    stream.observe_head(9, now_ns=0)
    stream.reject(0, 2, LossReason.EVICTED, now_ns=0)
    stream.reject(2, 5, LossReason.EVICTED, now_ns=0)
    stream.reject(5, 6, LossReason.BUDGET, now_ns=0)
    stream.give_up(LossReason.PUBLISHER_GONE)
    assert outputs(stream) == [
        Loss(0, 5, LossReason.EVICTED),
        Loss(5, 6, LossReason.BUDGET),
        Loss(6, 9, LossReason.PUBLISHER_GONE),
    ]
    assert (stream.lost, stream.missing, stream.next_deadline_ns()) == (9, 0, None)


def test_without_repair_a_gap_is_lost_at_once():
    stream = receiver(wait_for_repair=False)
    put(stream, (2, 3))
    stream.observe_head(5, now_ns=0)
    assert outputs(stream) == [
        Loss(0, 2, LossReason.SKIPPED),
        Delivery("2-3", 2, 0, 1),
        Loss(3, 5, LossReason.SKIPPED),
    ]
    assert stream.next_deadline_ns() is None


def test_without_repair_a_frame_that_does_not_fit_is_lost_by_overflow():
    stream = receiver(wait_for_repair=False, reorder_bytes_max=0)
    put(stream, (0, 1), (1, 2))
    assert outputs(stream) == [Delivery("0-1", 0, 0, 1), Loss(1, 2, LossReason.OVERFLOW)]


def test_a_frame_that_does_not_fit_stays_missing_and_is_asked_for():
    stream = receiver(reorder_bytes_max=10)
    put(stream, (1, 2), (2, 3), (3, 4))
    assert (stream.buffered, stream.missing) == (1, 3)
    assert stream.nacks.due(now_ns=0) == [(0, 1), (2, 4)]
    put(stream, (0, 1))
    assert [output.sequence for output in outputs(stream)] == [0, 1]
    put(stream, (2, 4), now_ns=30 * MS, repaired=True)
    assert [output.sequence for output in outputs(stream)] == [2]


def test_the_frame_whose_turn_it_is_always_fits():
    stream = receiver(reorder_bytes_max=0)
    stream.observe_head(2, now_ns=0)
    stream.receive(0, 2, 10**9, "huge", now_ns=0, repaired=True)
    assert outputs(stream) == [Delivery("huge", 0, 0, 2)]


def test_frames_before_the_start_is_known_are_put_in_place():
    stream: StreamReceiver[str] = StreamReceiver(ReceiverConfig(), Random(1))
    put(stream, (7, 9), (3, 6), (3, 6))
    stream.observe_head(11, now_ns=0)
    assert not stream.started
    assert (stream.published, stream.buffered, stream.duplicates) == (0, 0, 3)
    assert stream.next_output() is None
    stream.start_at(4, now_ns=0)
    assert outputs(stream) == [Delivery("3-6", 4, 1, 2)]
    assert list(stream.missing_ranges) == [(6, 7), (9, 11)]
    assert (stream.start, stream.expected) == (4, 6)


def test_what_never_fits_is_lost_by_overflow():
    stream = receiver(deadline=0.1, reorder_bytes_max=0)
    put(stream, (1, 2))
    put(stream, (1, 2), now_ns=MS, repaired=True)
    stream.handle_timer(now_ns=100 * MS)
    assert outputs(stream) == [
        Loss(0, 1, LossReason.TIMEOUT),
        Loss(1, 2, LossReason.OVERFLOW),
    ]


def test_a_heartbeat_that_keeps_nothing_loses_up_to_its_head_only():
    stream = receiver()
    stream.observe_head(5, now_ns=0, earliest=9)
    assert outputs(stream) == [Loss(0, 5, LossReason.EVICTED)]
    assert stream.head == 5


def test_what_made_way_comes_again_in_its_turn():
    stream = receiver(reorder_bytes_max=SIZE)
    put(stream, (2, 3), (1, 2), (0, 1))
    found = outputs(stream)
    put(stream, (2, 3))
    assert [output.sequence for output in found + outputs(stream)] == [0, 1, 2]
    assert (stream.handed, stream.missing) == (3, 0)


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_a_small_space_is_filled_about_once_a_round_trip(loss):
    """Although it is full of frames far ahead when it begins to ask."""
    total, space, rng = 20_000, 200, Random(3)
    config = ReceiverConfig(reorder_bytes_max=SIZE * space)
    feedback = Feedback(rng)
    feedback.group_size = 1
    stream: StreamReceiver[str] = StreamReceiver(config, rng, feedback)
    stream.start_at(0, now_ns=0)
    put(stream, *((sequence, sequence + 1) for sequence in range(30, total, 30)))
    stream.observe_head(total, now_ns=0)
    rounds = now_ns = 0
    while stream.expected < total:
        rounds += 1
        assert rounds < 4 * total // space, stream.expected
        now_ns += 2 * MS
        fits = stream.expected + space
        asked = stream.nacks.due_by_attempt(now_ns=now_ns, window=space)
        for start, stop in [pair for ranges in asked.values() for pair in ranges]:
            for sequence in range(start, min(stop, max(fits, start + 1))):
                if rng.random() >= loss:
                    put(stream, (sequence, sequence + 1), now_ns=now_ns, repaired=True)
                while isinstance(stream.next_output(), Delivery):
                    pass
    assert stream.lost == 0


def test_frames_that_came_early_are_dropped_beyond_what_can_be():
    made = StreamReceiver(ReceiverConfig(), Random(1))
    made.receive(0, 2, 10, "real", now_ns=0)
    made.receive(2**62, 1, 10, "false", now_ns=0)
    made.start_at(0, now_ns=0, head_max=1000)
    assert made.head == 2
    assert isinstance(made.next_output(), Delivery)
