"""The records of a queue's log, and the state that they give when they are read again.

A record is one msgpack array that begins with its type. Replaying them in order gives the queue's
state. A job that is written again, so that the oldest segment can go, is written as it is then, and
as a whole: a record replaces what earlier ones say, and may be applied twice.
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

RUN, PUSH, DONE, FAILED, DEAD, DROPPED, GIVEN, SEEN, JOB = range(1, 10)
Ranges = list[tuple[int, int]]
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
        return job_record(change.job)
    assert isinstance(change, Given)
    return given_record(change.worker, change.delivery, change.sequences, process or Process())


def given_record(worker: int, delivery: int, sequences: list[int], process: Process) -> bytes:
    """Return the record of jobs with keys that a worker was given."""
    return _encode((GIVEN, worker, delivery, sequences, *process))


def job_record(job: QueuedJob) -> bytes:
    """Return the record of a job that is open, with all that is known of it."""
    return _encode((JOB, push_record(job), *_fate(job)))


def run_record(deliveries: int, skips: list[Ranges]) -> bytes:
    """Return the record of a run; the fields are those of `JournalState`."""
    return _encode((RUN, deliveries, skips))


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
        session: the queue's id; None where there is no log.
        is_incomplete: whether what was pushed, given out or done last may be missing.
        missing: how many sequences an earlier run used, or may have used, of which nothing is left.
        next_sequence: the first sequence that was never used.
        open: jobs that are neither done nor dead, by sequence.
        dead: dead letters by sequence.
        holders: who was last given an open job with a key, by sequence.
        processes: of the workers in `holders`, as far as known, by worker.
        seen: message ids, with sequence and time (ns since the epoch).
        deliveries: no delivery number at or beyond it was used, as far as is known.
        skips: the ranges of both streams that the last run knew to be missing.

    """

    def __init__(self) -> None:
        self.session: int | None = None
        self.is_incomplete = False
        self.next_sequence = self.missing = 0
        self.open: dict[int, QueuedJob] = {}
        self.dead: dict[int, DeadJob] = {}
        self.holders: dict[int, int] = {}
        self.processes: dict[int, Process] = {}
        self.seen: dict[str, tuple[int, int]] = {}
        self.deliveries = 0
        self.skips: list[Ranges] = []

    def apply(self, record: bytes) -> int | None:
        """Take the next record; return the sequence of the job that it has as a whole, or None.

        Raises:
            ValueError: it is no record of a queue.

        """
        try:
            fields = _decode(record)
            found: int | None = _APPLY[fields[0]](self, *fields[1:])
        except (codec.CodecError, LookupError, TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"not a record of a queue: {error}") from error
        return found

    def jobs(self) -> Iterator[tuple[QueuedJob, int | None]]:
        """Return the open jobs in order, each with who may have it in flight."""
        for sequence in sorted(self.open):
            yield self.open[sequence], self.holders.get(sequence)

    def _run(self, deliveries: int, skips: list[list[list[int]]]) -> None:
        self.deliveries = max(self.deliveries, deliveries)
        self.skips = [[(start, stop) for start, stop in ranges] for ranges in skips]

    def _push(self, sequence: int, pushed_ns: int, key: str | None, *rest: Any) -> int:
        self.open[sequence] = self._job(sequence, pushed_ns, key, *rest)
        return sequence

    def _job(
        self, sequence: int, pushed_ns: int, key: str | None, priority: int,
        message_id: str | None, headers: bytes | None, due_ns: int, payload: bytes,
    ) -> QueuedJob:  # fmt: skip
        self.next_sequence = max(self.next_sequence, sequence + 1)
        if message_id is not None:
            self._seen(message_id, sequence, pushed_ns)
        return QueuedJob(sequence, payload, pushed_ns, key, priority, message_id, headers, due_ns)

    def _done(self, start: int, stop: int) -> None:
        for sequence in range(start, stop):
            for known in (self.open, self.dead, self.holders):
                known.pop(sequence, None)

    def _failed(self, sequence: int, *fate: Any) -> None:
        if sequence in self.open:
            _set_fate(self.open[sequence], *fate)

    def _whole(self, push: bytes, *fate: Any) -> QueuedJob:
        job = self._job(*_decode(push)[1:])
        _set_fate(job, *fate)
        return job

    def _dead_letter(self, push: bytes, why: str, at_ns: int, sequence: int, *fate: Any) -> int:
        self._done(sequence, sequence + 1)
        self.dead[sequence] = DeadJob(self._whole(push, *fate), why, at_ns)
        return sequence

    def _dropped(self, sequence: int) -> None:
        self.dead.pop(sequence, None)

    def _given(
        self, worker: int, delivery: int, sequences: list[int], host: str, pid: int, started: int
    ) -> None:
        self.processes[worker] = Process(host, pid, started)
        self.deliveries = max(self.deliveries, delivery + len(sequences))
        self.holders.update(dict.fromkeys(sequences, worker))

    def _seen(self, message_id: str, sequence: int, pushed_ns: int) -> int:
        known = self.seen.get(message_id)
        if known is None or known[0] < sequence:
            self.seen[message_id] = (sequence, pushed_ns)
        return sequence

    def _open_job(self, push: bytes, sequence: int, *fate: Any) -> int:
        self.dead.pop(sequence, None)
        self.open[sequence] = self._whole(push, *fate)
        return sequence


def _set_fate(
    job: QueuedJob, deliveries: int, failures: int, first_ns: int, last_ns: int, due_ns: int,
    quarantined: bool, history: list[list[Any]],
) -> None:  # fmt: skip
    job.deliveries, job.failures = deliveries, failures
    job.first_ns, job.last_ns, job.due_ns = first_ns, last_ns, due_ns
    job.quarantined = quarantined
    job.history = [Failure(*failure) for failure in history]


_APPLY: Final[dict[int, Any]] = {
    RUN: JournalState._run,
    PUSH: JournalState._push,
    DONE: JournalState._done,
    FAILED: JournalState._failed,
    DEAD: JournalState._dead_letter,
    DROPPED: JournalState._dropped,
    GIVEN: JournalState._given,
    SEEN: JournalState._seen,
    JOB: JournalState._open_job,
}
