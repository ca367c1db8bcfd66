"""Little room goes to what comes first: frames further on make way, and are asked for again."""

from random import Random

import pytest

from recovery import (
    Delivery,
    Feedback,
    FeedbackConfig,
    LossReason,
    NackConfig,
    NackScheduler,
    ReceiverConfig,
    ReorderBuffer,
    StreamReceiver,
)

MS = 1_000_000
SIZE = 10


def buffer_of(*starts):
    buffer: ReorderBuffer[None] = ReorderBuffer(SIZE * len(starts), len(starts))
    for start in starts:
        buffer.insert(start, start + 2, SIZE, None)
    return buffer


@pytest.mark.parametrize(
    ("beyond", "size", "frames_max", "taken"),
    [
        pytest.param(0, SIZE, 9, [8], id="the last one goes first"),
        pytest.param(0, SIZE + 1, 9, [6, 8], id="as many as it takes"),
        pytest.param(6, 2 * SIZE, 9, [6, 8], id="none before the frame that comes"),
        pytest.param(7, 2 * SIZE, 9, [], id="none at all where that would not do"),
        pytest.param(0, 2 * SIZE, 1, [], id="no more than may go"),
        pytest.param(0, 9 * SIZE, 9, [], id="none for one that never fits"),
    ],
)
def test_frames_that_begin_last_make_way(beyond, size, frames_max, taken):
    buffer = buffer_of(2, 4, 6, 8)
    found = buffer.evict_beyond(beyond, size, None, frames_max=frames_max)

    assert [frame.start for frame in found] == taken
    assert buffer.bytes_held == SIZE * (4 - len(taken))
    assert list(buffer.covered) == [(2, 10 - 2 * len(taken))]


def test_less_room_than_its_own_may_be_named():
    buffer = buffer_of(2, 4, 6, 8)

    assert [frame.start for frame in buffer.evict_beyond(0, SIZE, 25, frames_max=9)] == [4, 6, 8]


def receiver_of(frames_held=3, **options):
    config = ReceiverConfig(nack=NackConfig(**options), reorder_bytes_max=SIZE * frames_held)
    receiver: StreamReceiver[str] = StreamReceiver(config, Random(1))
    receiver.start_at(0, now_ns=0)
    return receiver


def put(receiver, start, count=1):
    receiver.receive(start, count, SIZE, f"from {start}", now_ns=0)


def check_ledger(receiver):
    total = receiver.handed + receiver.lost + receiver.missing + receiver.buffered
    assert receiver.head == total


def test_a_frame_takes_the_room_of_one_further_on():
    receiver = receiver_of()
    for start in (10, 20, 30):
        put(receiver, start)
    put(receiver, 5)

    assert list(receiver.missing_ranges) == [(0, 5), (6, 10), (11, 20), (21, 31)]
    assert (receiver.displaced, receiver.overflowed, receiver.buffered) == (1, 0, 3)
    check_ledger(receiver)


def test_a_frame_further_on_than_all_finds_no_room():
    receiver = receiver_of()
    for start in (10, 20, 30, 40):
        put(receiver, start)

    assert (receiver.displaced, receiver.overflowed) == (0, 1)
    assert list(receiver.missing_ranges)[-2:] == [(31, 40), (40, 41)]
    check_ledger(receiver)


def test_what_made_way_comes_again_in_its_turn():
    receiver = receiver_of(frames_held=1)
    put(receiver, 2)
    put(receiver, 1)
    found = []
    for sequence in (0, 2):
        put(receiver, sequence)
        while (output := receiver.next_output()) is not None:
            found.append(output.sequence)

    assert found == [0, 1, 2]
    assert (receiver.handed, receiver.missing, receiver.displaced) == (3, 0, 1)


@pytest.mark.parametrize("gaps_max", [2, 3])
def test_nothing_makes_way_where_that_might_be_a_gap_too_many(gaps_max):
    receiver = receiver_of(frames_held=1, gaps_max=gaps_max)
    put(receiver, 10)
    put(receiver, 8)

    assert receiver.displaced == (gaps_max == 3)
    assert len(list(receiver.missing_ranges)) <= gaps_max
    check_ledger(receiver)


