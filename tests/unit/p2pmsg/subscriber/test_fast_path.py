"""The fast path gives what `receive_frame` and `take` give, or leaves the frame to them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pmsg.message import Message
from p2pmsg.wire import Frame, decode_columns
from tests.unit.p2pmsg import frames
from tests.unit.p2pmsg.subscriber_talk import Talk, data, head

COUNT_MAX = 3


def single(core, stream, frame):
    return core.take_frame(stream, frame, 1, 7)


def either(core, stream, frame):
    return core.take_frame(stream, frame, COUNT_MAX, 7)


def joined(**options):
    """A subscriber that has read message 4."""
    talk = Talk(**options).join(head(4))
    talk.hear(data(4))
    assert talk.read() == [("t", 4, 1)]
    return talk, talk.core.last_stream


def ledger(stream):
    return stream.ledger(0), stream.delivered_to, stream.delivered_count


REFUSED = {
    "a gap before it": data(6),
    "a duplicate": data(4),
    "another stream": data(5, topic="u"),
    "another session": data(5, session=9),
    "another kind": frames.header(kind=2, sequence=5),
    "a sequence out of bounds": data(2**63 - 1),
    "a body that is not msgpack": frames.header(sequence=5, body=b"\x94\x91\xc1\xc0\xc0\xc0"),
    "a column too short": frames.header(sequence=5, body=b"\x94\x91\x01\xc0\x90\xc0"),
    "a wrong count": frames.header(sequence=5, count=2),
    "a wrong length": data(5)[:-1],
    "the prefix alone": data(5)[:20],
    "nothing": b"",
}


@pytest.mark.parametrize("take", [single, either])
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_the_next_frame_is_left_to_the_slow_path(take, what):
    talk, stream = joined()
    before = ledger(stream), talk.core.lines[0].received
    assert take(talk.core, stream, REFUSED[what]) is None
    assert (ledger(stream), talk.core.lines[0].received) == before


bodies = st.one_of(
    st.builds(
        lambda lead, value, end: lead + value + end,
        st.sampled_from([b"\x94\x91\xc4", b"\x94\x91\xc5\x00", b"\x94\x91", b"\x94\x92\xc4"]),
        st.integers(0, 300).flatmap(lambda size: st.just(bytes([size % 256]) + b"v" * size)),
        st.sampled_from([b"\xc0\xc0\xc0", b"\xc0\xc0", b"\xc0\xc0\xc0\xc0", b"\xc0\x90\xc0"]),
    ),
    st.binary(max_size=12).map(lambda body: b"\x94\x91" + body + b"\xc0\xc0\xc0"),
)


@given(bodies)
@example(b"\x94\x91\xc5\x00\xff" + b"v" * 255 + b"\xc0\xc0\xc0")  # longer than it need be
@example(b"\x94\x91\xc4\x00\xc0\xc0\xc0")
@example(b"\x94\x91\xc4\x00\xc0\xc0")
@example(b"\x94\x91\xca\x7f\x80\x00\x01\xc0\xc0\xc0")
def test_a_single_message_is_read_as_the_slow_path_reads_it_or_not_at_all(body):
    talk, stream = joined()
    frame = frames.header(sequence=5, body=body)
    message = single(talk.core, stream, frame)
    if message is not None:
        (value,), *others = decode_columns(Frame(frame))
        base, found = 0, (message.timestamp_ns, message.key, message.headers)
        assert message.value == value or (message.value != message.value and value != value)
        assert type(message.value) is type(value)
        assert found == tuple(
            other if column is None else column[0]
            for column, other in zip(others, (base, None, None), strict=True)
        )


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5), st.booleans()), max_size=12))
def test_mixed_with_the_slow_path_each_message_comes_once_and_in_order(arrivals):
    """Frames in any order, some of them offered to the fast path first, as the shell does."""
    fast, stream = joined()
    slow, other = joined()
    got, due = [], []
    for at, count, hurried in arrivals:
        frame = data(5 + at, count)
        taken = either(fast.core, stream, frame) if hurried else None
        if taken is None:
            fast.hear(frame)
            got += fast.read()
        else:
            got.append(("t", taken.sequence, 1 if isinstance(taken, Message) else len(taken)))
        slow.hear(frame)
        due += slow.read()
    assert got == due
    assert ledger(stream) == ledger(other)
