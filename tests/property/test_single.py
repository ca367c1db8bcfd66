"""A single message is decoded as a whole frame is, or both refuse it."""

from hypothesis import example, given
from hypothesis import strategies as st

from p2pmsg.wire import Frame, FrameError, decode_columns, decode_one, encoder
from tests.unit.p2pmsg.frames import header

plain = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
values = st.recursive(
    plain | st.binary(max_size=300) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
columns = st.sampled_from([None, [], [None], ["k"], ["k", "l"], [{"h": 1}], [1], 7])


def check(body):
    data = header(body=body)
    try:
        columns = decode_columns(Frame(data))
    except FrameError:
        columns = None
    try:
        value, timestamp_ns, key, headers = decode_one(data, len(data) - len(body), 0)
    except FrameError:
        assert columns is None or len(columns[0]) != 1
        return None
    found = [[value], [timestamp_ns], [key], [headers]]
    whole = [one or [other] for one, other in zip(columns, (0, 0, None, None), strict=True)]
    assert encoder.encode(found) == encoder.encode(whole)  # packed, since nan is not itself
    assert encoder.encode(decode_columns(Frame(data))) == encoder.encode(columns)
    assert type(value) is type(columns[0][0])
    return found


@given(values)
@example(b"")
@example(b"\xc0" * 255)
@example(b"\xc0" * 256)
def test_a_plain_message_is_read_alike(value):
    assert check(encoder.encode([[value], None, None, None]))[0] == [value]


@given(st.lists(values, max_size=3), columns, columns, columns)
def test_other_columns_come_along_and_other_counts_are_refused(many, times, keys, headers):
    got = check(encoder.encode([many, times, keys, headers]))
    if len(many) != 1:
        assert got is None


@given(values, st.data())
def test_damage_is_noticed_by_both_or_by_neither(value, data):
    body = bytearray(encoder.encode([[value], None, None, None]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.sampled_from([0x91, 0x92, 0xC0, 0xC4, 0xC5, 0x00, 0xFF]))
    if data.draw(st.booleans()):
        del body[data.draw(st.integers(0, len(body) - 1)) :]
    check(bytes(body))
