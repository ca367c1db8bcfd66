"""What a cursor's file holds, and what is made of one that is torn, damaged or something else."""

import json
import struct
import zlib

import pytest

from recovery import CursorConfig, RecoveryError
from recovery.cursor import (
    Cursor,
    CursorSession,
    decode,
    encode_entry,
    encode_record,
    encode_snapshot,
)

SESSION, OTHER = 0xA1, 2**64 - 1
SNAPSHOT = encode_snapshot(
    Cursor(
        {
            SESSION: CursorSession(("*",), {"é": 5, "trades": 7}),
            OTHER: CursorSession(("a", "b*"), {}),
        },
        ("tcp://127.0.0.1:5555",),
    )
)


def position(number, following, durable=0):
    topic = ("é", "trades")[number]
    return encode_record(encode_entry(SESSION, topic, following), durable)


def named(topic, following, durable=0):
    return encode_record(encode_entry(OTHER, topic, following), durable)


def streams(data):
    """Return the position of every stream."""
    sessions = decode(data)[0].sessions
    return {(s, topic): at for s in sessions for topic, at in sessions[s].streams.items()}


def states(pieces):
    """Return the positions after each of the pieces of a file, and its length there."""
    data, found = pieces[0], []
    for piece in [b"", *pieces[1:]]:
        data += piece
        found.append((len(data), streams(data)))
    return found


def many_records(durable):
    """Return the pieces of a file whose records know what is on the disk, or do not."""
    pieces = [SNAPSHOT]
    for number, make in enumerate(
        (
            lambda at: position(0, 9, at),
            lambda at: named("ticks", 4, at),
            lambda at: encode_record(
                encode_entry(OTHER, "ticks", 6) + encode_entry(SESSION, "trades", 2**63), at
            ),
            lambda at: named("b" * 255, 1, at),
            lambda at: named("b" * 255, 2, at),
        )
    ):
        written = sum(map(len, pieces))
        pieces.append(make(written if durable and number else len(SNAPSHOT)))
    return pieces


def test_what_is_written_is_read():
    cursor = decode(b"".join(many_records(durable=True)))[0]

    assert cursor.endpoints == ("tcp://127.0.0.1:5555",)
    assert cursor.sessions[SESSION] == CursorSession(("*",), {"é": 9, "trades": 2**63})
    assert cursor.sessions[OTHER].scope == ("a", "b*")
    assert cursor.sessions[OTHER].streams == {"ticks": 6, "b" * 255: 2}
    assert cursor.next(OTHER, "ticks") == 6
    assert cursor.next(OTHER, "none") is None
    assert cursor.next(1, "ticks") is None
    assert cursor.stream_count == 4


def test_a_position_does_not_go_back():
    assert streams(SNAPSHOT + position(1, 6))[SESSION, "trades"] == 7


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_cut_at_any_byte_is_an_older_commit(durable):
    pieces = many_records(durable)
    data, known = b"".join(pieces), states(pieces)
    for length in range(len(data)):
        if length < len(SNAPSHOT):
            with pytest.raises(RecoveryError):
                decode(data[:length])
            continue
        good, expected = [state for state in known if state[0] <= length][-1]
        assert streams(data[:length]) == expected, length
        assert decode(data[:length])[2] == good, length


@pytest.mark.parametrize("durable", [True, False])
def test_a_bit_flipped_anywhere_is_noticed(durable):
    pieces = many_records(durable)
    data, known = b"".join(pieces), states(pieces)
    torn = refused = 0
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                found = streams(bytes(damaged))
            except RecoveryError:
                refused += 1
                # After the snapshot only where what was on the disk is damaged, which records
                # after it show.
                assert at < len(SNAPSHOT) or (durable and at < len(data) - len(pieces[-1]))
                continue
            torn += 1
            # The commits up to the damage; which is less than there was, and nothing else.
            assert found == [state for state in known if state[0] <= at][-1][1], (at, bit)
    last = 8 * len(pieces[-1])
    assert (torn, refused) == (
        (last, 8 * len(data) - last)
        if durable
        else (8 * (len(data) - len(SNAPSHOT)), 8 * len(SNAPSHOT))
    )


@pytest.mark.parametrize(
    "rubbish", [bytes(5000), b"\xff" * 5000, SNAPSHOT, b"p2cursor"], ids=["0", "1", "two", "magic"]
)
def test_rubbish_after_the_end_is_cut(rubbish):
    data = SNAPSHOT + position(0, 8)

    assert streams(data + rubbish)[SESSION, "é"] == 8
    assert decode(data + rubbish)[2] == len(data)


def headed(body, version=1, crc=None):
    head = struct.pack("!8sHHI", b"p2cursor", version, 0, len(body))
    crc = zlib.crc32(body, zlib.crc32(head + bytes(4))) if crc is None else crc
    return head + crc.to_bytes(4, "big") + body


def body(sessions, endpoints=()):
    return json.dumps({"endpoints": list(endpoints), "sessions": sessions}).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"p2", "it is not a cursor"),
        (b"\x7fELF" + bytes(100), "it is not a cursor"),
        (b"p2cursor", "its header is cut short"),
        (headed(b"{}", version=2), "it is of version 2; this p2pmsg reads 1"),
        (headed(b"{}", version=0), "it is of version 0"),
        (headed(b"{}", crc=1), "its snapshot has another checksum"),
        (headed(b"{}"), "its snapshot makes no sense"),
        (headed(b"[]"), "its snapshot makes no sense"),
        (headed(b"no json"), "its snapshot makes no sense"),
        (headed(body([["zz", [], []]])), "its snapshot makes no sense"),
        (headed(body([["a1", [], [["t", -1]]]])), "its snapshot makes no sense: sequence -1"),
        (headed(body([["a1", [], [["t", 2**63 + 1]]]])), "its snapshot makes no sense"),
        (headed(body([["a1", [], [["t", 1.5]]]])), "its snapshot makes no sense"),
        (headed(body([["a1", [], [[1, 1]]]])), "its snapshot makes no sense"),
        (headed(body([["a1", [], [["t"]]]])), "its snapshot makes no sense"),
        (SNAPSHOT + encode_record(encode_entry(7, "t", 1), 0), "a record of its makes no sense"),
        (SNAPSHOT + encode_record(b"\x00" * 19, 0), "a record of its makes no sense"),
    ],
)
def test_what_is_no_cursor_is_refused_by_name(data, says):
    with pytest.raises(RecoveryError, match=says):
        decode(data)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"path": ""}, "path must be a str or a Path"),
        ({"path": 7}, "path must be a str or a Path, not 7"),
        ({"fsync": "sometimes"}, "fsync must be .* not 'sometimes'"),
    ],
)
def test_a_setting_out_of_its_limits_is_named(settings, says):
    path = settings.pop("path", "a.cursor")
    with pytest.raises(ValueError, match=says):
        CursorConfig(path, **settings)
