"""Tracks which messages the application has processed, and commits positions to the cursor.

What was returned is known without a step per message: a stream's position is where the active
batch ends, less what is left of it. What was *processed* is that, except for what is in hand: the
message (or the batch) returned last, until the next one is asked for.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from p2pmsg.driver.lifecycle import INHERITED, is_inherited
from p2pmsg.errors import ClosedError, ConfigError, CursorError, SessionEndedError
from p2pmsg.message import Message, MessageBatch
from p2pmsg.subscriber.conflation import ConflatedBatch
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.resume import ResumePoints
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.sync.settings import Commit
from recovery import CursorConfig, CursorFile, CursorFileStore, RecoveryError
from recovery.checks import to_ns
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.stats import CursorStats

_MS = 1_000_000
_RETRY_NS = 1000 * _MS
"""How long the background thread waits after it failed to write."""
_FSYNC_NS = 1000 * _MS
"""How much automatic committing a crash of the operating system may take back."""

Positions = dict[Stream, int]
"""The sequence after what was returned, by stream."""


class Source(Protocol):
    """A subscriber, as far as its position goes."""

    _stream: Stream | None
    _batch: MessageBatch | None
    _values: Any

    def _clear_active(self) -> None: ...


class Receiver(Protocol):
    """A subscriber whose threads wait."""

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message."""


