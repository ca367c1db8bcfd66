"""Frames of what a process that was killed had accepted, and had in no frame yet.

A message is acknowledged before its frame is made. It is in the log's tail file then, and the next
process on that log puts the frame together.
"""

from typing import TYPE_CHECKING, Any

from p2pmsg import codec
from p2pmsg.codec.spans import ends_of_values
from p2pmsg.errors import MessageError
from p2pmsg.publisher.batch import Batch
from p2pmsg.wire import stream_prefix

if TYPE_CHECKING:
    from recovery.log import TailContent


def count_of(content: "TailContent") -> int:
    """Return how many messages were accepted; raises `ValueError` where they are damaged."""
    return len(ends_of_values(content.values))


def frame_of(content: "TailContent") -> tuple[bytes, int, int] | None:
    """Return (frame, count, latest timestamp) of what was accepted; None where there is no message.

    Raises:
        ValueError: it is damaged, which the death of a process does not do.

    """
    ends = ends_of_values(content.values)
    if not ends:
        return None
    prefix = stream_prefix(content.topic, content.session)
    batch = Batch(prefix, content.first, content.base_ns, 0, 2**31, bytearray())
    columns = dict(map(_columns_of, _decode_all(content.columns)))
    for number, end in enumerate(ends):
        begin = ends[number - 1] if number else 0
        value = codec.Raw(content.values[begin:end])
        try:
            key, timestamp_ns, headers = columns.get(number, (None, None, None))
            batch.put(value, key, timestamp_ns, headers, 2**31)
        except MessageError as error:
            raise ValueError(f"the columns of message {number}: {error}") from error
    frame, latest = batch.seal()
    return bytes(frame), len(ends), latest


def _columns_of(record: Any) -> tuple[int, list[Any]]:
    """Return the number of a message and its columns; raises `ValueError`."""
    if type(record) is not list or len(record) != 4 or type(record[0]) is not int:
        raise ValueError("the columns are none")
    return record[0], record[1:]


def _decode_all(data: bytes) -> list[Any]:
    ends, begin, found = ends_of_values(data), 0, []
    for end in ends:
        try:
            found.append(codec.decode(data[begin:end]))
        except (codec.CodecError, ValueError) as error:
            raise ValueError(f"the columns: {error}") from error
        begin = end
    return found
