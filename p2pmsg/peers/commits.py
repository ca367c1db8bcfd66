"""Tracks which messages the application has processed, and commits positions to the cursor.

What was returned is known without a step per message: a stream's position is where the messages
that are being read end, less what is left of them. What was *processed* is that, except for what is
in hand: the message (or the batch) returned last, until the next one is asked for.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.driver.lifecycle import INHERITED
from p2pmsg.driver.verbs import Blocking, Verb, Wait
from p2pmsg.errors import ClosedError, ConfigError, CursorError
from p2pmsg.message import Message, MessageBatch
from p2pmsg.peers.reading import Reading
from p2pmsg.peers.settings import Commit
from p2pmsg.subscriber.conflation import ConflatedBatch
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.resume import ResumePoints
from p2pmsg.subscriber.sessions import Stream
from recovery import CursorConfig, CursorFile, RecoveryError
from recovery.checks import to_ns
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.peers.network import Network
    from p2pmsg.stats import CursorStats

_MS: Final = 1_000_000
_NEVER_NS: Final = 2**63
_RETRY_NS: Final = 1000 * _MS
"""How long is waited after a write in the background failed."""
_FSYNC_NS: Final = 1000 * _MS
"""How much automatic committing a crash of the operating system may take back."""

Positions = dict[Stream, int]
"""The sequence after what was returned, by stream."""


class Commits:
    """A subscriber's commits: verbs of its peer, which write to the cursor's file by `Blocking`.

    Args:
        core: whose positions are committed.
        reading: what was taken of it, and not returned yet.
        points: the cursor.
        config: of the cursor.
        commit: as `Subscriber` has it.
        interval: the same, in seconds; None: there is none.
        now_ns: the clock.

    Attributes:
        automatic: whether it commits by itself.
        each: whether a message is committed when the next one is asked for.
        touched: streams whose position may be beyond the committed one.

    """

    def __init__(
        self,
        core: SubscriberCore,
        reading: Reading,
        points: ResumePoints,
        config: CursorConfig,
        commit: Commit,
        interval: float | None,
        now_ns: Callable[[], int],
    ) -> None:
        self._core = core
        self._reading = reading
        self._points = points
        self._fsync = config.fsync
        self._interval_ns = None if interval is None else to_ns(interval)
        self._now_ns = now_ns
        self.automatic = commit != "explicit" or interval is not None
        self.each = commit == "message"
        self.touched: set[Stream] = set()
        self._in_hand: tuple[Stream, int] | None = None
        self._failure: CursorError | None = None
        self._commit_due_ns = self._sync_due_ns = self._retry_ns = 0
        self._closed, self._why = False, "it is closed"
        self._file_lock = threading.Lock()

    @property
    def newcomers(self) -> bool:
        """Whether sessions were joined that must be recorded before anything of them goes on."""
        return bool(self._points.newcomers)

    @property
    def has_failed(self) -> bool:
        """Whether `asked` will raise."""
        return self._failure is not None

    def asked(self) -> None:
        """Note that the next message is asked for, so that nothing is in hand any more.

        Raises:
            CursorError: a write in the background failed; it is tried again.

        """
        self._in_hand = None
        reading = self._reading
        if reading.stream is not None and not reading.left:
            reading.clear()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def hand_out(self, stream: Stream, start: int) -> None:
        """Note that a batch, or a loss, from `start` on is in hand."""
        self._in_hand = stream, start

    def commit(self, message: Message | MessageBatch | None) -> Verb[None]:
        """Commit everything returned so far, or one stream up to and including `message`."""
        yield from self._write(self._positions_up_to(message), durable=self._fsync != "never")

    def commit_returned(self) -> Verb[None]:
        """Commit what was returned so far; for `commit="message"`, before each one."""
        if self._closed or not self.touched:
            return  # the caller gets a ClosedError
        yield from self._write(self._positions(in_hand=True), durable=self._fsync == "always")

    def upkeep(self) -> Verb[None]:
        """Record who joins, commit and force to the disk when that is due, without end."""
        while not self._closed:
            yield Wait(self._is_due, self._next_ns())
            if self._closed or not self._is_due():
                continue
            try:
                yield from self._keep_up(self._now_ns())
            except CursorError as error:
                self._retry_ns = self._now_ns() + _RETRY_NS
                if self._failure is None:
                    _log.warning("%s", error)
                self._failure = error

    def _keep_up(self, now_ns: int) -> Verb[None]:
        sync_due = self._is_sync_due(now_ns)
        if self._interval_ns is not None and now_ns >= self._commit_due_ns:
            self._commit_due_ns = now_ns + self._interval_ns
            positions = self._positions(in_hand=False)
            yield from self._write(positions, durable=self._fsync == "always")
        for write in self._core.recording():
            yield Blocking(partial(self._write_file, write))
        if sync_due:
            self._sync_due_ns = now_ns + _FSYNC_NS
            yield Blocking(partial(self._write_file, self._points.file.sync))

    def _is_due(self) -> bool:
        """Whether `upkeep` has something to do."""
        now_ns = self._now_ns()
        return self._closed or (
            now_ns >= self._retry_ns
            and (self._can_record() or self._is_sync_due(now_ns) or now_ns >= self._next_ns())
        )

    def _can_record(self) -> bool:
        """Whether a session waits to be recorded, and has finished joining."""
        newcomers = self._points.newcomers
        return bool(newcomers) and newcomers[0].is_decided

    def _is_sync_due(self, now_ns: int) -> bool:
        is_on = self._fsync == "interval" and self._points.file.unsynced
        return is_on and now_ns >= self._sync_due_ns

    def _next_ns(self) -> int:
        due_ns = _NEVER_NS if self._interval_ns is None else self._commit_due_ns
        return max(self._retry_ns, min(due_ns, self._now_ns() + _FSYNC_NS))

    def close(self, *, in_hand: bool) -> Verb[None]:
        """Commit, where that is automatic, and close the file; what is `in_hand` may count, too."""
        if self._closed:
            return
        try:
            if self.automatic:
                positions = self._positions(in_hand=in_hand)
                yield from self._write(positions, durable=self._fsync != "never")
        finally:
            self.shut()

    def shut(self) -> None:
        """Close the file."""
        if not self._closed:
            self._closed = True
            with self._file_lock:
                self._points.file.close()

    def abandon(self) -> None:
        """In a forked child: the file is the parent's."""
        self._closed, self._why = True, INHERITED
        self._points.file.close()

    def stats(self) -> "CursorStats":
        """Return the counters."""
        return self._points.stats()

    def _positions_up_to(self, message: Message | MessageBatch | None) -> Positions:
        self._check_open()
        if message is None:
            return self._positions(in_hand=True)
        if not isinstance(message, Message | MessageBatch):
            raise ConfigError("message", "a Message, a MessageBatch or None", message)
        if isinstance(message, ConflatedBatch):
            following = message.sequences[-1] + 1
        else:
            count = len(message) if isinstance(message, MessageBatch) else 1
            following = message.sequence + count
        peer = self._core.peers.get(message.session)
        stream = None if peer is None else peer.streams.get(message.topic)
        former = [] if peer is None else [s for s in peer.former if s.topic == message.topic]
        if stream is not None and following <= self._reading.following(stream):
            return {stream: following}
        if any(following <= self._reading.following(one) for one in former):
            return {}  # its sequence is another message's now; there is nothing to resume
        raise ConfigError("message", "one that this subscriber has returned", message)

    def _positions(self, *, in_hand: bool) -> Positions:
        """Return how far the streams were returned."""
        positions = {stream: self._reading.following(stream) for stream in self.touched}
        held = None if in_hand else self._in_hand or self._reading.last()
        if held is not None:
            positions[held[0]] = held[1]
        return positions

    def _write(self, positions: Positions, *, durable: bool) -> Verb[None]:
        entries = self._points.entries(positions.items())
        if durable:
            yield Blocking(partial(self._write_file, self._points.file.advance, entries, durable))
        else:  # into the page cache: it takes less than the change of a thread
            self._write_file(self._points.file.advance, entries)
        self._forget(positions)

    def _forget(self, positions: Positions) -> None:
        active = self._reading.stream
        for stream, following in positions.items():
            if stream is not active and stream.position == following:
                self.touched.discard(stream)

    def _write_file(self, write: Callable[..., object], *arguments: Any) -> None:
        """Write to the file, without the engine."""
        try:
            with self._file_lock:
                self._check_open()
                write(*arguments)
        except (RecoveryError, OSError) as error:
            raise _as_cursor_error(self._points.file.path, error) from error

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the subscriber's cursor", self._why)


def open_cursor(
    network: "Network", path: str | Path, endpoints: list[str], topics: list[str]
) -> ResumePoints:
    """Open a cursor's file; raises `CursorError`."""
    try:
        return ResumePoints(CursorFile(partial(network.open_store, path)), endpoints, topics)
    except (RecoveryError, OSError) as error:
        raise _as_cursor_error(os.fspath(path), error) from error


def _as_cursor_error(path: str, error: RecoveryError | OSError) -> CursorError:
    """Return an error of the file's; the text of an `OSError` has the path once more, perhaps."""
    return CursorError(path, getattr(error, "strerror", None) or str(error))
