"""Messages, one by one and by the batch."""

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import eq, itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, overload

from p2pmsg import codec
from p2pmsg.codec import Ext as Ext

__all__ = ["Ext", "FixedBatch", "Message", "MessageBatch", "Origin"]


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    T = TypeVar("T")
    T_co = TypeVar("T_co", covariant=True)
    """The type of a message's value; without one it is `Any`."""


_IS_OF_C = codec.NAME == "msgspec"


class Origin(codec.Struct, frozen=True, gc=False):
    """Where messages come from; those of a batch share one.

    Attributes:
        session: 64-bit id of the publisher's sequence space.
        publisher: the publisher's name.

    """

    session: int
    publisher: str


class Message(codec.Struct, Generic[T_co], frozen=True, gc=False):
    """An immutable event, as a subscriber gets it.

    A struct of msgspec, because it is made for every message: 50 ns, and a named tuple takes 150.
    Each field that is given takes 6 of them, so what few ask for is reached by `origin`.

    Attributes:
        topic: the stream's topic.
        value: any msgpack value (bytes, str, int, float, bool, None, list, dict), or what the
            subscriber makes of it (its argument `type`): of a `Message[Trade]` it is a Trade.
        timestamp_ns: when it happened, in ns since the epoch, set at the source.
        sequence: 0-based number of the message within its stream.
        origin: the publisher's session and its name; also to be had as `session` and `publisher`.
        key: what it belongs to, such as a symbol; None without one.
        headers: further fields by name; None without any.
        late: whether it comes out of its order, after it was skipped (`on_gap="skip"`).

    """

    topic: str
    value: T_co
    timestamp_ns: int
    sequence: int
    origin: Origin
    key: str | None = None
    headers: dict[str, Any] | None = None
    late: bool = False

    @property
    def session(self) -> int:
        """64-bit id of the sequence space; (session, topic) names a stream."""
        return self.origin.session

    @property
    def publisher(self) -> str:
        """The publisher's name."""
        return self.origin.publisher


class MessageBatch(Sequence[Message[T_co]]):
    """Consecutive messages of one stream, kept by column as they came off the wire.

    It is a sequence of `Message`, each made when it is looked at. Who wants one column takes that
    and saves the making.

    Attributes:
        topic: the stream's topic.
        session: the stream's session.
        publisher: the publisher's name.
        sequence: of the first message; the others follow without a hole.
        values: one value a message.
        timestamps_ns: one timestamp a message, or None where all have `base_timestamp_ns`.
        keys: one key (or None) a message, or None where none has one.
        headers: one dict (or None) a message, or None where none has any.
        late: whether they come out of their order, after they were skipped.

    """

    __slots__ = (
        "base_timestamp_ns", "headers", "keys", "late", "publisher", "sequence", "session",
        "timestamps_ns", "topic", "values",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        session: int,
        publisher: str,
        sequence: int,
        base_timestamp_ns: int,
        values: list[T_co],
        timestamps_ns: list[int] | None = None,
        keys: list[str | None] | None = None,
        headers: list[dict[str, Any] | None] | None = None,
    ) -> None:
        self.topic = topic
        self.session = session
        self.publisher = publisher
        self.sequence = sequence
        self.base_timestamp_ns = base_timestamp_ns
        self.values = values
        self.timestamps_ns = timestamps_ns
        self.keys = keys
        self.headers = headers
        self.late = False

    def __len__(self) -> int:
        return len(self.values)

    def _place(self) -> tuple[Any, ...]:
        return self.topic, self.session, self.publisher, self.sequence, len(self), self.late

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, MessageBatch):
            return NotImplemented
        return self._place() == other._place() and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(self._place())

    def __reduce__(self) -> tuple[Any, ...]:
        place = self.topic, self.session, self.publisher, self.sequence, self.base_timestamp_ns
        columns = self.values, self.timestamps_ns, self.keys, self.headers
        return MessageBatch, (*place, *columns), (None, {"late": self.late})

    def __iter__(self) -> Iterator[Message[T_co]]:
        return self.iterate(iter(self.values))

    def iterate(self, values: Iterator[Any]) -> Iterator[Message[T_co]]:
        """Return the messages, driven by an iterator over `values` (whose rest can be asked)."""
        timestamps: Any = self.timestamps_ns
        keys: Any = self.keys
        headers: Any = self.headers
        sequence = self.sequence
        columns: list[Any] = [
            repeat(self.topic),
            values,
            timestamps if timestamps is not None else repeat(self.base_timestamp_ns),
            range(sequence, sequence + len(self.values)),
            repeat(Origin(self.session, self.publisher)),
        ]
        if keys is not None or headers is not None or self.late:
            columns.append(keys if keys is not None else repeat(None))
            columns.append(headers if headers is not None else repeat(None))
            columns.append(repeat(self.late))
        if _IS_OF_C:
            return map(Message, *columns)
        # Ctrl-C could come within Message's `__init__`, when the value has been taken already.
        columns[1] = self.values
        return map(itemgetter(0), zip(list(map(Message, *columns)), values, strict=False))

    @overload
    def __getitem__(self, index: int) -> Message[T_co]: ...
    @overload
    def __getitem__(self, index: slice) -> "MessageBatch[T_co]": ...
    def __getitem__(self, index: int | slice) -> "Message[T_co] | MessageBatch[T_co]":
        count = len(self)
        if isinstance(index, slice):
            start, stop, step = index.indices(count)
            if step != 1:
                raise ValueError(f"a batch is sliced with step 1, not {step}")
            return self.part(start, max(start, stop))
        at = index + count if index < 0 else index
        if not 0 <= at < count:
            raise IndexError(f"message {index} of a batch of {count}")
        return Message(
            self.topic,
            self.values[at],
            self.timestamps_ns[at] if self.timestamps_ns is not None else self.base_timestamp_ns,
            self.sequence + at,
            Origin(self.session, self.publisher),
            self.keys[at] if self.keys is not None else None,
            self.headers[at] if self.headers is not None else None,
            self.late,
        )

    def _cut(self, start: int, stop: int, *columns: Any) -> list[Any]:
        others = (*columns, self.timestamps_ns, self.keys, self.headers)
        return [None if column is None else column[start:stop] for column in others]

    def part(self, start: int, stop: int) -> "MessageBatch[T_co]":
        """Return the messages from index `start` up to `stop`."""
        if start == 0 and stop == len(self.values):
            return self
        values, *columns = self._cut(start, stop, self.values)
        place = self.topic, self.session, self.publisher, self.sequence + start
        made = MessageBatch(*place, self.base_timestamp_ns, values, *columns)
        made.late = self.late
        return made

    def __repr__(self) -> str:
        stop = self.sequence + len(self)
        return f"<MessageBatch {self.topic!r} [{self.sequence}, {stop}) from {self.publisher!r}>"


