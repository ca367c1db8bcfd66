"""Conflation: of many values of a key that wait for a slow reader, it gets the newest one."""

from collections.abc import Iterator
from typing import Any

from p2pmsg import wire
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame, FrameError
from recovery import Delivery, Loss


class ConflatedBatch(MessageBatch):
    """The newest message of each key, in the order of their sequences, which have holes.

    Attributes:
        messages: themselves.
        sequences: one a message.

    """

    __slots__ = ("messages", "sequences")

    def __init__(self, messages: list[Message]) -> None:
        first = messages[0]
        super().__init__(
            first.topic,
            first.session,
            first.publisher,
            first.sequence,
            first.timestamp_ns,
            [message.value for message in messages],
            [message.timestamp_ns for message in messages],
            [message.key for message in messages],
            [message.headers for message in messages],
        )
        self.messages = messages
        self.sequences = [message.sequence for message in messages]

    def iterate(self, values: Iterator[Any]) -> Iterator[Message]:
        """Return the messages, driven by an iterator over the values."""
        return map(lambda message, _: message, self.messages, values)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return super().__getitem__(index)
        return self.messages[index]

    def part(self, start: int, stop: int) -> MessageBatch:
        """Return the messages from index `start` up to `stop`."""
        if start == 0 and stop == len(self.values):
            return self
        return ConflatedBatch(self.messages[start:stop])


class Folded(Frame):
    """What many frames of a stream have come down to; it stands in their place in `ready`."""

    __slots__ = ("messages",)

    def __init__(self, stream: Stream, messages: list[Message]) -> None:
        self.topic, self.session = stream.topic, stream.peer.session
        self.kind, self.flags = wire.Kind.DATA, 0
        self.sequence, self.base_timestamp_ns = messages[0].sequence, messages[0].timestamp_ns
        self.count = len(messages)
        self.body_at = 0
        self.data = b"".join(_bytes_of(message) for message in messages)
        self.messages = messages


def _bytes_of(message: Message) -> bytes:
    """Return something as long as a message takes, about: `ready_bytes` counts it."""
    value = message.value
    return bytes(64 + (len(value) if isinstance(value, bytes | str) else 64))


def messages_of(stream: Stream, output: Delivery[Frame]) -> list[Message]:
    """Return the messages of a delivery; `FrameError` where it is malformed."""
    frame = output.item
    if isinstance(frame, Folded):
        return frame.messages
    values, timestamps, keys, headers = wire.decode_columns(frame)
    batch = MessageBatch(
        stream.topic, frame.session, stream.peer.name, frame.sequence, frame.base_timestamp_ns,
        values, timestamps, keys, headers,
    )  # fmt: skip
    return list(batch.part(output.skip, output.skip + output.count))


def make_room(core: SubscriberCore) -> None:
    """Fold what is ready of the streams of which only the newest values matter."""
    found = {id(s): s for s, _ in core.ready if core.policy.conflates(s.topic)}
    for stream in found.values():
        fold(core, stream)


def fold(core: SubscriberCore, stream: Stream) -> None:
    """Make one entry of all that is ready of a stream, or one between each two of its losses.

    Losses stay in their place, so that whoever has taken the entry before one has not passed it.
    What cannot be read is counted and reported as malformed losses, in place.
    """
    kept: list[tuple[Stream, Delivery[Frame] | Loss]] = []
    runs: list[tuple[int, _Run]] = []
    run: _Run | None = None
    for entry in core.ready:
        owner, output = entry
        if owner is not stream:
            kept.append(entry)
            continue
        if isinstance(output, Loss):
            kept.append(entry)
            run = None
            continue
        core.ready_bytes -= len(output.item.data)
        try:
            messages = messages_of(stream, output)
        except FrameError as error:
            core.invalid[str(error)] += 1
            kept.append((stream, stream.note_malformed(output.sequence, output.count)))
            stream.given_messages += output.count
            run = None
            continue
        if run is None:
            run = _Run(stream, output)
            runs.append((len(kept), run))
            kept.append(entry)
        run.take(output, messages)
    for at, one in runs:
        folded = one.folded()
        kept[at] = stream, folded
        core.ready_bytes += len(folded.item.data)
    core.ready.clear()
    core.ready.extend(kept)


class _Run:
    """Deliveries of a stream that follow one another."""

    def __init__(self, stream: Stream, first: Delivery[Frame]) -> None:
        self._stream = stream
        self._first = first
        self._count = 0
        self._newest: dict[str | None, Message] = {}

    def take(self, output: Delivery[Frame], messages: list[Message]) -> None:
        self._count += output.count
        for message in messages:
            self._newest.pop(message.key, None)
            self._newest[message.key] = message

    def folded(self) -> Delivery[Frame]:
        frame = Folded(self._stream, list(self._newest.values()))
        return Delivery(frame, self._first.sequence, 0, self._count)
