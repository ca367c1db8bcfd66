"""The newest value of each key, for a reader that is slow over a conflated batch.

::

    batch being read ──newer messages of its stream came──▶ what is left of it is put back
                                                               └─▶ is folded with them ─▶ batch
"""

import time
from collections.abc import Iterator
from typing import Any

from p2pmsg.message import Message
from p2pmsg.subscriber.conflation import ConflatedBatch, refold_ns
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.sync.receiving import Reader


class Freshest(Iterator[Message]):
    """Iterates over a conflated batch, and ends early where newer messages have come."""

    __slots__ = ("_handed", "_inner", "_since_ns", "_source", "_stream", "_values")

    def __init__(
        self, source: Reader, stream: Stream, messages: Iterator[Message], values: Any
    ) -> None:
        self._source = source
        self._stream = stream
        self._values = values
        self._inner = messages
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
        if not left or time.monotonic_ns() - self._since_ns < refold_ns(left):
            return False
        source._put_back(stream, batch, left)
        return True
