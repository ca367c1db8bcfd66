"""Frames in datagrams, and trains of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import wire
from p2pmsg.multicast import datagram
from p2pmsg.multicast.sender import pack_datagrams
from p2pmsg.wire import Frame, FrameError, Kind
from tests.unit.p2pmsg.frames import data as data_frame
from tests.unit.p2pmsg.subscriber.test_group import SESSION, SOURCE, Member

PLAIN = wire.stream_prefix("t", SESSION, wire.FLAG_PLAIN)
values_lists = st.lists(
    st.binary(max_size=60)
    | st.integers().filter(lambda n: -(2**63) <= n < 2**64)
    | st.none()
    | st.text(max_size=9),
    min_size=1,
    max_size=60,
)


def frames_of(values, frame_bytes=300, sequence=0):
    made, at = [], 0
    while at < len(values):
        packed = pack_datagrams(
            PLAIN, sequence + at, 5, values[at:], None, None, 4, frame_bytes, bytearray()
        )
        made += [frame for _, _, frame, _ in packed]
        at = packed[-1][0] + packed[-1][1] - sequence
    return made


def member():
    """Return a subscriber's core that has joined a group's session, at sequence 0."""
    return Member(2**24, start="latest").core


def give(core, frames, size=0):
    sealed = [datagram.with_checksum(frame, size) for frame in frames]
    data = memoryview(bytearray(b"".join(sealed)))
    core.receive_datagrams(0, data, len(sealed[0]), SOURCE, now_ns=1)


def delivered(core):
    values = []
    while (taken := core.ready.take()) is not None:
        _, loss, _, _, messages = taken
        assert loss is None
        values += [message.value for message in messages]
    return values


@given(st.binary(max_size=200), st.integers(0, 400))
def test_a_sealed_frame_is_opened_again(body, size):
    frame = wire.control_frame(Kind.HEARTBEAT, 5, body, topic=b"topic")
    sealed = datagram.with_checksum(frame, size)
    assert len(sealed) == max(size, len(frame) + 4)
    assert datagram.open_datagram(memoryview(sealed)) == frame


@given(st.binary(max_size=100))
def test_any_bytes_are_refused(data):
    with pytest.raises(FrameError):
        datagram.open_datagram(data)


@given(st.integers(300, 5000), st.integers(120, 600))
def test_a_large_frame_goes_in_parts_that_fit(size, datagram_bytes):
    frame = frames_of([bytes(size)])[0]
    parts = datagram.fragments(frame, datagram_bytes)
    assert all(len(part) + 4 <= max(datagram_bytes, 130) for part in parts)
    found = [datagram.read_part(Frame(part)) for part in parts]
    assert b"".join(part for _, _, _, part in found) == frame
    assert [index for index, _, _, _ in found] == list(range(len(parts)))


@given(values_lists, st.integers(120, 1500))
def test_many_values_go_in_frames_that_fit_and_lose_nothing(values, frame_bytes):
    frames = [Frame(data) for data in frames_of(values, frame_bytes)]
    assert [v for frame in frames for v in wire.decode_columns(frame)[0]] == values
    assert all(len(frame.data) <= frame_bytes or frame.count == 1 for frame in frames)
    following = 0
    for frame in frames:
        assert frame.sequence == following
        following += frame.count


@given(values_lists, st.integers(120, 500))
def test_a_train_is_delivered_as_its_datagrams_would_be(values, frame_bytes):
    frames = frames_of(values, frame_bytes)
    size = max(map(len, frames)) + 4
    train, singly = member(), member()
    give(train, frames[:1])
    give(train, frames[1:] or frames[:1], size)
    for frame in frames:
        give(singly, [frame])
    assert delivered(train) == delivered(singly) == values


@given(values_lists, st.data())
def test_a_train_with_holes_is_filled_in_by_repairs(values, data):
    frames = frames_of(values, 150)
    size = max(map(len, frames)) + 4
    kept = data.draw(st.lists(st.booleans(), min_size=len(frames), max_size=len(frames)))
    core = member()
    some = [frame for frame, keep in zip(frames, kept, strict=True) if keep]
    if some:
        give(core, some, size)
    for frame, keep in zip(frames, kept, strict=True):
        if not keep:
            give(core, [datagram.with_flags(frame, add=wire.FLAG_RETRANSMISSION)])
    assert delivered(core) == values
    assert not core.invalid


def sealed(*sequences, topic="t", **options):
    """A train of datagrams of two messages each, and how long one is."""
    plain = [
        datagram.with_flags(
            data_frame([s, s + 1], topic=topic, session=SESSION, sequence=s, **options),
            add=wire.FLAG_PLAIN,
        )
        for s in sequences
    ]
    train = [datagram.with_checksum(frame) for frame in plain]
    return memoryview(b"".join(train)), len(train[0])


def test_a_run_becomes_one_frame_with_all_values():
    data, segment = sealed(10, 12, 14)
    run = datagram.take_run(PLAIN, "t", SESSION, data, 0, segment)
    assert run is not None
    assert (run.datagrams, run.after) == (3, len(data))
    frame = Frame(run.frame.data)
    assert (frame.topic, frame.session, frame.sequence, frame.count) == ("t", SESSION, 10, 6)
    values = wire.decode_body(frame.data, frame.body_at, frame.count, frame.base_timestamp_ns)[0]
    assert list(values) == [10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize("at", [20, -1])
def test_a_damaged_datagram_is_of_no_run(at):
    data, segment = sealed(10)
    damaged = bytearray(data)
    damaged[at] ^= 1
    assert datagram.take_run(PLAIN, "t", SESSION, memoryview(bytes(damaged)), 0, segment) is None
