"""A simulated application: it takes its messages in all the ways in which users take them."""

from random import Random
from typing import Final

from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.conflation import batch_of, bytes_of
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.sessions import Stream
from recovery import Delivery, Loss

Read = tuple[Stream, MessageBatch | Loss]

_FEW_MAX: Final = 3
_ALL: Final = 2**32


class SimulatedReader:
    """Reads from one core, as `receive`, `receive_many` and a loop do in turn.

    Some of its calls are interrupted: what was taken is put back, and comes again.

    Args:
        core: the subscriber's.
        rng: chooses how each message is taken.

    """

    def __init__(self, core: SubscriberCore, rng: Random) -> None:
        self._core = core
        self._rng = rng
        self._stream: Stream | None = None
        self._batch: MessageBatch | None = None
        self._at = 0

    @property
    def left(self) -> int:
        """How many messages were taken, and not returned to the application yet."""
        return 0 if self._batch is None else len(self._batch) - self._at

    def left_of(self, stream: Stream) -> int:
        """Return how many of these are of a stream."""
        return self.left if stream is self._stream else 0

    def position(self, stream: Stream) -> int:
        """Return the sequence after what the application got of a stream."""
        batch = self._batch
        if stream is self._stream and batch is not None and not batch.late:
            return batch[self._at].sequence  # what comes late moves no position
        return stream.position

    def read(self, now_ns: int) -> Read | None:
        """Return what the application gets next, or None."""
        while True:
            if self._batch is not None and self._rng.random() < 0.3:
                self._put_back()
            if self._batch is not None:
                return self._advance(self._some(self.left))
            count_max = _ALL if self._rng.random() < 0.5 else self._some(_FEW_MAX)
            self._core.ready.next_turn(now_ns)
            taken = self._core.ready.take(count_max, now_ns=now_ns)
            if taken is None:
                return None
            stream, loss, batch, _, messages = taken
            if isinstance(loss, Loss):
                return stream, loss
            if batch is None:
                batch = batch_of(next(messages))
            self._stream, self._batch, self._at = stream, batch, 0
            if self._rng.random() < 0.1:
                self._put_back()
                if self._rng.random() < 0.5:
                    return None  # it does something else first
            elif count_max < _ALL or self._rng.random() < 0.5:
                return self._advance(len(batch))

    def read_frame(self, data: bytes, now_ns: int) -> Read | None:
        """Return the messages of a frame that came for a reader that waits; None: not this way.

        Every other time, for otherwise a background thread takes what comes.
        """
        core = self._core
        stream = core.last_stream
        if self._rng.random() < 0.5:
            return None
        if stream is None or core.ready.entries or self._batch is not None:
            return None
        if core.is_full or core.recovering or now_ns >= core.next_deadline_ns():
            return None
        if core.cursor is not None and core.cursor.newcomers:
            return None
        if not data.startswith(stream.prefix):
            stream = core.stream_of(data) or stream
        batched = False
        count_max = 1
        if core.cursor is None and not core.policy.any_conflates:
            batched = self._rng.random() < 0.5
            count_max = self._rng.choice((1, _FEW_MAX, _ALL))
        taken = core.take_frame(stream, data, count_max, batched, now_ns)
        if taken is None:
            return None
        batch = batch_of(taken) if isinstance(taken, Message) else taken
        self._stream, self._batch, self._at = stream, batch, 0
        if self._rng.random() < 0.1:
            core.ready.put_back(stream, taken, len(batch))
            self._clear()
            return self.read(now_ns)
        return self._advance(len(batch) if self._rng.random() < 0.5 else self._some(len(batch)))

    def miscounted(self) -> str:
        """Return what the queue counts wrongly, or nothing."""
        ready = self._core.ready
        waiting: dict[int, int] = {}
        held = 0
        for stream, output in ready:
            if isinstance(output, Delivery):
                waiting[id(stream)] = waiting.get(id(stream), 0) + output.count
                held += bytes_of(output.item)
        if ready.bytes_held != held:
            return f"{ready.bytes_held} bytes are ready instead of {held}"
        for stream in self._core.streams:
            delivered = stream.receiver.handed - waiting.get(id(stream), 0)
            if stream.delivered_count != delivered:
                return f"took {stream.delivered_count} of {stream.topic!r} instead of {delivered}"
        return ""

    def _some(self, count_max: int) -> int:
        return 1 + int(self._rng.random() * count_max)

    def _advance(self, count: int) -> Read:
        stream, batch, at = self._stream, self._batch, self._at
        assert stream is not None
        assert batch is not None
        stop = min(at + count, len(batch))
        self._at = stop
        if stop == len(batch):
            self._clear()
        return stream, batch.part(at, stop)

    def _put_back(self) -> None:
        assert self._stream is not None
        assert self._batch is not None
        self._core.ready.put_back(self._stream, self._batch, self.left)
        self._clear()

    def _clear(self) -> None:
        self._stream, self._batch, self._at = None, None, 0
