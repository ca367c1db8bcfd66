"""A queue's log on disk: a segment log (`recovery.log`) that keeps what is not settled.

It has two streams. `JOBS` has each job as it was pushed, under its own sequence, so the log itself
says which sequences a crash may have used. `CHANGES` has what became of jobs, and jobs that are
written again: the oldest segments are deleted once nothing in them is of use, and where what is of
use is little, it is written again for that. The log takes about twice what it has to keep.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Final

import recovery.log as segment_log
from p2pmsg.errors import LogFailedError, LogFormatError
from p2pmsg.publisher.log import QUEUE_TOPIC, log_errors
from p2pmsg.queue.config import QueueLogConfig
from p2pmsg.queue.frames import Process
from p2pmsg.queue.journal.records import (
    PUSH,
    JournalState,
    Ranges,
    change_record,
    push_record,
    run_record,
    seen_record,
)
from p2pmsg.queue.rules import Change, Died, Done, Dropped, QueuedJob, Retried
from recovery.checks import to_ns
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from recovery.log import LogStore, PendingSync

JOBS: Final = f"{QUEUE_TOPIC}jobs"
CHANGES: Final = f"{QUEUE_TOPIC}changes"
_DELIVERIES: Final = 2**36
"""How many delivery numbers a run reserves: those of two weeks, and 69 s of the clock that they
begin with."""
_RECORD_BYTES: Final = 64
"""Of a record in a segment, next to its content."""
_READS: Final = 5
"""How often a log is read while its pusher deletes segments."""
_ALL: Final = 2**62
_NEVER_NS: Final = 2**63


class Journal:
    """An open log; `state` gets what it has.

    Args:
        settings: how it is kept.
        state: empty.
        store: where the files are; for tests. Default: `settings.directory`.
        segment_bytes: of a segment; for tests.
        now_ns, wall_ns: both clocks.

    Raises:
        LogInUseError: another process has it open.
        LogFormatError: it is damaged, and not only without the end that a crash may take, or it is
            the log of a publisher.
        LogFailedError: the operating system refuses.

    Attributes:
        session: the queue's id.
        is_always: whether `fsync` is `always`: after an append, a sync is to come before anything
            is said of it.
        written, synced: how many records were appended by this run, and how many of them are on the
            disk for certain.
        broken: why nothing can be brought to the disk any more; None while it can.

    While it is open it does not wait for the disk: its owner begins a sync when that is due, and
    shortens the log when it `has_to_shorten`.

    """

    def __init__(
        self,
        settings: QueueLogConfig,
        state: JournalState,
        *,
        store: "LogStore | None" = None,
        segment_bytes: int = 16 * 2**20,
        now_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._folder, self._pid = os.fspath(settings.directory), os.getpid()
        self._settings = settings
        self._segment_bytes = segment_bytes
        self._now_ns, self._wall_ns = now_ns, wall_ns
        self.is_always = settings.fsync == "always"
        self.written = self.synced = self._syncing = 0
        self.broken: str | None = None
        self._pending: PendingSync | None = None
        self._pushed: dict[int, None] = {}
        """Jobs of use that were not written again since they were pushed, by sequence."""
        self._again: dict[int, int] = {}
        """Others by sequence, each with the change from which on the log has it, in that order."""
        self._ids: dict[int, str] = {}
        """Message ids, by sequence; their jobs are of use until the ids are forgotten."""
        self._reserved = self._run = self._full = 0
        config = segment_log.LogConfig(
            settings.directory, retention_bytes=_ALL, segment_bytes=segment_bytes,
            fsync=settings.fsync,
        )  # fmt: skip
        self._interval_ns = to_ns(config.fsync_interval)
        new_session = secrets.randbits(64)
        with log_errors():
            self._writer = segment_log.LogWriter(
                config, session=new_session, now_ns=wall_ns(), store=store, make_lock=Lock
            )
            self.session = state.session = self._writer.session
            try:
                self._read(state, is_new=self.session == new_session)
                self._writer.begin_tail()
            except BaseException:
                self._writer.close()  # as it was before
                raise
        self._full += 2 * segment_bytes
        self._look_at = self._writer.bytes + segment_bytes
        self._synced_ns = now_ns()

    # -------------------------------------------------------------------------------- opening

    def _read(self, state: JournalState, *, is_new: bool) -> None:
        """Learn what is there, what of it is of use, and what is missing."""
        writer = self._writer
        pushed: set[int] = set()
        foreign: set[int] = set()
        for record, whole in _replay(writer.reader(), state, self._folder):
            if whole is None:
                continue
            self._again.pop(whole, None)
            pushed.discard(whole)
            foreign.discard(whole)
            if record.session != self.session:
                foreign.add(whole)
            elif record.topic == JOBS:
                pushed.add(whole)
            else:
                self._again[whole] = record.start
        self._ids = {sequence: name for name, (sequence, _) in state.seen.items()}
        live = state.open.keys() | state.dead.keys() | self._ids.keys()
        self._pushed = dict.fromkeys(sorted(pushed & live))
        self._again = {one: at for one, at in self._again.items() if one in live}
        is_copy = bool(writer.opened.copied or (is_new and writer.streams()) or foreign & live)
        if is_copy:
            self._write_all(state)
        for session, topic in writer.streams():
            if session != self.session:
                writer.keep_from(session, topic, _ALL)
        state.next_sequence = max(state.next_sequence, writer.next(self.session, JOBS))
        skips, known = self._skips(), state.skips or [[], []]
        new = [[one for one in skips[at] if one not in known[at]] for at in range(2)]
        state.missing = sum(stop - start for start, stop in new[0])
        state.is_incomplete = is_copy or any(new)
        if state.is_incomplete:
            why = "the operating system crashed, or the log is shorter than it was"
            if is_copy:
                why = "this log was restored from a copy, and goes on as a new session"
            _log.warning(
                "%s: %s: what was pushed or done last may be missing, and no sequence is used "
                "twice%s", self._folder, why, "".join(map(_left_out, new[0])),
            )  # fmt: skip

    def _write_all(self, state: JournalState) -> None:
        """Write all that is of use in the new session."""
        for name, (sequence, pushed_ns) in state.seen.items():
            self.write_again(sequence, [seen_record(name, sequence, pushed_ns)])
        for job in state.open.values():
            self.write_again(job.sequence, [change_record(Retried(job))])
        for dead in state.dead.values():
            self.write_again(dead.job.sequence, [change_record(Died(dead))])
        self._writer.sync()

    def _skips(self) -> list[Ranges]:
        return [self._writer.skips(self.session, topic) for topic in (JOBS, CHANGES)]

    def begin_run(self, delivery: int) -> None:
        """Reserve delivery numbers from `delivery` on, and bring that to the disk."""
        self._reserve(delivery)
        self.sync()

    def _reserve(self, delivery: int) -> None:
        self._reserved = delivery + _DELIVERIES
        self._run = self._append(run_record(self._reserved, self._skips()))

    # -------------------------------------------------------------------------------- writing

    def push(self, job: QueuedJob) -> None:
        """Write down a job; `LogFailedError` where that fails, and then nothing of it is left."""
        self._check_usable()
        sequence = job.sequence
        self._pushed[sequence] = None  # before it is there, so that it is not deleted
        if job.message_id is not None:
            self._ids[sequence] = job.message_id
        self._write(JOBS, sequence, push_record(job), job.pushed_ns)

    def change(self, change: Change, process: Process | None = None) -> None:
        """Write down what became of a job; the arguments are those of `change_record`."""
        self._check_usable()
        number = self._append(change_record(change, process))
        if isinstance(change, Done):
            for sequence in range(change.start, change.stop):
                self._settle(sequence)
        elif isinstance(change, Dropped):
            self._settle(change.sequence)
        elif isinstance(change, Died | Retried):
            job = change.dead.job if isinstance(change, Died) else change.job
            self._drop(job.sequence)
            self._again[job.sequence] = number

    def _append(self, record: bytes) -> int:
        number = self._writer.next(self.session, CHANGES)
        self._write(CHANGES, number, record, self._wall_ns())
        return number

    def _write(self, topic: str, start: int, record: bytes, now_ns: int) -> None:
        try:
            self._writer.append(
                self.session, topic, start, 1, record, timestamp_ns_max=now_ns, now_ns=now_ns
            )
        except segment_log.LogWriteError as error:
            raise LogFailedError(f"the queue's log: {error}", error.errno) from error
        self.written += 1

    def _settle(self, sequence: int) -> None:
        if sequence not in self._ids:
            self._drop(sequence)

    def _drop(self, sequence: int) -> None:
        self._pushed.pop(sequence, None)
        self._again.pop(sequence, None)

    def allow_deliveries(self, stop: int) -> None:
        """See to it that no later run uses a delivery number below `stop`."""
        if stop > self._reserved:
            self._reserve(stop)

    # ----------------------------------------------------------------------------- to the disk

    @property
    def due_ns(self) -> int:
        """When the next sync is due, of the monotonic clock; far away where none is."""
        if self.broken is not None or self.written == self.synced:
            return _NEVER_NS
        if self.is_always:
            return 0
        is_never = self._settings.fsync == "never"
        return _NEVER_NS if is_never else self._synced_ns + self._interval_ns

    def begin_sync(self) -> "PendingSync":
        """Begin to force to the disk what was written; then call its `wait`, then `end_sync`.

        Segments go with it that have nothing of what `keep_from` keeps.
        Only `wait` takes time, and during it other methods may be called. One that nobody has ended
        is returned again.
        """
        self._check_usable()
        if self._pending is None:
            self._syncing = self.written
            self._pending = self._writer.begin_sync(self._wall_ns())
        return self._pending

    def end_sync(self, pending: "PendingSync") -> None:
        """Take the result of a sync; `LogFailedError` where it failed.

        That is final, and `broken` says so: the system has forgotten what it could not write, and
        another fsync would succeed without it. Where only segments could not be deleted, it is
        tried again.
        """
        if pending is not self._pending:
            return  # another call has ended it
        self._pending = None
        try:
            with log_errors():
                self._writer.end_sync(pending)
        except LogFailedError as error:
            if not self._writer.has_failed:
                self._on_synced()
                raise
            self.broken = f"what was written could not be forced to the disk: {error}"
            raise LogFailedError(self.broken, error.errno) from error
        self._on_synced()

    def _on_synced(self) -> None:
        self.synced = self._syncing
        self._synced_ns = self._now_ns()
        self._look_at = min(self._look_at, self._writer.bytes + self._segment_bytes)

    def sync(self) -> None:
        """Force to the disk what was written; `LogFailedError` where that fails, now or before."""
        pending = self.begin_sync()
        pending.wait()
        self.end_sync(pending)

    # The owner does these one after the other, and may append in between. What is written again is
    # on the disk before older records of it are deleted.

    @property
    def has_to_shorten(self) -> bool:
        """Whether the log has grown by a segment since it was shortened last."""
        return self._writer.bytes >= self._look_at

    def begin_shorten(self) -> list[int]:
        """Begin to shorten the log; return the jobs that are to be written again, by sequence."""
        self._run = self._append(run_record(self._reserved, self._skips()))
        if self._writer.bytes <= self._full:
            return []
        self._full = 2 * self._segment_bytes
        return [*self._pushed, *self._again]

    def message_id(self, sequence: int) -> str | None:
        """Return the message id that is known of a job."""
        return self._ids.get(sequence)

    def write_again(self, sequence: int, found: Iterable[bytes]) -> int:
        """Write a job as `found` has it, in place of all that is older; return its size in bytes.

        No record: it is of no use any more.
        """
        numbers, size = [], 0
        for record in found:
            numbers.append(self._append(record))
            size += len(record) + _RECORD_BYTES
        self._drop(sequence)
        if numbers:
            self._again[sequence] = numbers[0]
        else:
            self._ids.pop(sequence, None)
        self._full += 2 * size
        return size

    def first_of_use(self) -> tuple[int, int]:
        """Return from where on the log has something of use: a job, and a change."""
        jobs = next(iter(self._pushed), self._writer.next(self.session, JOBS))
        return jobs, min(next(iter(self._again.values()), self._run), self._run)

    def keep_from(self, jobs: int, changes: int) -> None:
        """Let the next sync delete segments before what `first_of_use` returned."""
        self._writer.keep_from(self.session, JOBS, jobs)
        self._writer.keep_from(self.session, CHANGES, changes)
        self._look_at = self._writer.bytes + self._segment_bytes

    # -------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Let go of the log; it may be called again."""
        with log_errors():
            self._writer.close()

    def release(self) -> None:
        """Leave everything as a killed process does; a forked child has closed its files."""
        if os.getpid() == self._pid:
            self._writer.release()

    def _check_usable(self) -> None:
        if self.broken is not None:
            raise LogFailedError(self.broken)