class Commits:
    """A subscriber's commits. `lock` guards the file; the core's lock is taken within it.

    Attributes:
        each: whether a message is committed when the next one is asked for.
        touched: streams whose position may be beyond the committed one; guarded by the core's lock.

    """

    def __init__(
        self,
        source: Source,
        core: SubscriberCore,
        core_lock: threading.RLock,
        points: ResumePoints,
        config: CursorConfig,
        commit: Commit,
        interval: float | None,
    ) -> None:
        self._source = source
        self._core = core
        self._core_lock = core_lock
        self._points = points
        self._fsync = config.fsync
        self._interval_ns = None if interval is None else to_ns(interval)
        self.automatic = commit != "explicit" or interval is not None
        self.each = commit == "message"
        self.touched: set[Stream] = set()
        self._latest: tuple[Stream, int, Any] | None = None
        self._failure: CursorError | None = None
        self._commit_due_ns = self._sync_due_ns = self._retry_ns = 0
        self._closed, self._why = False, "it is closed"
        self.lock = threading.RLock()

    @property
    def newcomers(self) -> bool:
        """Whether sessions were joined that must be recorded before anything of them goes on."""
        return bool(self._points.newcomers)

    @property
    def failed(self) -> bool:
        """Whether `asked` will raise."""
        return self._failure is not None

    @property
    def is_durable(self) -> bool:
        """Whether each commit waits for the disk."""
        return self._fsync == "always"

    @property
    def joining(self) -> bool:
        """Whether such a session has yet to finish joining, which an exception cut short."""
        newcomers = self._points.newcomers
        return bool(newcomers) and not self._points.has_begun(newcomers[0])

    @property
    def tick_s(self) -> float:
        """How often `handle_timer` should be called at least, in seconds."""
        return 1.0 if self._interval_ns is None else max(0.001, self._interval_ns / 2e9)

    def asked(self) -> None:
        """Note that the next message is asked for, so that nothing is in hand any more.

        `CursorError` where the background thread could not write; the write is tried again.
        """
        source, core = self._source, self._core
        with self._core_lock:
            self._latest = None
            if core.ready.single is not None:
                self.touched.add(core.ready.single)
                core.ready.single = None
            if source._stream is not None and not source._values.__length_hint__():
                source._clear_active()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def asked_each(self) -> None:
        """Commit what was returned so far; for `commit="message"`, before each one."""
        if self._closed:
            return  # the caller gets a ClosedError
        source = self._source
        stream, touched = source._stream, self.touched
        durable = self._fsync == "always"
        alone = stream in touched and len(touched) == 1 and self._core.ready.single is None
        if stream is None or not alone or stream.retired:
            self.commit_returned(durable=durable)
            return
        following = self._returned(stream)
        with self.lock:
            try:
                name = (stream.peer.session, stream.topic, following)
                self._points.file.advance((name,), durable=durable)
            except OSError as error:
                raise CursorError(self._points.file.path, error.strerror or str(error)) from error

    def hand_out(self, stream: Stream, start: int) -> None:
        """Note that a batch, or a loss, from `start` on is in hand; the core's lock is held.

        What marks it is the iterator over the rest: once that moves on, another one was asked for.
        """
        self._latest = (stream, start, self._source._values)

    def commit(self, message: Message | MessageBatch | None) -> None:
        """Commit everything returned so far, or one stream up to and including `message`."""
        with self.lock:
            self.write(self.positions(message))

    def positions(self, message: Message | MessageBatch | None) -> Positions:
        """Return what `commit` would write now; it is given to `write`."""
        self._check_open()
        if message is None:
            with self._core_lock:
                return self._positions(in_hand=True)
        of_kind = isinstance(message, Message | MessageBatch)
        if not of_kind:
            raise ConfigError("message", "a Message, a MessageBatch or None", message)
        if isinstance(message, ConflatedBatch):
            following = message.sequences[-1] + 1
        else:
            count = len(message) if isinstance(message, MessageBatch) else 1
            following = message.sequence + count
        with self._core_lock:
            peer = self._core.peers.get(message.session)
            stream = None if peer is None else peer.streams.get(message.topic)
            returned = -1 if stream is None else self._returned(stream)
            former = [] if peer is None else peer.former
            if following > returned and any(
                one.topic == message.topic and following <= self._returned(one) for one in former
            ):
                return {}  # its sequence is another message's now; there is nothing to resume
        if stream is None or following > returned:
            raise ConfigError("message", "one that this subscriber has returned", message)
        return {stream: following}

    def write(self, positions: Positions) -> None:
        """Commit what `positions` returned, now or before."""
        with self.lock:
            self._check_open()
            self._write(positions, durable=self._fsync != "never")

    def commit_returned(self, *, durable: bool = False) -> None:
        """Commit everything that was returned so far."""
        with self.lock:
            self._check_open()
            self._commit(in_hand=True, durable=durable)

    def record(self) -> None:
        """Record the sessions that were joined."""
        with self.lock, _translated(self._points.file.path):
            self._check_open()
            self._core.record_newcomers()

    def is_due(self, now_ns: int) -> bool:
        """Whether `handle_timer` has something to do."""
        if self._closed or now_ns < self._retry_ns:
            return False
        return self._commit_due(now_ns) or self._sync_due(now_ns) or self.newcomers

    def _commit_due(self, now_ns: int) -> bool:
        return self._interval_ns is not None and now_ns >= self._commit_due_ns

    def _sync_due(self, now_ns: int) -> bool:
        return (
            self._fsync == "interval" and self._points.file.unsynced and now_ns >= self._sync_due_ns
        )

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due, not in the thread that receives. It keeps what goes wrong for `asked`."""
        if not self.is_due(now_ns) or not self.lock.acquire(blocking=False):
            return
        try:
            if self._closed:
                return
            sync_due = self._sync_due(now_ns)
            if self._interval_ns is not None and self._commit_due(now_ns):
                self._commit_due_ns = now_ns + self._interval_ns
                self._commit(in_hand=False, durable=self._fsync == "always")
            with _translated(self._points.file.path):
                self._core.record_newcomers()
                if sync_due:
                    self._sync_due_ns = now_ns + _FSYNC_NS
                    self._points.file.sync()
        except CursorError as error:
            self._retry_ns = now_ns + _RETRY_NS
            if self._failure is None:
                _log.warning("%s", error)
            self._failure = error
        finally:
            self.lock.release()

    def close(self, *, in_hand: bool) -> None:
        """Commit, where that is automatic, and close the file; what is `in_hand` may count, too."""
        with self.lock:
            if self._closed:
                return
            try:
                if self.automatic:
                    self._commit(in_hand=in_hand, durable=self._fsync != "never")
            finally:
                self._closed = True
                self._points.file.close()

    def forget(self) -> None:
        """In a forked child: the file is the parent's, and so is its lock."""
        self._closed, self._why = True, INHERITED
        self.lock = threading.RLock()
        self._core_lock = threading.RLock()
        self._points.file.close()

    def stats(self) -> "CursorStats":
        """Return the counters."""
        return self._points.stats()

    def _commit(self, *, in_hand: bool, durable: bool) -> None:
        with self._core_lock:
            positions = self._positions(in_hand=in_hand)
        self._write(positions, durable=durable)

    def _positions(self, *, in_hand: bool) -> Positions:
        """Return how far the streams were returned; the core's lock is held."""
        if self._core.ready.single is not None:
            self.touched.add(self._core.ready.single)
        positions = {stream: self._returned(stream) for stream in self.touched}
        held = None if in_hand else self._held()
        if held is not None:
            positions[held[0]] = held[1]
        return positions

    def _returned(self, stream: Stream) -> int:
        """Return the sequence after what was returned of a stream; the core's lock is held."""
        source = self._source
        left = int(source._values.__length_hint__()) if stream is source._stream else 0
        if left and isinstance(source._batch, ConflatedBatch):
            return source._batch.sequences[-left]  # it has holes
        return stream.position - left

    def _held(self) -> tuple[Stream, int] | None:
        """Return the stream of what is in hand and its first sequence; the core's lock is held."""
        source, latest, single = self._source, self._latest, self._core.ready.single
        stream, values = source._stream, source._values
        total = 1 if source._batch is None else len(source._batch)
        left = int(values.__length_hint__())
        if latest is not None and latest[2] is values and (stream is None or left == total):
            return latest[0], latest[1]
        if stream is not None and left < total:
            if isinstance(source._batch, ConflatedBatch):
                return stream, source._batch.sequences[total - left - 1]
            return stream, stream.position - left - 1
        return None if single is None else (single, single.position - 1)

    def _write(self, positions: Positions, *, durable: bool) -> None:
        with _translated(self._points.file.path):
            self._core.record_newcomers()
            self._points.commit(positions.items(), durable=durable)
        with self._core_lock:
            active = self._source._stream
            for stream, following in positions.items():
                if stream is not active and stream.position == following:
                    self.touched.discard(stream)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the subscriber's cursor", self._why)


class EachCommitted:
    """Iterates over a subscriber's messages, and commits each when the next one is asked for."""

    def __init__(self, source: Receiver) -> None:
        self._receive = source.receive

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self._receive()
        except (ClosedError, SessionEndedError) as error:
            if is_inherited(error):
                raise
            raise StopIteration from None


def open_cursor(config: CursorConfig, endpoints: list[str], topics: list[str]) -> ResumePoints:
    """Open a cursor's file; raises `CursorError`."""
    store = CursorFileStore(config.path)
    with _translated(store.path):
        return ResumePoints(CursorFile(store), endpoints, topics)


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except RecoveryError as error:
        raise CursorError(path, str(error)) from error
    except OSError as error:  # whose own text has the path once more
        raise CursorError(path, error.strerror or str(error)) from error
