"""Dead letters, as users see them."""

from collections.abc import Callable, Sequence
from typing import Any, overload

from p2pmsg import codec
from p2pmsg.checks import check
from p2pmsg.queue.rules import DeadJob, Failure, QueuedJob

_decode = codec.make_decoder().decode


class DeadLetter(codec.Struct, frozen=True):
    """A job that no worker could do.

    Attributes:
        sequence: its number in the queue.
        value, key, priority, message_id, headers: as they were pushed.
        why: `deliveries_max`, or `discarded` where a worker said that none can do it.
        history: the latest failures: when (ns since the epoch), at which worker, why.
        delivery_count: how often it was delivered.
        pushed_ns, first_delivered_ns, last_delivered_ns, dead_ns: when, in ns since the epoch.

    """

    sequence: int
    value: Any
    key: str | None
    priority: int
    message_id: str | None
    headers: dict[str, Any] | None
    why: str
    history: tuple[Failure, ...]
    delivery_count: int
    pushed_ns: int
    first_delivered_ns: int
    last_delivered_ns: int
    dead_ns: int

    @property
    def reason(self) -> str:
        """Why the last delivery failed."""
        return self.history[-1].reason if self.history else ""


def letter_of(dead: DeadJob) -> DeadLetter:
    """Return a dead letter with its value unpacked."""
    job = dead.job
    headers = None if job.headers is None else _decode(job.headers)
    return DeadLetter(
        job.sequence, _decode(job.payload), job.key, job.priority, job.message_id, headers,
        dead.why, tuple(job.history), job.deliveries, job.pushed_ns, job.first_ns, job.last_ns,
        dead.at_ns,
    )  # fmt: skip


def dead_job_of(row: list[Any]) -> DeadJob:
    """Return a dead letter that came over the wire; `ValueError` where it is none."""
    try:
        (sequence, payload, pushed_ns, key, priority, message_id, headers, deliveries, first_ns,
         last_ns, history, why, at_ns) = row  # fmt: skip
        job = QueuedJob(
            sequence, payload, pushed_ns, key, priority, message_id, headers, 0, deliveries, 0,
            first_ns, last_ns, False, [Failure(*failure) for failure in history],
        )  # fmt: skip
    except TypeError as error:
        raise ValueError(f"not a dead letter: {error}") from error
    return DeadJob(job, why, at_ns)


class DeadLetters(Sequence[DeadLetter]):
    """The dead letters at one moment, oldest first; `retry` and `purge` act on the queue itself.

    Args:
        letters: what is listed.
        act: does `retry` and `purge`; a `Pusher` gives both.

    """

    def __init__(
        self, letters: list[DeadLetter], act: Callable[[str, list[int] | None], int]
    ) -> None:
        self._letters = letters
        self._act = act

    @overload
    def __getitem__(self, index: int) -> DeadLetter: ...
    @overload
    def __getitem__(self, index: slice) -> list[DeadLetter]: ...
    def __getitem__(self, index: int | slice) -> DeadLetter | list[DeadLetter]:
        return self._letters[index]

    def __len__(self) -> int:
        return len(self._letters)

    def retry(self, *sequences: int) -> int:
        """Make dead letters jobs again, with all their deliveries before them; returns how many.

        Without `sequences`: all that are dead letters now.
        """
        return self._act("retry", _chosen(sequences))

    def purge(self, *sequences: int) -> int:
        """Delete dead letters; returns how many. Without `sequences`: all that there are now."""
        return self._act("purge", _chosen(sequences))

    def __repr__(self) -> str:
        return f"<DeadLetters {len(self)}>"


def _chosen(sequences: tuple[int, ...]) -> list[int] | None:
    for sequence in sequences:
        ok = type(sequence) is int and 0 <= sequence < 2**63
        check("sequence", sequence, ok, "an int of at least 0")
    return list(sequences) or None
