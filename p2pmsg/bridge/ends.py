"""What a bridge reads from and writes to, and the ends that are peers of p2pmsg."""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from p2pmsg import Publisher, Puller, Pusher, Subscriber
from p2pmsg.errors import LogFailedError, MessageError, SecurityError, SendQueueFullError
from p2pmsg.queue import Job
from p2pmsg.toolkit import Trouble

SLICE_S: Final = 0.1
"""So long a wait lasts until it is looked whether the bridge is to stop."""
_BATCH_MESSAGES: Final = 2048
_JOBS: Final = 64
_ACCEPTED: Final = re.compile(r"([0-9]+) of [0-9]+ values were accepted")
IsOver = Callable[[], bool]


@dataclass(slots=True)
class Batch:
    """Messages of one topic, on their way."""

    topic: str
    values: list[Any]
    jobs: list[Job] = field(default_factory=list)
    """Where they come from a queue: the job of each value."""


@dataclass(slots=True)
class Written:
    """What became of a batch.

    Attributes:
        done: how many of its first values were dealt with; fewer than all: the bridge is to stop.
        refused: by index, why a value can never be sent.
        dropped: how many did not get to every peer, since a queue was full.
        without_subscriber: how many were for nobody, since nobody had subscribed.
        answers: where the batch is a request: its answer; none: `refused` says why.

    """

    done: int = 0
    refused: dict[int, str] = field(default_factory=dict)
    dropped: int = 0
    without_subscriber: int = 0
    answers: list[Any] = field(default_factory=list)


class Source(ABC):
    """Where messages come from."""

    @abstractmethod
    def read(self, timeout: float) -> list[Batch]:
        """Return what has come, waiting for so many seconds at most."""

    def acknowledge(self, batch: Batch, written: Written) -> None:  # noqa: B027
        """Take note of what became of a batch; a plain sender knows of no answer."""

    def stats(self) -> Any:
        """Return the counters of a peer of ours; None: it is none."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close."""


class Target(ABC):
    """Where messages go."""

    @abstractmethod
    def write(self, batch: Batch, is_over: IsOver) -> Written:
        """Pass on a batch; it waits for space until `is_over`."""

    def stats(self) -> Any:
        """As of `Source`."""
        return None

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Close within so many seconds."""


class _Ours:
    """A peer of ours, closed with this."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer

    def stats(self) -> Any:
        """Return its counters."""
        return self._peer.stats()

    def close(self, *timeout: float) -> None:
        """Close it."""
        self._peer.close(*timeout)


class StreamSource(Source):
    """A subscriber.

    Args:
        subscriber: closed with this.
        commit_interval: with a cursor: how often to commit, in seconds; None: there is none.

    """

    def __init__(self, subscriber: Subscriber, commit_interval: float | None) -> None:
        self._subscriber = subscriber
        self._interval = commit_interval
        self._commit_s: float | None = None

    def read(self, timeout: float) -> list[Batch]:
        """See `Source`."""
        if self._commit_s is not None and time.monotonic() >= self._commit_s:
            self._commit()
        try:
            taken = self._subscriber.receive_many(_BATCH_MESSAGES, timeout)
        except (TimeoutError, SecurityError):  # a refusal was logged; it is tried again
            return []
        return [Batch(taken.topic, list(taken.values))]

    def acknowledge(self, batch: Batch, written: Written) -> None:
        """See `Source`."""
        if self._interval is None:
            return
        if written.done < len(batch.values):
            self._interval = self._commit_s = None  # what is left comes again
        elif self._commit_s is None:
            self._commit_s = time.monotonic() + self._interval

    def stats(self) -> Any:
        """See `Source`."""
        return self._subscriber.stats()

    def close(self) -> None:
        """See `Source`."""
        try:
            if self._commit_s is not None:
                self._commit()
        finally:
            self._subscriber.close()

    def _commit(self) -> None:
        self._commit_s = None
        self._subscriber.commit()


class QueueSource(_Ours, Source):
    """A puller, closed with this."""

    _peer: Puller

    def read(self, timeout: float) -> list[Batch]:
        """See `Source`."""
        jobs: list[Job] = []
        try:
            jobs.append(self._peer.receive(timeout))
            while len(jobs) < _JOBS:
                jobs.append(self._peer.receive(0))
        except (TimeoutError, SecurityError):  # a refusal was logged; it is tried again
            pass
        if not jobs:
            return []
        return [Batch("", [job.value for job in jobs], jobs)]

    def acknowledge(self, batch: Batch, written: Written) -> None:
        """See `Source`."""
        for index, job in enumerate(batch.jobs):
            if index in written.refused:
                job.discard(written.refused[index])
            elif index < written.done:
                job.ack()
            else:
                job.reject("the bridge was closed", 0.0)


class StreamTarget(_Ours, Target):
    """A publisher, closed with this."""

    def __init__(self, publisher: Publisher) -> None:
        super().__init__(publisher)
        self._trouble = Trouble(
            publisher.name, "what a plain PUB sends meanwhile is dropped at its high-water mark"
        )

    def write(self, batch: Batch, is_over: IsOver) -> Written:
        """See `Target`."""
        written, values = Written(), batch.values
        while written.done < len(values):
            at = written.done
            try:
                self._peer.publish_many(batch.topic, values[at:] if at else values)
                written.done = len(values)
                self._trouble.over()
            except MessageError as error:
                written.done += _accepted(error)
                written.refused[written.done] = str(error)
                written.done += 1
            except (LogFailedError, SendQueueFullError) as error:
                written.done += _accepted(error)
                if _gives_up(self._trouble, error, is_over):
                    break
        return written


class QueueTarget(_Ours, Target):
    """A pusher, closed with this.

    Args:
        pusher: takes the jobs.
        with_topic: whether each job gets the header `topic`.
        has_log: whether jobs that are not done outlive the pusher, so that `close` need not wait.

    """

    def __init__(self, pusher: Pusher, *, with_topic: bool, has_log: bool) -> None:
        super().__init__(pusher)
        self._has_log = has_log
        self._with_topic = with_topic
        self._trouble = Trouble(pusher.name, "jobs stay with those who push")

    def write(self, batch: Batch, is_over: IsOver) -> Written:
        """See `Target`."""
        written, values = Written(), batch.values
        headers = {"topic": batch.topic} if self._with_topic else None
        while written.done < len(values):
            try:
                self._peer.push(values[written.done], headers=headers, timeout=SLICE_S)
                written.done += 1
            except MessageError as error:
                written.refused[written.done] = str(error)
                written.done += 1
            except TimeoutError:  # as many as may be are in flight
                if is_over():
                    break
            except LogFailedError as error:
                if _gives_up(self._trouble, error, is_over):
                    break
        if written.done == len(values):
            self._trouble.over()
        return written

    def close(self, *timeout: float) -> None:
        """See `Target`."""
        super().close(*((0.0,) if self._has_log else timeout))


def _gives_up(trouble: Trouble, error: Exception, is_over: IsOver) -> bool:
    """Note why a target takes nothing, and wait; return whether the bridge is to stop instead."""
    trouble.note(str(error))
    if is_over():
        return True
    time.sleep(SLICE_S)
    return False


def _accepted(error: BaseException) -> int:
    """Return how many values `publish_many` accepted before it raised this."""
    for note in reversed(getattr(error, "__notes__", ())):
        if match := _ACCEPTED.fullmatch(note):
            return int(match[1])
    return 0
