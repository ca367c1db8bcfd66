import sys

import pytest

from recovery import PartedFrame, ReplayBuffer
from tests.unit.memory import bytes_kept

MS = 1_000_000


def buffer_of(*frames: tuple[str, int, int], **options) -> ReplayBuffer:
    buffer = ReplayBuffer(**options)
    for index, (stream, start, stop) in enumerate(frames):
        frame = bytes(10)
        buffer.append(
            stream, start, stop - start, frame, now_ns=index * MS, timestamp_ns_max=100 * index
        )
    return buffer


def ranges(frames) -> list[tuple[int, int]]:
    return [(kept.start, kept.stop) for kept in frames]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [((0, 2), None), ((2, 3), (2, 4)), ((3, 9), (2, 4)), ((4, 5), (4, 5)), ((5, 9), None)],
)
def test_the_first_frame_of_a_range_is_found(wanted, found):
    buffer = buffer_of(("a", 0, 2), ("a", 2, 4), ("a", 4, 5), frames_max=2)
    kept = buffer.first("a", *wanted)
    assert (None if kept is None else (kept.start, kept.stop)) == found
    assert [kept] == (buffer.frames("a", *wanted, 1) or [None])
    assert buffer.first("a", 3, 3) is buffer.first("b", 0, 9) is None


def test_a_frame_larger_than_the_bound_evicts_nothing():
    buffer = buffer_of(("a", 0, 2), bytes_max=10)
    buffer.append("a", 2, 3, bytes(11), now_ns=0, timestamp_ns_max=0)
    assert (buffer.frames_held, buffer.next("a")) == (1, 5)
    assert ranges(buffer.frames("a", 0, 5, 1000)) == [(0, 2)]


def test_a_stream_too_many_is_not_kept():
    buffer = buffer_of(("a", 0, 2), ("b", 0, 2), streams_max=1)
    assert (buffer.streams(), buffer.next("b")) == (["a"], 0)


@pytest.mark.parametrize(("start", "count"), [(3, 1), (4, 0)])
def test_sequences_do_not_go_back(start, count):
    with pytest.raises(ValueError, match="start >= 4 and count >= 1"):
        buffer_of(("s", 0, 4)).append("s", start, count, b"", now_ns=0, timestamp_ns_max=0)


def test_a_long_incarnation_leaves_no_trace_of_what_was_evicted():
    buffer = ReplayBuffer(frames_max=10)

    def live():
        for start in range(20_000):
            buffer.append("s", start, 1, bytes(1000), now_ns=0, timestamp_ns_max=start)

    assert bytes_kept(live) < 500_000
    assert (buffer.earliest("s"), buffer.next("s")) == (19_990, 20_000)
    assert buffer.bytes_held == 10_000


def test_a_frame_in_parts_is_kept_by_reference_and_joined_when_it_is_asked_for():
    value = bytes(range(256)) * 4
    before = sys.getrefcount(value)
    frame = PartedFrame((b"head", value, b"tail"), 8 + len(value))
    buffer = ReplayBuffer(bytes_max=len(frame))
    buffer.append("a", 0, 1, frame, now_ns=0, timestamp_ns_max=7)
    del frame
    assert sys.getrefcount(value) == before + 1
    (kept,) = buffer.frames("a", 0, 1, 1)
    assert kept == buffer.first_at_or_after("a", 7) == (0, 1, b"head" + value + b"tail", 7)
    buffer.append("a", 1, 1, b"x", now_ns=0, timestamp_ns_max=7)
    assert sys.getrefcount(value) == before
    assert (buffer.bytes_held, buffer.earliest("a")) == (1, 1)


def test_only_memoryviews_are_given_to_be_freed():
    freed = []

    def free(frames):
        freed.extend(map(bytes, frames))
        frames.clear()

    buffer = ReplayBuffer(frames_max=1, free=free)
    for number in range(10):
        for frame in (b"b", PartedFrame((b"p",), 1), memoryview(b"%d" % number)):
            buffer.append("a", buffer.next("a"), 1, frame, now_ns=0, timestamp_ns_max=0)
    assert freed == [b"%d" % number for number in range(8)]  # eight at a time
