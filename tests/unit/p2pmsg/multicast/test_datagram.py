"""Datagrams of a multicast: trains, parity, marks of progress, who sends, who looks on."""

import itertools
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import ConfigError, control, wire
from p2pmsg.config import MulticastPublisherConfig, PublisherConfig
from p2pmsg.control import Heartbeat
from p2pmsg.listener import Listener
from p2pmsg.multicast import datagram, parity
from p2pmsg.multicast.progress import WAITING_MAX, ProgressMarks
from p2pmsg.multicast.sender import MulticastSender, pack_datagrams
from p2pmsg.publisher.packing import pack_slice
from p2pmsg.publisher.served import PublisherStream
from p2pmsg.wire import Frame, FrameError, Kind, decode_columns
from recovery import ReceiverConfig, ReplayBuffer, StreamReceiver
from tests.unit.memory import bytes_kept
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.publisher.served import FakeServed, kept
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
    sealed_train = [datagram.with_checksum(frame, size) for frame in frames]
    data = memoryview(bytearray(b"".join(sealed_train)))
    core.receive_datagrams(0, data, len(sealed_train[0]), SOURCE, now_ns=1)


def delivered(core):
    values = []
    while (taken := core.ready.take()) is not None:
        _, loss, _, _, messages = taken
        assert loss is None
        values += [message.value for message in messages]
    return values


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


def sealed_train(*sequences, topic="t", **options):
    """A train of datagrams of two messages each, and how long one is."""
    plain = [
        datagram.with_flags(
            frames.data([s, s + 1], topic=topic, session=SESSION, sequence=s, **options),
            add=wire.FLAG_PLAIN,
        )
        for s in sequences
    ]
    train = [datagram.with_checksum(frame) for frame in plain]
    return memoryview(b"".join(train)), len(train[0])


@pytest.mark.parametrize("at", [20, -1])
def test_a_damaged_datagram_is_of_no_run(at):
    data, segment = sealed_train(10)
    damaged = bytearray(data)
    damaged[at] ^= 1
    assert datagram.take_run(PLAIN, "t", SESSION, memoryview(bytes(damaged)), 0, segment) is None


def data(sequence, value=b"x", topic="t"):
    prefix = wire.stream_prefix(topic, SESSION)
    return pack_slice(prefix, sequence, 0, [value], None, None, bytearray())[0]


def block(count, extra):
    """Return data frames of different lengths, and the parity that follows them."""
    maker = parity.ParityMaker(SESSION, count, extra)
    frames = [data(n, bytes(10 * n), topic="tu"[n % 2]) for n in range(count)]
    made = [maker.follow(frame) for frame in frames]
    assert all(not some for some in made[:-1])
    return frames, made[-1]


def wants(topic):
    return True


@pytest.mark.parametrize("extra", [1, 2, 3])
def test_as_many_may_be_lost_as_there_is_parity_and_no_more(extra):
    frames, codes = block(6, extra)
    for lost_count in range(1, extra + 2):
        for lost in itertools.combinations(range(6), lost_count):
            reader = parity.ParityReader()
            for index, frame in enumerate(frames):
                if index not in lost:
                    found = Frame(frame)
                    reader.note(SESSION, found.topic, found.sequence, frame)
            recovered = [frame for code in codes for frame in reader.take(Frame(code), wants)]
            expected = [frames[index] for index in lost] if lost_count <= extra else []
            assert [frame for frame in recovered if frame in frames][: len(expected)] == expected
            assert set(recovered) == set(expected)


@given(st.lists(st.binary(min_size=8, max_size=8), min_size=1, max_size=20), st.data())
def test_reed_solomon_works_out_any_that_are_missing(pieces, chosen):
    extra = chosen.draw(st.integers(2, 4))
    codes = dict(enumerate(parity.encode(pieces, extra)))
    lost = chosen.draw(st.sets(st.integers(0, len(pieces) - 1), min_size=1, max_size=extra))
    kept = dict(sorted(codes.items())[extra - len(lost) :])
    known = {n: piece for n, piece in enumerate(pieces) if n not in lost}
    found = parity.decode(known, kept, len(pieces), extra)
    assert found == {n: pieces[n] for n in sorted(lost)}


