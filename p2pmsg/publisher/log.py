"""A publisher's local log, as its core uses it.

A frame is appended before it goes out. What the replay buffer has forgotten is read from here, a
megabyte ahead of what is asked for, outside the publisher's lock.
"""

from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from p2pmsg.driver.verbs import Blocking
from p2pmsg.errors import LogError, LogFailedError, LogFormatError, LogInUseError, P2PError
from p2pmsg.publisher.batch import Batch
from p2pmsg.publisher.tail_frames import frame_of
from recovery import Kept
from recovery import errors as recovery_errors
from recovery.checks import to_ns
from transports.own_log import own_log as _log
from transports.trouble import Trouble

if TYPE_CHECKING:
    from p2pmsg.stats import LogStats
    from recovery.log import LogConfig, LogReader, LogWriter, TailSlot

R = TypeVar("R")
Steps = Generator[Blocking, Any, R]
"""A part of a verb that waits for the disk."""
_MS: Final = 1_000_000
AHEAD_MAX: Final = 16
"""How many readers are read ahead for, half a MiB each; the one idle for longest is dropped."""
_STEPS_MAX: Final = 4
_NOTHING: Final[Iterator[Kept]] = iter(())
_Reading = tuple[bytes, int, str]
QUEUE_TOPIC: Final = "\0"
"""Begins the names of a queue's streams: no topic of a publisher has a zero byte."""
SLOT_BYTES_MAX: Final = 256 * 1024
"""A batch that is gathered in the tail file is not larger; see `PublisherConfig.frame_bytes`."""
EXPIRE_NS: Final = 1000 * _MS
"""How often retention is applied where nothing is written."""
FSYNC_BYTES: Final = 8 * 2**20
"""When so much waits for the disk, it is forced there before the interval is over; more comes
together while the disk is at it. What waits is kept in memory: with 8 MiB writing is a fifth faster
than with the 30 of 100 ms at two million messages a second."""


