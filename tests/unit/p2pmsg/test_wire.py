"""Frames: what arrives, what is refused, and that others can read them after design.md."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pmsg import control, wire
from p2pmsg.wire import Frame, FrameError, Kind, decode_columns
from tests.unit.p2pmsg.frames import SESSION, VALID, header

FIELDS = {
    "topic": ({"topic": "dépôt".encode()}, "topic", "dépôt"),
    "longest topic": ({"topic": b"x" * 255}, "topic", "x" * 255),
    "kind": ({"kind": 2, "body": b""}, "kind", Kind.HEARTBEAT),
    "flags": ({"flags": 255}, "flags", 255),
    "session": ({"session": 2**64 - 1}, "session", 2**64 - 1),
    "sequence": ({"sequence": 2**63 - 2}, "sequence", 2**63 - 2),
    "count": ({"count": 2, "body": b"\x94\x92\x01\x02\xc0\xc0\xc0"}, "count", 2),
    "base timestamp": ({"base_ns": -(2**63)}, "base_timestamp_ns", -(2**63)),
    "body": ({"topic": b"", "kind": 17, "count": 0, "body": b"abc"}, "body_at", 39),
}


@pytest.mark.parametrize(("changes", "name", "value"), FIELDS.values(), ids=FIELDS)
def test_a_header_field_arrives(changes, name, value):
    assert getattr(Frame(header(**changes)), name) == value


MALFORMED = {
    "nothing": (b"", "no topic"),
    "a topic too long": (header(topic=b"x" * 256), "no topic"),
    "only a topic": (b"t\0", "truncated"),
    "a topic that is not UTF-8": (header(topic=b"\xff\xfe"), "topic"),
    "another magic": (header(magic=b"P2"), "magic"),
    "another version": (header(version=2), "version"),
    "kind 6, which is free": (header(kind=6), "kind"),
    "compressed, which is for later": (header(compression=1), "compression"),
    "a body cut short": (header()[:-1], "length"),
    "a length that lies": (header(length=2**32 - 1), "length"),
    "a sequence too high": (header(sequence=2**64 - 1), "sequence"),
    "data without a topic": (header(topic=b""), "count"),
    "no messages": (header(count=0, body=b"\x94\x90\xc0\xc0\xc0"), "count"),
    "a count that lies": (header(count=5), "count"),
    "no body": (header(body=b""), "count"),
    "an array of three": (header(body=b"\x93\x91\x01\xc0\xc0"), "count"),
    "values that are no array": (header(body=b"\x94\xc4\x01a\xc0\xc0"), "count"),
}


@pytest.mark.parametrize(("data", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_frame_is_refused_by_reason(data, reason):
    with pytest.raises(FrameError) as raised:
        Frame(data)
    assert str(raised.value) == reason


HUGE = b"\xdd\xff\xff\xff\xff"
BODIES = {
    "values cut short": (b"\x94\x91", 1, "body"),
    "more after the columns": (b"\x94\x91\x01\xc0\xc0\xc0\x01", 1, "body"),
    "as many values as it claims, but none there": (b"\x94\xdc\0\4", 4, "body"),
    "bytes that claim to be huge": (b"\x94\x91\xc6\xff\xff\xff\xff\xc0\xc0\xc0", 1, "body"),
    "a str that is not UTF-8": (b"\x94\x91\xa1\xff\xc0\xc0\xc0", 1, "body"),
    "lists in lists without end": (b"\x94\x91" + b"\x91" * 100_000, 1, "body"),
    "timestamps of another type": (b"\x94\x91\x01\x91\xa1x\xc0\xc0", 1, "body"),
    "keys of another type": (b"\x94\x91\x01\xc0\x91\x01\xc0", 1, "body"),
    "headers of another type": (b"\x94\x91\x01\xc0\xc0\x91\x01", 1, "body"),
    "too many keys": (b"\x94\x91\x01\xc0\x92\xc0\xc0\xc0", 1, "columns"),
}


@pytest.mark.parametrize(("body", "count", "reason"), BODIES.values(), ids=BODIES)
def test_a_malformed_body_is_refused_by_reason(body, count, reason):
    frame = Frame(header(body=body, count=count))

    with pytest.raises(FrameError) as raised:
        decode_columns(frame)
    assert str(raised.value) == reason


KINDS_OF_BODY = {
    "welcome": control.Welcome,
    "echo": control.Heads,
    "nack": control.Nack,
    "refused": control.Refused,
    "probe": control.Probe,
    "joined": control.Joined,
    "heartbeat": control.Heartbeat,
}


@pytest.mark.parametrize(("name", "kind"), KINDS_OF_BODY.items(), ids=KINDS_OF_BODY)
def test_a_control_body_arrives_or_is_refused(name, kind):
    frame = Frame(VALID[name])
    body = control.read_body(frame, kind)
    assert wire.encoder.encode(body) == frame.data[frame.body_at :]

    for hostile in (b"", b"\xc1", HUGE, b"\x90", b"\x93\xc0\xc0\xc0", b"\x81\x01\x01", b"\x91\xff"):
        frame = Frame(header(topic=b"", kind=frame.kind, count=0, body=hostile))
        with pytest.raises(FrameError, match="body"):
            control.read_body(frame, kind)


LIMITS = {
    "a sequence below 0": control.Nack("t", [(-1, 2)]),
    "a sequence too high": control.Nack("t", [(0, 2**63)]),
    "too many ranges": control.Nack("t", [(0, 1)] * 1025),
    "no topic": control.Nack("", [(0, 1)]),
    "a topic too long": control.Nack("x" * 256, [(0, 1)]),
}


@pytest.mark.parametrize("body", LIMITS.values(), ids=LIMITS)
def test_a_nack_outside_its_limits_is_refused(body):
    frame = Frame(wire.control_frame(Kind.NACK, SESSION, body))

    with pytest.raises(FrameError, match="body"):
        control.read_body(frame, control.Nack)


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
    for kind in KINDS_OF_BODY.values():
        try:
            control.read_body(frame, kind)
        except FrameError:
            pass
    return True


RANDOM_BODIES = st.binary(max_size=60).map(lambda rest: with_body(b"\x94" + rest))


@settings(max_examples=1000)
@given(st.one_of(ANY_BYTES, mutated(), mutated(), RANDOM_BODIES))
def test_whatever_comes_off_the_wire_raises_nothing_but_frame_errors(data):
    read_all(data)


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

    def peak():
        tracemalloc.start()
        try:
            read_all(data)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # What a thread of a former test takes meanwhile is counted, too.
    assert any(peak() < 64 * 1024 + 100 * len(data) for _ in range(3))