MALFORMED = {
    "no body": b"\x90",
    "another count": parity.Parity(3, 1, 0, ["t"], [(0, 0, 5)], bytes(9)),
    "a topic that is not there": parity.Parity(1, 1, 0, ["t"], [(1, 0, 5)], bytes(9)),
    "a frame longer than the code": parity.Parity(1, 1, 0, ["t"], [(0, 0, 10)], bytes(9)),
    "an index beyond the last": parity.Parity(1, 1, 1, ["t"], [(0, 0, 5)], bytes(9)),
    "too many frames": parity.Parity(65, 1, 0, ["t"], [(0, 0, 5)] * 65, bytes(9)),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_what_is_malformed_is_refused(body):
    raw = wire.codec.Raw(body) if isinstance(body, bytes) else body
    frame = wire.control_frame(Kind.PARITY, SESSION, raw)
    with pytest.raises(FrameError, match="parity"):
        parity.ParityReader().take(Frame(frame), wants)


def test_what_it_remembers_is_bounded(monkeypatch):
    monkeypatch.setattr(parity, "FRAMES_HELD_MAX", 5)
    monkeypatch.setattr(parity, "BLOCKS_HELD_MAX", 2)
    reader = parity.ParityReader()

    def read():
        for number in range(200):
            reader.note(SESSION, "t", number, bytes(10_000))
            body = parity.Parity(2, 1, 0, ["t"], [(0, 2 * number, 5)] * 2, bytes(10_000))
            frame = wire.control_frame(Kind.PARITY, SESSION, body, sequence=number)
            assert reader.take(Frame(frame), wants) == []

    assert 70_000 <= bytes_kept(read) < 100_000


@pytest.mark.parametrize(
    "options",
    [
        {"fec_data": 65}, {"fec_parity": 0}, {"fec_parity": 17}, {"datagram_bytes": 511},
        {"datagram_bytes": 1453},
    ],
)  # fmt: skip
def test_what_is_out_of_limits_is_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        MulticastPublisherConfig(**options)
    assert MulticastPublisherConfig(datagram_bytes=1452).datagram_bytes == 1452


def test_without_the_package_more_than_one_is_refused(monkeypatch):
    monkeypatch.setattr(parity, "_zfec", lambda: None)
    parity.require_codec(1)
    with pytest.raises(ConfigError, match="zfec"):
        parity.require_codec(2)


@pytest.fixture
def receiver():
    """A stream that misses its first message."""
    receiver = StreamReceiver(ReceiverConfig(), Random(1))
    receiver.start_at(0, now_ns=0)
    receiver.observe_head(1, now_ns=0)
    return receiver


def test_only_so_many_marks_are_remembered(receiver):
    marks = ProgressMarks()
    for position in range(WAITING_MAX + 5):
        marks.note(position, [receiver])
    assert len(marks._waiting) == WAITING_MAX


DATAGRAM_BYTES = 400


def sender_of(*frames, head=None, frames_max=100):
    served = FakeServed(*frames, heads=head and {"t": head})
    replay = ReplayBuffer(frames_max=frames_max)
    for one in frames:
        count = one.stop - one.start
        replay.append("t", one.start, count, one.frame, now_ns=0, timestamp_ns_max=0)
    return MulticastSender(served, replay, PublisherConfig(), DATAGRAM_BYTES, Random(1))


def admitted(multicast, subscriber=7):
    """Return the token that a subscriber gets."""
    body = control.read_body(Frame(multicast.admit(subscriber, b"it")), control.Admitted)
    return body.token


def ask(multicast, *ranges, token, now_ns=0):
    body = control.Nack("t", list(ranges), 1, token=token)
    nack = wire.control_frame(Kind.NACK, frames.SESSION, body)
    multicast.receive(datagram.with_checksum(nack), SOURCE, now_ns=now_ns)
    repairs = []
    while (repair := multicast.next_repair(now_ns=now_ns)) is not None:
        multicast.repair_sent(repair, now_ns=now_ns)
        repairs.append((repair.start, repair.stop))
    return repairs


@pytest.mark.parametrize(("start", "stop", "repaired"), [(0, 3, []), (2, 4, [(3, 4)])])
def test_what_the_buffer_has_forgotten_is_not_answered(start, stop, repaired):
    multicast = sender_of(kept(0, 3), kept(3), kept(4), frames_max=2)
    assert ask(multicast, (start, stop), token=admitted(multicast)) == repaired


def test_what_is_not_known_to_be_published_is_not_answered():
    """Its frame is in the buffer, but not on the disk yet."""
    multicast = sender_of(kept(0, 3), kept(3), head=(0, 3))
    assert ask(multicast, (0, 4), token=admitted(multicast)) == [(0, 3)]


@pytest.mark.parametrize("keyed", [False, True])
def test_values_are_packed_into_frames_of_a_datagram_each(keyed):
    multicast = sender_of()
    stream = PublisherStream(FakeServed(), "t", b"t", 0)
    values = [bytes(20)] * 200
    keys = [f"k{number}" for number in range(200)] if keyed else None
    at, sizes = 0, []
    while at < len(values):
        rest = keys and keys[at:]
        made = multicast.pack(stream, at, values[at:], rest, None, wall_ns=1, buffer=bytearray())
        for start, count, data, _ in made:
            frame = Frame(data)
            assert (frame.sequence, frame.count, start) == (at, count, at)
            part_keys = None if keys is None else keys[at : at + count]
            assert decode_columns(frame)[::2] == (values[at : at + count], part_keys)
            sizes.append(len(data))
            at += count
    assert max(sizes) <= multicast.frame_bytes
    assert sizes[-2] > 0.9 * multicast.frame_bytes, "it learns how many fit"


HERE = ("10.0.0.1", 4000)


def data_of(sequence, count, topic="t"):
    prefix = wire.stream_prefix(topic, SESSION)
    return pack_slice(prefix, sequence, 0, [b"x"] * count, None, None, bytearray())[0]


def pass_by(listener, frame):
    sealed = datagram.with_checksum(frame)
    listener.receive(memoryview(sealed), len(sealed), HERE)


def test_what_does_not_come_is_missing_until_it_is_repaired():
    listener = Listener()
    pass_by(listener, data_of(0, 5))
    pass_by(listener, data_of(10, 5))
    beat = wire.control_frame(wire.Kind.HEARTBEAT, SESSION, Heartbeat(0), sequence=20, topic=b"t")
    pass_by(listener, beat)
    (view,) = listener.streams.values()
    assert list(view.missing) == [(5, 10), (15, 20)]
    pass_by(listener, datagram.with_flags(data_of(5, 5), add=wire.FLAG_RETRANSMISSION))
    assert (view.missing_count, view.repairs, view.messages) == (5, 1, 10)
    pass_by(listener, data_of(0, 5))
    assert view.duplicates == 5


def test_garbage_is_counted():
    listener = Listener()
    for size in (0, 10, 100):
        listener.receive(memoryview(bytes(size)), size or 1, HERE)
    assert listener.invalid == {"truncated": 2, "crc": 1}
    assert not listener.streams


def test_streams_are_bounded(monkeypatch):
    monkeypatch.setattr("p2pmsg.listener.STREAMS_MAX", 3)
    listener = Listener()
    for index in range(5):
        pass_by(listener, data_of(0, 1, f"t{index}"))
    assert len(listener.streams) == 3