class PublisherLog:
    """The log of one publisher, or relay. Only `read` may be called meanwhile by another thread.

    A `session` that is left out is the log's own one; a relay names those that it relays.

    Args:
        config: a `LogConfig`.
        session: the session of a log that is new; one that exists goes on in its own.
        wall_ns: the wall clock.
        store: where the files are; for tests. Default: the operating system.
        slot_bytes: how many bytes of a stream's messages are gathered at most before they are made
            a frame: in the log's tail file, so that they outlive the process, or with
            `fsync="always"` in memory. Default 0: every frame is appended at once.

    Attributes:
        session: the session of the log.
        store: where its files are.
        failed: see `LogStats`.
        broken: why nothing can be brought to the disk any more (`on_error="raise"`), or None.
        syncs_first: whether a frame may go out only when it is on the disk (`fsync="always"`).
        keeps_batches: whether messages are gathered in the tail file.
        recovered: how many messages were found there when it was opened.

    Raises:
        ConfigError: `config` is not one, or what the log needs is not installed.
        LogInUseError: another writer has it.
        LogFormatError: a file of it is damaged or foreign.
        LogFailedError: it cannot be written.

    """

    def __init__(
        self,
        config: "LogConfig",
        *,
        session: int,
        wall_ns: int,
        store: Any = None,
        slot_bytes: int = 0,
    ) -> None:
        import recovery.log as log  # not above: most publishers have no log

        self.config = config
        self.store = log.FileStore(config.directory) if store is None else store
        with log_errors():
            self._writer: LogWriter = log.LogWriter(
                config,
                session=session,
                now_ns=wall_ns,
                store=self.store,
                slot_bytes=min(slot_bytes, SLOT_BYTES_MAX),
                make_lock=Lock,
            )
        self._write_error = log.LogWriteError
        self._reader: LogReader = self._writer.reader()
        self.session = self._writer.session
        self.failed: str | None = None
        self.broken: str | None = None
        place = str(config.directory)
        self._expire_trouble = Trouble(place, "the log grows meanwhile")
        self._write_trouble = Trouble(place, "nothing new is accepted meanwhile")
        self._now_ns = 0
        self.syncs_first = config.is_synced
        self.keeps_batches = not self.syncs_first and slot_bytes > 0
        self._interval_ns = to_ns(config.fsync_interval)
        self._sync_due_ns: int | None = None
        self._expire_due_ns = 0
        self._errors = 0
        # By requester, session and topic: the frame that was read last, and those after it.
        self._ahead: OrderedDict[_Reading, tuple[Kept | None, Iterator[Kept]]] = OrderedDict()
        self.recovered = 0
        try:
            refuse_queue(str(config.directory), self._writer.streams())
            with log_errors():
                self._recover(wall_ns)
                self._tail = self._writer.begin_tail()
        except BaseException:
            self._writer.release()
            raise
        self._warn()

    def _recover(self, wall_ns: int) -> None:
        """Append what a killed process had acknowledged, and had in no frame yet.

        Of a stream of which that is damaged, no message is certain: another one's length may be.
        All that it may have had is skipped.
        """
        for content in self._writer.accepted():
            following = self.next(content.topic)
            if content.session != self.session or content.first < following:
                continue  # the frame was appended, or is of a log that was given up
            try:
                made = frame_of(content)
            except ValueError as error:
                _log.warning(
                    "the log's tail file %s is damaged: %s; what it has of %r is not sent",
                    self.store.path("tail"), error, content.topic,
                )  # fmt: skip
                self._writer.skip_accepted(content.topic)
                continue
            if made is not None:
                frame, count, latest = made
                self._writer.append(
                    self.session, content.topic, content.first, count, frame,
                    timestamp_ns_max=latest, now_ns=wall_ns,
                )  # fmt: skip
                self.recovered += count
        if self.syncs_first and self.recovered:
            self._writer.sync()

    def _warn(self) -> None:
        opened, place = self._writer.opened, self.config.directory
        if opened.copied:
            _log.warning(
                "the log %s is a copy of the directory that was written: the publisher begins a "
                "new session, since subscribers may have later messages than the copy; "
                "LogConfig(moved=True) goes on in the old one",
                place,
            )
        for finding in opened.findings[:1]:
            _log.warning("the log is damaged: %s:%d: %s", *astuple(finding))
        count = sum(stop - start for _, _, start, stop in opened.skipped)
        if count:
            _log.warning(
                "the log %s may have lost messages that were accepted, at most %d of %d streams: "
                "their sequences are skipped, and reported lost (crash)",
                place, count, len({(session, topic) for session, topic, _, _ in opened.skipped}),
            )  # fmt: skip

    @property
    def copied(self) -> bool:
        """Whether the directory is a copy of the one that was written."""
        return self._writer.opened.copied

    def take_slot(self) -> "TailSlot | None":
        """Return space for a stream's messages in the tail file; None where there is none now."""
        return self._tail.take()

    def give_back_slot(self, slot: "TailSlot") -> None:
        """Free what `take_slot` returned: its messages are in a frame that was appended."""
        self._tail.give_back(slot)

    def resync(self, batches: Iterable[Batch]) -> None:
        """Free the slots that none of the open batches has, after an exception at any line."""
        self._tail.resync([one.slot for one in batches if one.slot is not None])

    @property
    def floor(self) -> int:
        """The sequence that a stream begins with of which the log knows nothing."""
        return self._writer.floor

    def topics(self) -> list[str]:
        """Return the topics of the log's session."""
        return [topic for session, topic in self._writer.streams() if session == self.session]

    def streams(self) -> list[tuple[int, str]]:
        """Return (session, topic) of all streams."""
        return self._writer.streams()

    def next(self, topic: str, session: int | None = None) -> int:
        """Return the sequence after the last one that is used."""
        return self._writer.next(self._or_own(session), topic)

    def earliest(self, topic: str, session: int | None = None) -> int | None:
        """Return the first sequence kept, or None."""
        return self._writer.earliest(self._or_own(session), topic)

    def _or_own(self, session: int | None) -> int:
        return self.session if session is None else session

    def append(
        self,
        topic: str,
        start: int,
        count: int,
        frame: bytes | memoryview,
        latest_ns: int,
        wall_ns: int,
        session: int | None = None,
    ) -> None:
        """Write a frame, before it goes out; say so if that fails, and when it works again.

        Raises:
            LogFailedError: it could not be written, and `on_error` is `"raise"`.

        """
        if self.failed is not None:
            return
        if self.broken is not None:
            raise LogFailedError(self.broken)
        try:
            self._writer.append(
                self._or_own(session), topic, start, count, frame,
                timestamp_ns_max=latest_ns, now_ns=wall_ns,
            )  # fmt: skip
        except self._write_error as error:
            if self.config.on_error == "raise":
                self._write_trouble.note(str(error))
            self._fail(error)
            return
        if self._write_trouble.why:
            self._write_trouble.over()

    def _fail(self, error: OSError) -> None:
        self._errors += 1
        if self.config.on_error == "raise":
            if self._writer.has_failed:
                self.broken = str(error)
            raise LogFailedError(str(error), error.errno) from error
        self.failed = str(error)
        # What follows is in no log, so the session must not be gone on with.
        self._writer.abandon()

    def skips(self, topic: str) -> list[tuple[int, int]]:
        """Return the ranges of a topic that a crash skipped."""
        return self._writer.skips(self.session, topic)

    def read(
        self, requester: bytes, topic: str, start: int, session: int | None = None
    ) -> Kept | None:
        """Return the frame that has `start`, or the first after it; None where there is none.

        Only the thread that answers requests calls it.
        """
        session = self._or_own(session)
        key = (requester, session, topic)
        kept, frames = self._ahead.get(key, (None, _NOTHING))
        for _ in range(_STEPS_MAX):
            if kept is None or kept.stop > start:
                break
            kept = next(frames, None)
        if kept is None or not kept.start <= start < kept.stop:
            frames = self._reader.follow(session, topic, start, copy=False)
            kept = next(frames, None)
            if kept is None:
                self._ahead.pop(key, None)
                return None
        self._ahead[key] = (kept, frames)
        self._ahead.move_to_end(key)
        while len(self._ahead) > AHEAD_MAX:
            self._ahead.popitem(last=False)
        return kept

    def first_at_or_after(
        self, topic: str, timestamp_ns: int, session: int | None = None
    ) -> Kept | None:
        """Return the first kept frame with a message as new as that, or None."""
        return self._reader.first_at_or_after(self._or_own(session), topic, timestamp_ns)

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `sync` is due, or None."""
        self._now_ns = now_ns
        if self.failed is not None or self.broken is not None:
            return None
        waiting = self._writer.unsynced_bytes
        if self.config.fsync == "never" or not waiting:
            self._sync_due_ns = None
            return self._expire_due_ns
        if waiting >= FSYNC_BYTES:
            return now_ns
        if self._sync_due_ns is None:
            self._sync_due_ns = now_ns + (0 if self.syncs_first else self._interval_ns)
        return self._sync_due_ns

    def sync_steps(self, *, wall_ns: int | None = None) -> Steps[bool]:
        """Bring what was written to the disk, and apply retention by the wall clock.

        Where the disk fails it is not tried again: the system has forgotten what it could not
        write, and the next fsync would succeed without it.

        Returns:
            Whether what waited for the disk may go out now: it is there, or `on_error` is
            `"continue"`.

        """
        self._sync_due_ns, self._expire_due_ns = None, self._now_ns + EXPIRE_NS
        writer = self._writer
        is_due = wall_ns is not None and writer.is_due(wall_ns)
        is_written = writer.unsynced_bytes > 0 and self.config.fsync != "never"
        if self.failed is not None or self.broken is not None or not (is_due or is_written):
            return self.broken is None
        try:
            if is_due:
                self._reader.close_idle()
            pending = writer.begin_sync(wall_ns)
            yield Blocking(pending.wait)
            writer.end_sync(pending)
        except self._write_error as error:
            if writer.has_failed:
                with suppress(LogFailedError):
                    self._fail(error)
            else:
                self._errors += 1
                self._expire_trouble.note(str(error))
        else:
            self._expire_trouble.over()
        return self.broken is None

    def close(self, *, keeps_tail: bool = False) -> None:
        """Close the log, so that opening it again reads no segment.

        With `keeps_tail` there are messages in the tail file that could not be appended: the next
        publisher on the log does it.

        Raises:
            LogFailedError: not everything could be written now, or an fsync had failed before; it
                is closed all the same.

        """
        self._reader.close()
        try:
            self._writer.close(keeps_tail=keeps_tail)
        except self._write_error as error:
            raise LogFailedError(str(error), error.errno) from error
        if self.broken is not None:
            raise LogFailedError(self.broken)

    def stats(self) -> "LogStats":
        """Return the counters as they are now."""
        from p2pmsg.stats import LogStats

        opened = self._writer.opened
        return LogStats(
            directory=str(self.config.directory),
            bytes=self._writer.bytes,
            unsynced_bytes=self._writer.unsynced_bytes,
            skipped=sum(stop - start for _, _, start, stop in opened.skipped),
            failed=self.failed,
            errors=self._errors,
            retrying=self._write_trouble.why or self._expire_trouble.why or None,
        )


def refuse_queue(directory: str, streams: Iterable[tuple[int, str]]) -> None:
    """Raise `LogFormatError` where a log with these streams is the log of a queue."""
    if any(topic.startswith(QUEUE_TOPIC) for _, topic in streams):
        raise LogFormatError(directory, 0, f"{directory} is the log of a queue")


@contextmanager
def log_errors() -> Iterator[None]:
    """Raise the errors of `recovery.log` as those of p2pmsg."""
    try:
        yield
    except P2PError:
        raise
    except recovery_errors.LogWriteError as error:
        raise LogFailedError(str(error), error.errno) from error
    except recovery_errors.LogLockedError as error:
        raise LogInUseError(error.directory) from error
    except recovery_errors.LogFormatError as error:
        raise LogFormatError(error.path, error.offset, str(error)) from error
    except recovery_errors.RecoveryError as error:
        raise LogError(str(error)) from error
