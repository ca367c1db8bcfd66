"""The newest value of each key, for a reader that takes its time over a batch of them.

::

    batch being read ──newer messages of its stream came──▶ what is left of it goes back to `ready`
                                                               └─▶ is folded with them ─▶ batch
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.conflation import ConflatedBatch, Folded
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import Delivery

if TYPE_CHECKING:
    from p2pmsg.sync.subscriber import Subscriber

_FLOOR_NS: Final = 1_000_000
_NS_A_MESSAGE: Final = 5000
"""A batch is not folded anew before this has passed: some five times what folding it takes, so that
a reader who is fast spends little on it, and one who is slow is a few ms behind."""


class Freshest(Iterator[Message]):
    """Iterates over a conflated batch, and ends early where newer messages have come."""

    __slots__ = ("_handed", "_inner", "_since_ns", "_source", "_stream", "_values")

    def __init__(
        self, source: "Subscriber", stream: Stream, batch: ConflatedBatch, values: Iterator[Any]
    ) -> None:
        self._source = source
        self._stream = stream
        self._values = values
        self._inner = batch.iterate(values)
        self._handed = stream.receiver.handed
        self._since_ns = time.monotonic_ns()

    def __next__(self) -> Message:
        with self._source._driver.lock:
            if self._source._values is not self._values or self.renew():
                raise StopIteration
            return next(self._inner)

    def renew(self) -> bool:
        """Put back what is left, if that is out of date; the core's lock is held."""
        source, stream, batch = self._source, self._stream, self._source._batch
        if stream.receiver.handed == self._handed or not isinstance(batch, ConflatedBatch):
            return False
        left = source._values.__length_hint__()
        elapsed_ns = time.monotonic_ns() - self._since_ns
        if not left or elapsed_ns < max(_FLOOR_NS, _NS_A_MESSAGE * left):
            return False
        rest = batch.messages[len(batch.messages) - left :]
        frame: Frame = Folded(stream, rest)
        core = source._core
        entry = stream, Delivery(frame, stream.position - left, 0, left)
        given, size = rest[0].sequence, core.ready_bytes + len(frame.data)
        none: Iterator[Any] = iter([])
        # No call in between, so that Ctrl-C comes before it all or behind it all.
        source._stream = source._batch = None
        source._values = source._active = none
        stream.given, core.ready_bytes = given, size
        stream.given_messages -= left
        core.ready.appendleft(entry)
        return True


def messages_of_batch(
    source: "Subscriber", stream: Stream | None, batch: MessageBatch, values: Iterator[Any]
) -> Iterator[Message]:
    """Return what iterates over a batch that is to be read, driven by one over its values."""
    if stream is not None and isinstance(batch, ConflatedBatch):
        return Freshest(source, stream, batch, values)
    return batch.iterate(values)