def test_who_does_not_wait_for_repairs_keeps_what_came():
    config = ReceiverConfig(reorder_bytes_max=SIZE, wait_for_repair=False)
    receiver: StreamReceiver[str] = StreamReceiver(config, Random(1))
    receiver.start_at(0, now_ns=0)
    put(receiver, 10)

    assert receiver.evict_beyond(1, SIZE, now_ns=0) is False


def scheduler_of(*gaps, **options):
    scheduler = NackScheduler(NackConfig(jitter=0.0, **options), Random(1))
    for start, stop in gaps:
        scheduler.add(start, stop, now_ns=0)
    return scheduler


@pytest.mark.parametrize(
    ("start", "stop", "gaps"),
    [
        pytest.param(12, 15, [(0, 10), (12, 15), (20, 30)], id="alone"),
        pytest.param(10, 15, [(0, 15), (20, 30)], id="behind one"),
        pytest.param(15, 20, [(0, 10), (15, 30)], id="before one"),
        pytest.param(10, 20, [(0, 30)], id="between two"),
    ],
)
def test_what_is_missing_again_becomes_one_with_the_gaps_beside_it(start, stop, gaps):
    scheduler = scheduler_of((0, 10), (20, 30))
    assert len(scheduler.due(now_ns=0)) == 2
    scheduler.miss_again(start, stop, now_ns=MS)

    assert list(scheduler.ranges()) == gaps
    assert scheduler.missing_count == sum(stop - start for start, stop in gaps)
    assert scheduler.due(now_ns=20 * MS) == [gap for gap in gaps if gap in ((0, 10), (20, 30))]
    assert scheduler.due(now_ns=21 * MS) == [gap for gap in gaps if gap not in ((0, 10), (20, 30))]
    losses = scheduler.give_up(LossReason.TIMEOUT)
    assert [(loss.start, loss.stop) for loss in losses] == gaps


@pytest.mark.parametrize(("start", "stop"), [(5, 5), (5, 6), (8, 12), (-1, 0)])
def test_what_is_missing_already_is_not_missing_again(start, stop):
    with pytest.raises(ValueError, match="overlaps a gap"):
        scheduler_of((0, 10)).miss_again(start, stop, now_ns=0)


def test_one_gap_too_many_is_refused():
    with pytest.raises(ValueError, match="one too many"):
        scheduler_of((0, 10), gaps_max=1).miss_again(20, 30, now_ns=0)


def test_what_was_put_off_is_asked_for_as_soon_as_there_is_room():
    scheduler = scheduler_of((0, 10), (500, 510), (5000, 5010))
    assert scheduler.due(now_ns=0, window=100) == [(0, 10)]
    scheduler.fill(0, 10, now_ns=MS)

    assert scheduler.due(now_ns=MS, window=100) == [(500, 510)]
    scheduler.fill(500, 510, now_ns=2 * MS)
    assert scheduler.due(now_ns=2 * MS, window=100) == [(5000, 5010)]


@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_a_small_room_is_filled_about_once_a_round_trip(loss):
    """Although it is full of frames far ahead when it begins to ask."""
    total, room, rng = 20_000, 200, Random(3)
    config = ReceiverConfig(nack=NackConfig(), reorder_bytes_max=SIZE * room)
    feedback = Feedback(FeedbackConfig(retry_ms=1, retry_floor_ms=1, group_size=1), rng)
    receiver: StreamReceiver[str] = StreamReceiver(config, rng, feedback)
    receiver.start_at(0, now_ns=0)
    for sequence in range(30, total, 30):
        put(receiver, sequence)
    receiver.observe_head(total, now_ns=0)

    rounds = now_ns = 0
    while receiver.expected < total:
        rounds += 1
        assert rounds < 4 * total // room, receiver.expected
        now_ns += 2 * MS
        fits = receiver.expected + room
        asked = receiver.nacks.due_by_attempt(now_ns=now_ns, window=room)
        for start, stop in [pair for ranges in asked.values() for pair in ranges]:
            for sequence in range(start, min(stop, max(fits, start + 1))):
                if rng.random() >= loss:
                    receiver.receive(sequence, 1, SIZE, "", now_ns=now_ns, repaired=True)
                while isinstance(receiver.next_output(), Delivery):
                    pass
    assert receiver.lost == 0
