"""Whatever comes off the wire: a frame, or `FrameError`; and no memory for what is not there."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg import control
from p2pmsg.wire import Frame, FrameError, Kind, decode_columns, next_frame, stream_prefix
from tests.unit.p2pmsg.frames import SESSION, VALID, header

BODIES = (
    control.Welcome, control.Probe, control.Heads, control.Joined, control.Nack, control.Refused,
    control.Heartbeat,
)  # fmt: skip
ANY_BYTES = st.binary(max_size=300)


@st.composite
def mutated(draw):
    """A valid frame with a few bytes changed, cut out or put in."""
    frame = bytearray(draw(st.sampled_from(list(VALID.values()))))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(frame)))
        what = draw(st.sampled_from(("set", "cut", "put")))
        if what == "set" and at < len(frame):
            frame[at] = draw(st.integers(0, 255))
        elif what == "cut":
            del frame[at : at + draw(st.integers(1, 8))]
        else:
            frame[at:at] = draw(st.binary(max_size=8))
    return bytes(frame)


def with_body(body):
    """A frame whose header is right, whatever the body is."""
    claimed = body[1] & 15 if len(body) > 1 else 1
    return header(body=body, count=max(1, claimed))


def read_all(data):
    """Read a frame in every way there is; says whether it was one."""
    try:
        frame = Frame(data)
    except FrameError:
        return False
    if frame.kind == Kind.DATA:
        try:
            values, *others = decode_columns(frame)
            assert len(values) == frame.count
            assert all(column is None or len(column) == frame.count for column in others)
        except FrameError:
            pass
    for kind in BODIES:
        try:
            control.read_body(frame, kind)
        except FrameError:
            pass
    return True


@settings(max_examples=500)
@given(ANY_BYTES)
def test_random_bytes_raise_nothing_but_frame_errors(data):
    read_all(data)


@settings(max_examples=1000)
@given(mutated())
def test_mutated_frames_raise_nothing_but_frame_errors(data):
    read_all(data)


@settings(max_examples=500)
@given(st.binary(max_size=60).map(lambda rest: with_body(b"\x94" + rest)))
def test_random_bodies_raise_nothing_but_frame_errors(data):
    read_all(data)


@settings(max_examples=500)
@given(st.one_of(mutated(), st.binary(max_size=60).map(lambda rest: with_body(b"\x94" + rest))))
def test_the_short_way_to_a_frame_finds_what_the_long_way_finds(data):
    prefix = stream_prefix("t", SESSION)
    if not data.startswith(prefix):
        return
    short = next_frame(data, prefix, "t", SESSION)
    try:
        whole = Frame(data)
    except FrameError:
        assert short is None
        return
    assert short is not None
    assert all(getattr(short, field) == getattr(whole, field) for field in Frame.__slots__)


LARGE_CLAIMS = (
    b"\xdd\x7f\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xc6\x7f\xff\xff\xff",
    b"\xdc\xff\xff",
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(LARGE_CLAIMS) | st.binary(max_size=6), min_size=1, max_size=8),
    st.sampled_from((1, 16, 20, 21, 18)),
)
def test_no_memory_is_taken_for_what_a_frame_claims(parts, kind):
    body = b"\x94" + b"".join(parts)
    count = (
        int.from_bytes(body[2:6], "big") if body[1:2] == b"\xdd" else max(1, body[1] & 15)
        if len(body) > 1 else 1
    )  # fmt: skip
    data = header(topic=b"t" if kind == 1 else b"", kind=kind, count=count, body=body)
    tracemalloc.start()
    try:
        read_all(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024 + 100 * len(data)
