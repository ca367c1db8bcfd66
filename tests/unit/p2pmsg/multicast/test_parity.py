"""Forward error correction: what may be lost of a block, and what may not."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import ConfigError, wire
from p2pmsg.config import MulticastPublisherConfig
from p2pmsg.multicast import parity
from p2pmsg.publisher.batch import pack_slice
from p2pmsg.wire import Frame, FrameError, Kind
from tests.unit.memory import bytes_kept

SESSION = 9


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