_NOT_UNPACKED: Final[list[Any]] = []


class FixedBatch(MessageBatch):
    """A batch whose values are bytes of one length, still side by side as they came.

    It is a `MessageBatch` in all; `values` are unpacked when they are first asked for. Who can use
    them as one block of memory spares an object a message.

    Attributes:
        view: the values, each after `head` bytes of msgpack's own; a memoryview of bytes.
        block: the same as bytes, copied each time that it is asked for.
        stride: bytes from one value to the next in `view`.
        head: see `block`; a value has `stride - head` bytes.

    """

    __slots__ = ("_unpacked", "head", "stride", "view")
    _unpacked: list[Any]

    def __init__(
        self,
        topic: str,
        session: int,
        publisher: str,
        sequence: int,
        base_timestamp_ns: int,
        block: bytes | memoryview,
        stride: int,
        head: int,
        timestamps_ns: list[int] | None = None,
        keys: list[str | None] | None = None,
        headers: list[dict[str, Any] | None] | None = None,
    ) -> None:
        place = topic, session, publisher, sequence, base_timestamp_ns
        super().__init__(*place, _NOT_UNPACKED, timestamps_ns, keys, headers)
        self.view = memoryview(block)
        self.stride = stride
        self.head = head

    @property
    def block(self) -> bytes:
        """The values, each after `head` bytes of msgpack's own."""
        return self.view.tobytes()

    @property
    def values(self) -> list[Any]:
        """One value a message."""
        if self._unpacked is _NOT_UNPACKED:
            block, stride, head = self.block, self.stride, self.head
            starts = range(head, len(block), stride)
            self._unpacked = [block[at : at + stride - head] for at in starts]
        return self._unpacked

    @values.setter
    def values(self, found: list[Any]) -> None:
        self._unpacked = found

    def __len__(self) -> int:
        return len(self.view) // self.stride

    def __reduce__(self) -> tuple[Any, ...]:
        # A memoryview cannot be pickled.
        place = self.topic, self.session, self.publisher, self.sequence, self.base_timestamp_ns
        columns = self.timestamps_ns, self.keys, self.headers
        made = (*place, self.block, self.stride, self.head, *columns)
        return FixedBatch, made, (None, {"late": self.late})

    def part(self, start: int, stop: int) -> "FixedBatch":
        """Return the messages from index `start` up to `stop`."""
        if start == 0 and stop == len(self):
            return self
        block = self.view[start * self.stride : stop * self.stride]
        place = self.topic, self.session, self.publisher, self.sequence + start
        columns = self._cut(start, stop)
        return FixedBatch(*place, self.base_timestamp_ns, block, self.stride, self.head, *columns)
