"""Consecutive datagrams of one stream become one frame, whatever else lies around them."""

import pytest

from p2pmsg.multicast import datagram
from p2pmsg.multicast.runs import take_run
from p2pmsg.wire import FLAG_PLAIN, Frame, decode_body, stream_prefix
from tests.unit.p2pmsg import frames

SESSION = 7
PREFIX = stream_prefix("t", SESSION, FLAG_PLAIN)


def sealed(*sequences, topic="t", **options):
    """A train of datagrams of two messages each, and how long one is."""
    plain = [
        datagram.with_flags(
            frames.data([s, s + 1], topic=topic, session=SESSION, sequence=s, **options),
            add=FLAG_PLAIN,
        )
        for s in sequences
    ]
    train = [datagram.seal(frame) for frame in plain]
    return memoryview(b"".join(train)), len(train[0])


def test_a_run_becomes_one_frame_with_all_values():
    data, segment = sealed(10, 12, 14)
    run = take_run(PREFIX, "t", SESSION, data, 0, segment)
    assert run is not None
    assert (run.datagrams, run.after) == (3, len(data))
    frame = Frame(run.frame.data)
    assert (frame.topic, frame.session, frame.sequence, frame.count) == ("t", SESSION, 10, 6)
    values = decode_body(frame.data, frame.body_at, frame.count, frame.base_timestamp_ns)[0]
    assert list(values) == [10, 11, 12, 13, 14, 15]


def test_it_ends_where_a_datagram_does_not_follow():
    data, segment = sealed(10, 12, 16)
    run = take_run(PREFIX, "t", SESSION, data, 0, segment)
    assert run is not None
    assert (run.datagrams, run.after) == (2, 2 * segment)


@pytest.mark.parametrize("at", [20, -1])
def test_a_damaged_datagram_is_of_no_run(at):
    data, segment = sealed(10)
    damaged = bytearray(data)
    damaged[at] ^= 1
    assert take_run(PREFIX, "t", SESSION, memoryview(bytes(damaged)), 0, segment) is None


def test_a_datagram_of_another_stream_is_of_no_run():
    data, segment = sealed(10, topic="u")
    assert take_run(PREFIX, "t", SESSION, data, 0, segment) is None
