"""An open batch that outlives its process: its messages are in the log's tail file.

A message is acknowledged before its frame is made. What a process that is killed had acknowledged
is put together here from the tail file by the next one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import codec
from p2pmsg.codec.spans import ends_of_values
from p2pmsg.errors import MessageError
from p2pmsg.publisher.batch import PACKING_ERRORS, Batch, pack_headers
from p2pmsg.wire import encoder, stream_prefix

if TYPE_CHECKING:
    from recovery.log import TailContent, TailSlot

_encode_into: Final = encoder.encode_into
_END: Final = 0
_COLUMNS: Final = 1


class LoggedBatch(Batch):
    """A batch whose values are gathered in a slot of the log's tail file.

    A value is packed into `scratch` and copied to `memory`; then the new end is stored in
    `header[0]`, from where on the message outlives the process. Until the batch is sealed, `buffer`
    has only the head of the frame; its values have in `memory` the places that they will have
    there.

    Args:
        slot: a free slot; the caller gives it back.
        session: of the stream.
        topic: of the stream, as it goes over the wire.
        prefix, sequence, timestamp_ns, now_ns, frame_bytes, buffer, pace, encode_into: as for
            `Batch`.

    Attributes:
        slot: the slot.
        memory, header: of the slot.
        scratch: where a value is packed.

    """

    __slots__ = (
        "_columns_before",
        "_columns_of",
        "_is_in_buffer",
        "header",
        "memory",
        "scratch",
        "slot",
    )

    def __init__(
        self,
        slot: "TailSlot",
        session: int,
        topic: bytes,
        prefix: bytes,
        sequence: int,
        timestamp_ns: int,
        now_ns: int,
        frame_bytes: int,
        buffer: bytearray,
        pace: int = 2**31,
        encode_into: Callable[..., None] = _encode_into,
    ) -> None:
        bytes_max = min(frame_bytes, slot.bytes_max)
        super().__init__(
            prefix, sequence, timestamp_ns, now_ns, bytes_max, buffer, pace, encode_into
        )
        self.slot, self.is_plain = slot, False
        self.memory, self.header = slot.memory, slot.header
        self.scratch = bytearray()
        self._is_in_buffer = False
        self._columns_before, self._columns_of = 0, -1
        slot.begin(session, topic, sequence, timestamp_ns, self.end)

    def append(self, value: Any, key: Any, timestamp_ns: Any, headers: Any) -> int:
        """Do as `Batch.append`; on return the message outlives the process."""
        packed = self.scratch
        try:
            self.encode_into(value, packed)  # saying where, 0, would take a tenth of the call
        except PACKING_ERRORS:
            return -1
        end = self.end
        size, sequence = end + len(packed), self.next
        if size < self.limit and (
            (key is None and timestamp_ns is None and headers is None)
            or self._add_columns_of(key, timestamp_ns, headers)
        ):
            self.memory[end:size] = packed
            self.header[_END] = size
            self.end, self.next = size, sequence + 1
            return sequence
        self.repair()
        return -1

    def put(self, value: Any) -> int:
        """Add a value, which counts once `commit` has covered it; return where it ends."""
        _encode_into(value, self.scratch)
        end = self.end + len(self.scratch)
        if end > self.slot.bytes_max:
            self._move_to_buffer()  # the batch is more than full, and so will be sealed at once
        if self._is_in_buffer:
            self.buffer += self.scratch
        else:
            self.memory[self.end : end] = self.scratch
        return end

    def commit(self) -> None:
        """Let what was added outlive the process."""
        if not self._is_in_buffer:
            self.header[_END] = self.end

    def add_columns(self, key: Any, timestamp_ns: Any, headers: Any) -> bool:
        """Add what a message has in addition to its value; False: the slot has no space for it."""
        packed = pack_headers(headers)
        count = self.next - self.first
        try:
            record = encoder.encode((count, key, timestamp_ns, packed))
        except (OverflowError, ValueError, TypeError):
            record = b""  # it is refused below, with its reason
        before = self.header[_COLUMNS]
        if not self._is_in_buffer and not self.slot.add_columns(record):
            return False
        self._columns_before, self._columns_of = before, count
        return super().add_columns(key, timestamp_ns, headers)

    def repair(self) -> None:
        """Cut off what belongs to no accepted message."""
        super().repair()
        if self._is_in_buffer and self.header[_END] >= self.end:
            # A value beyond the slot was refused; those before it are all in the slot, and so will
            # be those after it.
            del self.buffer[self._begin :]
            self._is_in_buffer = False
        if self.header[_END] > self.end:
            self.header[_END] = self.end
        if self._columns_of >= self.next - self.first:
            self.header[_COLUMNS] = self._columns_before
            self._columns_of = -1

    def seal(self) -> tuple[bytearray, int]:
        """Make `buffer` a frame, as `Batch.seal`; the slot keeps its messages until it is freed."""
        self.repair()
        self._move_to_buffer()
        return self._make_frame()

    def _move_to_buffer(self) -> None:
        """Copy the values to where the frame is made; from then on only what is there counts."""
        if not self._is_in_buffer:
            del self.buffer[self._begin :]  # an interrupt may have left them there
            with memoryview(self.memory)[self._begin : self.end] as values:
                self.buffer += values
            self._is_in_buffer = True


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
        batch.buffer += content.values[begin:end]
        if number in columns:
            try:
                batch.add_columns(*columns[number])
            except MessageError as error:
                raise ValueError(f"the columns of message {number}: {error}") from error
        batch.end, batch.next = len(batch.buffer), batch.next + 1
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
