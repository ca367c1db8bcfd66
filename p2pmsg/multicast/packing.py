"""Many messages in one call, as frames that fit a datagram each."""

from collections.abc import Sequence
from typing import Any, Final

from p2pmsg.publisher.batch import PACKING_ERRORS, pack_slice, packing_error, start_frame
from p2pmsg.publisher.served import Packed
from p2pmsg.wire import ARRAY4, NO_COLUMNS, REST, encoder

FRAMES_PER_CALL: Final = 45
"""So many datagrams of 1,400 bytes fit the 64 KiB that one call sends."""
_encode_into: Final = encoder.encode_into


def pack_plain(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    values: Sequence[Any],
    at: int,
    guess: int,
    frame_bytes: int,
    buffer: bytearray,
) -> list[Packed]:
    """Return frames of the values from `at` on, of at most `frame_bytes` each.

    A frame of one value may be larger: it is sent in parts. `guess` is how many values a frame may
    take; `prefix` is the stream's with FLAG_PLAIN.
    """
    made: list[Packed] = []
    end = len(values)
    rest_at = len(prefix)
    body_at = rest_at + REST.size
    pack_rest, append = REST.pack_into, made.append
    count = max(1, guess)
    start_frame(buffer, prefix)
    buffer[body_at] = ARRAY4
    part: Any = values
    try:
        while at < end and len(made) < FRAMES_PER_CALL:
            part = values[at : at + count]
            _encode_into(part, buffer, body_at + 1)
            buffer += NO_COLUMNS
            size = len(buffer)
            if size > frame_bytes and count > 1 and len(part) > 1:
                count = max(1, min(len(part) - 1, len(part) * (frame_bytes - body_at) // size))
                continue
            number = len(part)
            pack_rest(buffer, rest_at, sequence, number, size - body_at, timestamp_ns)
            append((sequence, number, bytes(buffer), timestamp_ns))
            at += number
            sequence += number
            if number == count and size + (size - body_at) // number < frame_bytes:
                count += 1
    except PACKING_ERRORS as error:
        if made:
            return made
        raise packing_error("values", part, error) from error
    return made


def pack_columns(
    prefix: bytes,
    sequence: int,
    timestamp_ns: int,
    values: Sequence[Any],
    keys: Sequence[str | None] | None,
    times: Sequence[int] | None,
    guess: int,
    frame_bytes: int,
    buffer: bytearray,
) -> list[Packed]:
    """Do as `pack_plain` does, for messages with keys and timestamps."""
    made: list[Packed] = []
    at, end, count = 0, len(values), max(1, guess)
    while at < end and len(made) < FRAMES_PER_CALL:
        part = list(values[at : at + count])
        frame, latest = pack_slice(
            prefix,
            sequence,
            timestamp_ns,
            part,
            None if keys is None else list(keys[at : at + count]),
            None if times is None else list(times[at : at + count]),
            buffer,
        )
        if len(frame) > frame_bytes and len(part) > 1:
            count = max(1, min(len(part) - 1, len(part) * frame_bytes // len(frame)))
            continue
        made.append((sequence, len(part), frame, latest))
        at += len(part)
        sequence += len(part)
        if len(part) == count and len(frame) * (count + 1) // count < frame_bytes:
            count += 1
    return made
