"""The records of a queue's log, and the state that they give when they are read again.

A record is one msgpack array that begins with its type. Replaying them in order gives the queue's
state. Compaction appends what is still of use in the oldest segment to the newest, so a record may
come again later, or after one that refers to it. So each can be applied twice, and late: a push
does not undo what is known of its job, and the older of two failures, or of two deliveries, is
ignored.
"""

from collections.abc import Iterator
from typing import Any, Final

from p2pmsg import codec
from p2pmsg.queue.frames import Process
from p2pmsg.queue.rules import (
    Change,
    DeadJob,
    Died,
    Done,
    Dropped,
    Failed,
    Failure,
    Given,
    QueuedJob,
    Retried,
)
from p2pmsg.wire import encoder

HEAD, PUSH, DONE, FAILED, DEAD, DROPPED, GIVEN, SEEN, RETRIED, CLOSED = range(1, 11)
_encode: Final = encoder.encode
_decode: Final = codec.make_decoder(list[Any]).decode


def push_record(job: QueuedJob) -> bytes:
    """Return the record of a job that is accepted."""
    return _encode(
        (PUSH, job.sequence, job.pushed_ns, job.key, job.priority, job.message_id, job.headers,
         job.due_ns, job.payload)
    )  # fmt: skip


def change_record(change: Change, process: Process | None = None) -> bytes:
    """Return the record of what became of a job; `process`: that of the worker it was given to."""
    if isinstance(change, Done):
        return _encode((DONE, change.start, change.stop))
    if isinstance(change, Failed):
        return _encode((FAILED, *_fate(change.job)))
    if isinstance(change, Died):
        dead = change.dead  # complete in itself
        return _encode((DEAD, push_record(dead.job), dead.why, dead.at_ns, *_fate(dead.job)))
    if isinstance(change, Dropped):
        return _encode((DROPPED, change.sequence))
    if isinstance(change, Retried):
        job = change.job
        return _encode((RETRIED, push_record(job), *_fate(job)))
    assert isinstance(change, Given)
    return given_record(change.worker, change.delivery, change.sequences, process or Process())


def given_record(worker: int, delivery: int, sequences: list[int], process: Process) -> bytes:
    """Return the record of jobs with keys that a worker was given."""
    return _encode((GIVEN, worker, delivery, sequences, *process))


def head_record(
    session: int, next_sequence: int, boot: str, is_synced: bool, former_bytes: int = 0
) -> bytes:
    """Return the record with which a segment begins; the fields are those of `JournalState`.

    `former_bytes`: how many were written to the segment before it; 0: it is not known.
    """
    return _encode((HEAD, session, next_sequence, boot, is_synced, former_bytes))


def closed_record() -> bytes:
    """Return the record with which a run ends that was not cut short."""
    return _encode((CLOSED,))


def seen_record(message_id: str, sequence: int, pushed_ns: int) -> bytes:
    """Return the record of a message id whose job is done."""
    return _encode((SEEN, message_id, sequence, pushed_ns))


def _fate(job: QueuedJob) -> tuple[Any, ...]:
    history = [tuple(failure) for failure in job.history]
    return (
        job.sequence, job.deliveries, job.failures, job.first_ns, job.last_ns, job.due_ns,
        job.quarantined, history,
    )  # fmt: skip


