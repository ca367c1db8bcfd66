import sys

from recovery import PartedFrame, ReplayBuffer
from tests.unit.memory import bytes_kept


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
    kept = buffer.first("a", 0, 1)
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
