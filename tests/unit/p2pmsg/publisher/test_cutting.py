"""Parts of frames: their messages are those of the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.publisher.cutting import cut
from p2pmsg.wire import Frame, FrameError, decode_columns
from tests.unit.p2pmsg.frames import data

values = st.one_of(st.binary(max_size=40), st.text(max_size=9), st.lists(st.integers(0, 9)))
rows = st.tuples(
    values,
    st.integers(-9, 2**40),
    st.none() | st.text(max_size=9),
    st.none() | st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
)


@given(st.lists(rows, min_size=1, max_size=9), st.tuples(*[st.booleans()] * 3), st.data())
def test_parts_have_the_messages_of_the_whole_and_fit(rows, has, drawn):
    columns = [list(column) for column in zip(*rows, strict=True)]
    others = [column if there else None for column, there in zip(columns[1:], has, strict=True)]
    frame = Frame(data(columns[0], columns=others, sequence=5, base_ns=1000))
    whole = decode_columns(frame)
    limit = drawn.draw(st.integers(60, 300))
    at = drawn.draw(st.integers(5, 4 + len(rows)))
    while at < 5 + len(rows):
        found = cut(frame, at, limit)
        if found is None:
            at += 1
            continue
        made, stop = found
        part = Frame(made)
        assert len(made) <= limit
        assert (part.sequence, part.sequence + part.count) == (at, stop)
        assert (part.topic, part.session, part.flags) == (frame.topic, frame.session, frame.flags)
        expected = tuple(column and column[at - 5 : stop - 5] for column in whole)
        assert decode_columns(part) == expected
        at = stop
    assert cut(frame, 5, 1) is None


@pytest.mark.parametrize("columns", [([0], None, None), (None, ["k"], None), (7, None, None)])
def test_a_frame_whose_body_is_malformed_is_not_cut(columns):
    with pytest.raises(FrameError):
        cut(Frame(data([1, 2], columns=columns)), 0, 1000)
