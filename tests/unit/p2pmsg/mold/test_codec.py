"""MoldUDP64 packets: the examples of the specification's layout, and everything that is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import ConfigError
from p2pmsg.mold import codec
from p2pmsg.wire import FrameError

SESSION = b"0123456789"


def test_a_packet_is_what_the_specification_draws():
    data = codec.packet(b"SESSION   ", 258, [b"abc", b"", b"d"])
    assert data == b"SESSION   " + b"\0\0\0\0\0\0\1\2" + b"\0\3" + b"\0\3abc\0\0\0\1d"
    assert codec.read_packet(data) == (b"SESSION   ", 258, [b"abc", b"", b"d"], False)


GOOD = codec.packet(SESSION, 1, [b"abc", b"de"])
MALFORMED = {
    "nothing": (b"", "truncated"),
    "half a header": (GOOD[:19], "truncated"),
    "fewer messages than said": (GOOD[:-4], "count"),
    "half a length": (GOOD[:-3], "count"),
    "half a message": (GOOD[:-1], "length"),
    "more than said": (GOOD + b"x", "length"),
    "a heartbeat with something more": (codec.heartbeat(SESSION, 1) + b"x", "length"),
    "an end with something more": (codec.end_of_session(SESSION, 1) + b"\0\0", "length"),
    "a sequence too high": (codec.heartbeat(SESSION, 2**64 - 1), "sequence"),
}


@pytest.mark.parametrize(("data", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_packet_is_refused_by_reason(data, reason):
    with pytest.raises(FrameError, match=reason):
        codec.read_packet(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_packet_or_refused(data):
    try:
        packet = codec.read_packet(data)
    except FrameError:
        return
    if packet.messages:
        assert codec.packet(packet.session, packet.sequence, packet.messages) == data


@given(
    st.lists(st.binary(max_size=60), min_size=1),
    st.integers(1, 2**40),
    st.integers(codec.HEADER_BYTES + 2, 200),
)
def test_messages_are_packed_in_order_and_within_the_size(messages, sequence, bytes_max):
    found, following = [], sequence
    for first, count, data in codec.packets(SESSION, sequence, messages, bytes_max):
        packet = codec.read_packet(data)
        assert (first, count) == (packet.sequence, len(packet.messages)) == (following, count)
        assert len(data) <= bytes_max or count == 1
        found += packet.messages
        following += count
    assert found == messages


@pytest.mark.parametrize("name", ["", " ", "          ", "elevenchars", "ümlaut", "tab\t", 5])
def test_a_session_that_does_not_fit_is_refused(name):
    with pytest.raises(ConfigError, match="session"):
        codec.session_bytes(name)


@pytest.mark.parametrize("message", ["text", 5, None])
def test_only_bytes_can_be_sent(message):
    with pytest.raises(ConfigError, match="bytes"):
        codec.packets(SESSION, 1, [message], 1400)


def test_a_message_that_fits_no_datagram_is_refused():
    with pytest.raises(ConfigError, match="at most"):
        codec.packets(SESSION, 1, [bytes(65_500)], 1400)
