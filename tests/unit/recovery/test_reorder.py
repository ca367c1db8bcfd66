import pytest

from recovery import InsertResult, ReorderBuffer

SIZE = 10
KEPT, DUPLICATE, FULL = InsertResult.KEPT, InsertResult.DUPLICATE, InsertResult.FULL


def buffer_of(*frames: tuple[int, int]) -> ReorderBuffer[str]:
    buffer: ReorderBuffer[str] = ReorderBuffer(1000, 10)
    for start, stop in frames:
        assert buffer.insert(start, stop, 10, f"{start}-{stop}") is KEPT
    return buffer


def test_frames_come_out_when_it_is_their_turn():
    buffer = buffer_of((5, 8), (2, 5))
    assert buffer.pop(0) is None
    assert buffer.pop(2) == (2, 5, 10, "2-5")
    assert buffer.pop(5) == (5, 8, 10, "5-8")
    assert (buffer.frames_held, buffer.bytes_held, buffer.messages_held) == (0, 0, 0)


@pytest.mark.parametrize(
    ("start", "stop", "result"),
    [
        pytest.param(2, 5, DUPLICATE, id="the same"),
        pytest.param(3, 4, DUPLICATE, id="inside"),
        pytest.param(4, 7, DUPLICATE, id="inside two together"),
        pytest.param(4, 9, KEPT, id="partly new"),
        pytest.param(0, 20, KEPT, id="around"),
    ],
)
def test_only_a_frame_wholly_held_is_a_duplicate(start, stop, result):
    buffer = buffer_of((2, 5), (5, 8))
    assert buffer.insert(start, stop, 10, "x") is result


def test_frames_wholly_below_what_is_expected_are_dropped():
    buffer = buffer_of((0, 4), (2, 6), (8, 9))
    assert buffer.pop(4) == (2, 6, 10, "2-6")
    assert list(buffer.covered) == [(8, 9)]


def test_what_another_frame_holds_stays_covered():
    buffer = buffer_of((0, 4), (2, 6), (3, 9))
    buffer.pop(0)
    assert list(buffer.covered) == [(2, 9)]


@pytest.mark.parametrize(
    ("bytes_max", "frames_max", "held"), [(25, 10, 2), (1000, 3, 3), (0, 10, 0), (1000, 0, 0)]
)
def test_no_bound_is_passed(bytes_max, frames_max, held):
    buffer: ReorderBuffer[None] = ReorderBuffer(bytes_max, frames_max)
    results = [buffer.insert(2 * n, 2 * n + 1, 10, None) for n in range(5)]
    assert results == [KEPT] * held + [FULL] * (5 - held)
    assert (buffer.frames_held, buffer.bytes_held) == (held, 10 * held)


def test_draining_empties_it_in_order():
    buffer = buffer_of((5, 8), (2, 5))
    assert [frame.start for frame in buffer.drain()] == [2, 5]
    assert (buffer.frames_held, buffer.bytes_held, buffer.messages_held) == (0, 0, 0)


@pytest.mark.parametrize("arguments", [(3, 3, 1), (4, 3, 1), (-1, 3, 1), (0, 1, -1)])
def test_a_frame_that_is_none_is_refused(arguments):
    with pytest.raises(ValueError, match="a frame needs"):
        ReorderBuffer(10, 10).insert(*arguments, None)


@pytest.mark.parametrize("bounds", [(-1, 1), (1, -1)])
def test_a_negative_bound_is_refused(bounds):
    with pytest.raises(ValueError, match="_max must be"):
        ReorderBuffer(*bounds)


def full_buffer(*starts):
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
    buffer = full_buffer(2, 4, 6, 8)
    found = buffer.evict_beyond(beyond, size, None, frames_max=frames_max)

    assert [frame.start for frame in found] == taken
    assert buffer.bytes_held == SIZE * (4 - len(taken))
    assert list(buffer.covered) == [(2, 10 - 2 * len(taken))]


def test_less_space_than_its_own_may_be_named():
    buffer = full_buffer(2, 4, 6, 8)

    assert [frame.start for frame in buffer.evict_beyond(0, SIZE, 25, frames_max=9)] == [4, 6, 8]