class JournalState:
    """What the records say.

    Attributes:
        session: the queue's id; None while no record was applied.
        boot: under which start of the operating system the last run was.
        is_synced: whether each record was on the disk before anything was said of it.
        is_closed: whether the last run ended by `close`.
        has_crashed: whether the operating system crashed, so that the last records may be missing.
        is_short: whether records are missing that an earlier run had written.
        is_copy: whether it was restored from a copy, so that what came after that is not known.
        missing: how many sequences an earlier run used, or may have used, of which nothing is left.
        next_sequence: the first sequence that was never used.
        open: jobs that are neither done nor dead, by sequence.
        dead: dead letters by sequence.
        holders: who was last given an open job with a key: (worker, delivery), by sequence.
        processes: of the workers in `holders`, as far as known, by worker.
        seen: message ids, with sequence and time (ns since the epoch).
        deliveries: no delivery number at or beyond it was used, as far as is known.

    """

    def __init__(self) -> None:
        self.session: int | None = None
        self.boot = ""
        self.is_synced = self.is_closed = self.has_crashed = False
        self.is_short = self.is_copy = False
        self.next_sequence = self.missing = 0
        self.open: dict[int, QueuedJob] = {}
        self.dead: dict[int, DeadJob] = {}
        self.holders: dict[int, tuple[int, int]] = {}
        self.processes: dict[int, Process] = {}
        self.seen: dict[str, tuple[int, int]] = {}
        self.deliveries = 0
        self._early: dict[int, list[Any]] = {}

    @property
    def is_incomplete(self) -> bool:
        """Whether what was pushed, given out or done last may be missing."""
        return self.has_crashed or self.is_short or self.is_copy

    def apply(self, record: bytes) -> None:
        """Take the next record; `ValueError` where it is none."""
        try:
            fields = _decode(record)
            _APPLY[fields[0]](self, *fields[1:])
            self.is_closed = fields[0] == CLOSED
        except (codec.CodecError, LookupError, TypeError, AssertionError) as error:
            raise ValueError(f"not a record of a queue: {error}") from error

    def jobs(self) -> Iterator[tuple[QueuedJob, int | None]]:
        """Return the open jobs in order, each with who may have it in flight."""
        for sequence in sorted(self.open):
            holder = self.holders.get(sequence)
            yield self.open[sequence], holder[0] if holder is not None else None

    def _head(
        self, session: int, next_sequence: int, boot: str, is_synced: bool, former_bytes: int
    ) -> None:
        self.session, self.boot, self.is_synced = session, boot, is_synced
        self.next_sequence = max(self.next_sequence, next_sequence)

    def _closed(self) -> None:
        """Do nothing: `apply` notes that it was the last record."""

    def _push(self, sequence: int, pushed_ns: int, key: str | None, *rest: Any) -> None:
        if sequence in self.open or sequence in self.dead:
            return
        job = self._job(sequence, pushed_ns, key, *rest)
        self.open[sequence] = job
        early = self._early.pop(sequence, None)
        if early is not None:
            _set_fate(job, *early)

    def _job(
        self, sequence: int, pushed_ns: int, key: str | None, priority: int,
        message_id: str | None, headers: bytes | None, due_ns: int, payload: bytes,
    ) -> QueuedJob:  # fmt: skip
        self.next_sequence = max(self.next_sequence, sequence + 1)
        if message_id is not None:
            self.seen[message_id] = (sequence, pushed_ns)
        return QueuedJob(sequence, payload, pushed_ns, key, priority, message_id, headers, due_ns)

    def _done(self, start: int, stop: int) -> None:
        for sequence in range(start, stop):
            self.open.pop(sequence, None)
            self.holders.pop(sequence, None)
            self._early.pop(sequence, None)

    def _failed(self, sequence: int, *fate: Any) -> None:
        job = self.open.get(sequence)
        if job is None:
            if sequence not in self.dead:
                self._early[sequence] = list(fate)
        elif fate[0] > job.deliveries:
            _set_fate(job, *fate)

    def _dead_letter(self, push: bytes, why: str, at_ns: int, sequence: int, *fate: Any) -> None:
        known = self.open.get(sequence)
        if known is not None and known.deliveries > fate[0]:
            return  # it was retried since
        self._done(sequence, sequence + 1)
        job = self._job(*_decode(push)[1:])
        _set_fate(job, *fate)
        self.dead[sequence] = DeadJob(job, why, at_ns)

    def _dropped(self, sequence: int) -> None:
        self.dead.pop(sequence, None)

    def _given(
        self, worker: int, delivery: int, sequences: list[int], host: str, pid: int, started: int
    ) -> None:
        self.processes[worker] = Process(host, pid, started)
        self.deliveries = max(self.deliveries, delivery + len(sequences))
        for sequence in sequences:
            before = self.holders.get(sequence)
            if before is None or before[1] < delivery:
                self.holders[sequence] = (worker, delivery)

    def _seen(self, message_id: str, sequence: int, pushed_ns: int) -> None:
        before = self.seen.get(message_id)
        if before is None or before[0] < sequence:
            self.seen[message_id] = (sequence, pushed_ns)

    def _retried(self, push: bytes, sequence: int, *fate: Any) -> None:
        known = self.open.get(sequence)
        if known is not None and known.deliveries > fate[0]:
            return
        self.dead.pop(sequence, None)
        job = self._job(*_decode(push)[1:])
        _set_fate(job, *fate)
        self.open[sequence] = job


def _set_fate(
    job: QueuedJob, deliveries: int, failures: int, first_ns: int, last_ns: int, due_ns: int,
    quarantined: bool, history: list[list[Any]],
) -> None:  # fmt: skip
    job.deliveries, job.failures = deliveries, failures
    job.first_ns, job.last_ns, job.due_ns = first_ns, last_ns, due_ns
    job.quarantined = quarantined
    job.history = [Failure(*failure) for failure in history]


_APPLY: Final[dict[int, Any]] = {
    HEAD: JournalState._head,
    PUSH: JournalState._push,
    DONE: JournalState._done,
    FAILED: JournalState._failed,
    DEAD: JournalState._dead_letter,
    DROPPED: JournalState._dropped,
    GIVEN: JournalState._given,
    SEEN: JournalState._seen,
    RETRIED: JournalState._retried,
    CLOSED: JournalState._closed,
}
