"""Many messages in one call, as frames that fit a datagram each."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.errors import LogFailedError
from p2pmsg.publisher.batch import (
    PACKING_ERRORS,
    check_key,
    check_size,
    check_timestamp,
    pack_slice,
    packing_error,
    start_frame,
)
from p2pmsg.publisher.log import next_sequence
from p2pmsg.publisher.streams import PublisherStream
from p2pmsg.wire import ARRAY4, REST, encoder

if TYPE_CHECKING:
    from p2pmsg.publisher.core import PublisherCore

FRAMES_PER_CALL: Final = 45
"""So many datagrams of 1,400 bytes fit the 64 KiB that one call sends."""
_COLUMNS_PER_CALL: Final = 4096
_NO_COLUMNS: Final = b"\xc0\xc0\xc0"
_encode_into: Final = encoder.encode_into

Packed = tuple[int, int, bytes, int]
"""(first sequence, count, frame, newest timestamp)"""


def publish_datagrams(
    core: "PublisherCore",
    stream: PublisherStream,
    values: Sequence[Any],
    keys: Sequence[str | None] | None,
    timestamps_ns: Sequence[int] | None,
    at: int,
    *,
    now_ns: int,
    wall_ns: int,
) -> int:
    """Accept values from `at` on, in frames of a datagram each; returns how many."""
    assert core.group is not None
    frame_bytes = core.group.frame_bytes
    sequence = next_sequence(core.replay, core.log, stream.topic)
    buffer = core._buffers.take()
    if keys is None and timestamps_ns is None:
        made = pack_plain(
            stream.plain_prefix, sequence, wall_ns, values, at, stream.guess, frame_bytes, buffer
        )
    else:
        stop = at + _COLUMNS_PER_CALL
        some_keys = None if keys is None else [check_key(key) for key in keys[at:stop]]
        times = timestamps_ns and [*map(check_timestamp, timestamps_ns[at:stop])]
        made = pack_columns(
            stream.prefix, sequence, wall_ns, values[at:stop], some_keys, times,
            stream.guess, frame_bytes, buffer,
        )  # fmt: skip
    core._buffers.give_back(buffer)
    stream.guess = max(made[0][1], made[-1][1])
    taken = made[-1][0] + made[-1][1] - sequence
    if len(made) == taken:  # each has one message: they may be large
        for _, _, frame, _ in made:
            check_size("values", len(frame), core.config.message_bytes_max + 512)
    if core.log is not None:
        return _keep_logged(core, stream, made, now_ns)
    core.replay.append_many(stream.topic, made, now_ns=now_ns)
    core.outbox.extend([frame for _, _, frame, _ in made])
    stream.sealed_ns = core.sealed_ns = now_ns
    core.heartbeats.put_off(stream, now_ns)
    return taken


def _keep_logged(
    core: "PublisherCore", stream: PublisherStream, made: list[Packed], now_ns: int
) -> int:
    """Keep frames that are in the log before they go out; returns how many messages it took."""
    taken = 0
    for sequence, count, frame, latest_ns in made:
        try:
            core._keep(stream, sequence, count, frame, frame, latest_ns, now_ns)
        except LogFailedError:
            if not taken:
                raise
            break  # those before it were accepted; the next call will say it
        taken += count
    return taken


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
            buffer += _NO_COLUMNS
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
