"""Frames made into messages, messages that wait in the place of a frame, and conflation.

Conflation: of many values of a key that wait for a slow reader, it gets the newest one.
"""

from collections.abc import Iterator
from itertools import islice, takewhile
from operator import itemgetter
from typing import Any, Final

from p2pmsg import wire
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import Delivery, Loss

_MESSAGE_BYTES: Final = 64
_FLOOR_NS: Final = 1_000_000
_NS_PER_MESSAGE: Final = 5000
_SAMPLE: Final = 64
"""Messages by which the size of others is estimated."""
PART: Final = 8192
"""So many messages are folded, or handed on, in one step, which takes some 2 ms each."""
FOLD_MIN: Final = 32
"""So many messages of a stream come, at least, until they are folded while they wait."""


class DecodedFrame(Frame):
    """Messages that wait to be taken, already decoded.

    Attributes:
        batch: the messages.
        size: how many bytes they count as held.
        has_misfits: whether some of their values are perhaps a `Misfit`.

    """

    __slots__ = ("batch", "has_misfits", "size")

    def __init__(
        self, stream: Stream, batch: MessageBatch, size: int, *, has_misfits: bool = False
    ) -> None:
        self.topic, self.session = stream.topic, stream.peer.session
        self.kind, self.flags = wire.Kind.DATA, 0
        self.sequence, self.base_timestamp_ns = batch.sequence, batch.base_timestamp_ns
        self.count = len(batch)
        self.data, self.body_at = b"", 0
        self.batch, self.size, self.has_misfits = batch, size, has_misfits


def bytes_of(frame: Frame) -> int:
    """Return how many bytes a frame counts as held."""
    return frame.size if isinstance(frame, DecodedFrame | FoldedFrame) else len(frame.data)


def estimated_bytes(batch: MessageBatch) -> int:
    """Return about how many bytes decoded messages take."""
    sizes = (len(v) if isinstance(v, bytes | str) else _MESSAGE_BYTES for v in batch.values)
    return _MESSAGE_BYTES * len(batch) + sum(sizes)


def decode(stream: Stream, delivery: Delivery[Frame]) -> tuple[MessageBatch, bool]:
    """Return the messages of a delivery, and whether some of their values are a `Misfit`.

    Raises:
        FrameError: it is malformed.

    """
    frame, has_misfits = delivery.item, False
    if isinstance(frame, DecodedFrame):
        return frame.batch, frame.has_misfits
    if stream.typed is None:
        columns = wire.decode_columns(frame)
    else:
        columns, has_misfits = stream.typed.sift(frame)
    batch = MessageBatch(
        stream.topic, frame.session, stream.peer.name, frame.sequence, frame.base_timestamp_ns,
        *columns,
    )  # fmt: skip
    batch.late = delivery.late
    return batch.part(delivery.skip, delivery.skip + delivery.count), has_misfits


def batch_of(message: Message) -> MessageBatch:
    """Return a batch of one message."""
    made = MessageBatch(
        message.topic, message.session, message.publisher, message.sequence, message.timestamp_ns,
        [message.value],
        None,
        None if message.key is None else [message.key],
        None if message.headers is None else [message.headers],
    )  # fmt: skip
    made.late = message.late
    return made


def refold_ns(count: int) -> int:
    """Return how long a batch of `count` messages is not folded again.

    It is about five times what folding takes, so that a fast reader spends little on it, and a
    slow one is a few ms late.
    """
    return max(_FLOOR_NS, _NS_PER_MESSAGE * count)


class ConflatedBatch(MessageBatch):
    """The newest message of each key, in the order of their sequences, which have holes."""

    __slots__ = ("messages", "sequences")

    def __init__(self, messages: list[Message]) -> None:
        first = messages[0]
        super().__init__(
            first.topic, first.session, first.publisher, first.sequence, first.timestamp_ns,
            [message.value for message in messages],
            [message.timestamp_ns for message in messages],
            [message.key for message in messages],
            [message.headers for message in messages],
        )  # fmt: skip
        self.messages = messages
        self.sequences = [message.sequence for message in messages]

    def __reduce__(self) -> tuple[Any, ...]:
        return ConflatedBatch, (self.messages,)

    def iterate(self, values: Iterator[Any]) -> Iterator[Message]:
        """Return the messages, driven by an iterator over the values."""
        return map(itemgetter(0), zip(self.messages, values, strict=False))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)
        return self.messages[index]

    def part(self, start: int, stop: int) -> MessageBatch:
        """Return the messages from index `start` up to `stop`."""
        if start == 0 and stop == len(self.values):
            return self
        messages = self.messages[start:stop]
        return ConflatedBatch(messages) if messages else super().part(start, stop)