def _left_out(skip: tuple[int, int]) -> str:
    ends = f"; sequences {skip[0]} to {skip[1] - 1} are left out, and jobs of these"
    return f"{ends} that were not done are lost"


def topic_of(record: bytes) -> str:
    """Return which of the two streams a record is of; `ValueError` where it is none."""
    JournalState().apply(record)
    return JOBS if record[1] == PUSH else CHANGES


def _replay(
    reader: segment_log.LogReader, state: JournalState, folder: str
) -> Iterator[tuple[segment_log.Record, int | None]]:
    """Have `state` take all records; yield each with what `JournalState.apply` returns.

    Raises:
        LogFormatError: something is damaged, or it is the log of a publisher.

    """
    keeps = f"`p2pmsg log repair {folder}` keeps what is intact"
    try:
        for record in reader.records():
            if record.topic not in (JOBS, CHANGES):
                what = f"{folder} is the log of a publisher, with messages of {record.topic!r}"
                raise LogFormatError(folder, 0, what)
            try:
                yield record, state.apply(record.frame)
            except ValueError as error:
                raise LogFormatError(folder, 0, f"{folder}: {error}") from error
        for found in reader.corrupt.values():
            what = f"{found.path} is damaged at byte {found.offset}: {found.what}; {keeps}"
            raise LogFormatError(found.path, found.offset, what)
    finally:
        reader.close()


def read_log(directory: str | os.PathLike[str]) -> JournalState:
    """Return what a log says, without opening it for writing; its pusher may be at work.

    Raises:
        LogError: there is no log.
        LogFormatError: a record is damaged, or it is the log of a publisher.

    """
    for left in reversed(range(_READS)):
        state = JournalState()
        with log_errors():
            reader = segment_log.LogReader(directory)
        state.session = reader.session
        try:
            for _ in _replay(reader, state, os.fspath(directory)):
                pass
        except LogFormatError:
            if not left:
                raise  # or else a segment may have been deleted meanwhile
        else:
            break
    return state
