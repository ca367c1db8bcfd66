"""Parts of frames, and how new frames are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import wire
from p2pmsg.relay.slicing import newest_ns, slice_frame
from p2pmsg.wire import Frame, FrameError
from tests.unit.p2pmsg import frames

VALUES = st.one_of(st.binary(max_size=8), st.text(max_size=8), st.integers(-9, 9), st.none())
KEYS = st.one_of(st.none(), st.text(max_size=4))
HEADERS = st.one_of(st.none(), st.dictionaries(st.text(max_size=3), VALUES, max_size=2))


@st.composite
def frames_and_parts(draw):
    count = draw(st.integers(1, 20))

    def column(each):
        return draw(st.one_of(st.none(), st.lists(each, min_size=count, max_size=count)))

    values = draw(st.lists(VALUES, min_size=count, max_size=count))
    columns = (column(st.integers(-(10**6), 10**6)), column(KEYS), column(HEADERS))
    skip = draw(st.integers(0, count - 1))
    frame = Frame(frames.data(values, sequence=draw(st.integers(0, 9)), columns=columns))
    return frame, skip, draw(st.integers(1, count - skip))


@given(frames_and_parts())
def test_a_part_has_what_the_whole_has(given_):
    frame, skip, count = given_
    part = slice_frame(frame, skip, count)
    assert (part.topic, part.session, part.kind) == (frame.topic, frame.session, frame.kind)
    assert (part.sequence, part.count) == (frame.sequence + skip, count)
    for whole, cut in zip(wire.decode_columns(frame), wire.decode_columns(part), strict=True):
        assert cut == (None if whole is None else whole[skip : skip + count])
    times = wire.decode_columns(part)[1]
    assert newest_ns(part) == (frame.base_timestamp_ns if times is None else max(times))


MALFORMED = {
    "no msgpack": b"\x94\x91\xc1\xc0\xc0\xc0",
    "times that are none": b"\x94\x91\x01\x91\xa1x\xc0\xc0",
    "too many times": b"\x94\x91\x01\x92\x01\x02\xc0\xc0",
    "cut off": b"\x94\x91\x01\xc0",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bodies_are_refused(body):
    with pytest.raises(FrameError):
        newest_ns(Frame(frames.header(body=body)))