class Newest:
    """The newest message of each key, in the order of their sequences."""

    __slots__ = ("_has_misfits", "messages")

    def __init__(self) -> None:
        self.messages: dict[str | None, Message] = {}
        self._has_misfits = False

    def __len__(self) -> int:
        return len(self.messages)

    def add(self, batch: MessageBatch, has_misfits: bool) -> None:
        """Add the messages of the next delivery; doing it again changes nothing."""
        messages = self.messages
        self._has_misfits |= has_misfits
        for message in batch:
            messages.pop(message.key, None)
            messages[message.key] = message

    def forget(self, start: int) -> None:
        """Forget the messages before the sequence `start`."""
        messages = self.messages
        before = takewhile(lambda message: message.sequence < start, messages.values())
        for key in [message.key for message in before]:
            del messages[key]

    def bytes_for(self, count: int) -> int:
        """Return about how many bytes so many of its messages take, by some of them."""
        some = [*islice(self.messages.values(), _SAMPLE)]
        return count * estimated_bytes(ConflatedBatch(some)) // len(some)

    def frame(self, stream: Stream, messages: list[Message]) -> Frame:
        """Return some of its messages as a frame."""
        batch = ConflatedBatch(messages)
        return DecodedFrame(stream, batch, estimated_bytes(batch), has_misfits=self._has_misfits)


def is_folded(frame: Frame) -> bool:
    """Whether a frame that waits alone has nothing to be folded."""
    if isinstance(frame, DecodedFrame):
        return isinstance(frame.batch, ConflatedBatch)
    return not isinstance(frame, FoldedFrame) and bool(frame.count == 1)


def fold_due(folded: list[Delivery[Frame] | Loss]) -> int:
    """Return how many messages may come until a stream is folded again.

    It is as many as are folded again then, so that a message is folded twice on average; of many
    keys only what is new is (`FoldedFrame`).
    """
    count: int = sum(output.item.count for output in folded if isinstance(output, Delivery))
    return max(FOLD_MIN, min(PART, count))


class FoldedFrame(Frame):
    """The newest messages of so many keys that they are handed on in parts.

    Later messages are added to what it has, so that folding takes no longer for the keys that are
    there already.

    Attributes:
        newest: the messages; it may have more, which the entry after this one adds again.
        start: the sequence before which they were handed on.
        size: how many bytes they count as held.

    """

    __slots__ = ("newest", "size", "start")

    def __init__(self, stream: Stream, newest: Newest, start: int, left: int) -> None:
        self.topic, self.session = stream.topic, stream.peer.session
        self.kind, self.flags = wire.Kind.DATA, 0
        self.sequence, self.base_timestamp_ns = start, 0
        self.count = left
        self.data, self.body_at = b"", 0
        self.newest, self.start, self.size = newest, start, newest.bytes_for(left)


class Fold:
    """Makes one delivery of many that follow one another in a stream, or a few where keys are many.

    Nothing that is ready is changed by it, except for what a `FoldedFrame` has. There the same is
    added again by the next fold, should an exception cut this one short.

    """

    __slots__ = ("_count", "_newest", "_older", "_start", "_stop", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._newest = Newest()
        self._older: tuple[Newest, int, int] | None = None
        self._stop = self._count = self._start = 0

    def add(self, output: Delivery[Frame]) -> None:
        """Add the next delivery; `FrameError` where it is malformed, which changes nothing."""
        item = output.item
        if type(item) is not FoldedFrame:
            self._newest.add(*decode(self._stream, output))
        else:
            if self._count:
                self._older = self._newest, self._stop, self._count
            self._newest, self._start = item.newest, item.start
            item.newest.forget(item.start)
        self._stop = output.sequence + output.count
        self._count += output.count

    def deliveries(self, *, for_taking: bool = False) -> list[Delivery[Frame]]:
        """Return what stands for all; `for_taking`: the first one is to be taken now."""
        stream, newest = self._stream, self._newest
        count, left = self._count, len(newest.messages)
        if left <= PART and self._older is None:  # the usual case
            frame = newest.frame(stream, [*newest.messages.values()])
            return [Delivery(frame, self._stop - count, 0, count)]
        found: list[Delivery[Frame]] = []
        if self._older is not None:  # what is left of a part that was taken, or was put back
            older, stop, older_count = self._older
            rest = [m for m in older.messages.values() if m.key not in newest.messages]
            if rest:
                part = older.frame(stream, rest)
                found.append(Delivery(part, stop - older_count, 0, older_count))
                count -= older_count
        start = self._start
        if for_taking and not found and left > PART:
            messages = [*islice(newest.messages.values(), PART + 1)]
            start, left = messages.pop().sequence, left - PART
            part = newest.frame(stream, messages)
            found.append(Delivery(part, start - (count - left), 0, count - left))
            count = left
        if left > PART or start != self._start:
            frame = FoldedFrame(stream, newest, start, left)
        else:
            frame = newest.frame(stream, [*newest.messages.values()])
        return [*found, Delivery(frame, self._stop - count, 0, count)]
