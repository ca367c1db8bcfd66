"""What `Puller.run` decides: which jobs are taken, what becomes of those that fail, when to end."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from p2pmsg.checks import check, check_runs, whole
from p2pmsg.queue.job import Job
from transports.own_log import own_log as _log

LOOK_S: Final = 0.1
"""While no job comes, how often is looked whether to stop."""
WORKERS_MAX: Final = 10_000
"""How many threads or tasks may work; all of them are made at the start."""

OnError = Literal["retry", "discard", "stop"] | Callable[[Job, Exception], Any]
"""What becomes of a job whose handler raised; see `Puller.run`."""


class JobRun:
    """One call of `run`; each of its workers takes a job when `may_take` says so.

    Args:
        handler: called with each.
        on_error: what becomes of those that fail.
        count: how many at most; None: no limit.

    Attributes:
        handler: as given.
        workers: the threads or tasks that take jobs.
        error: what ended it; None: nothing that is to be raised.

    """

    def __init__(self, handler: Callable[[Job], Any], on_error: OnError, count: int | None) -> None:
        self.handler = handler
        self.workers: set[Any] = set()
        self.error: BaseException | None = None
        self._on_error = on_error
        self._left = count
        self._lock = threading.Lock()
        self._is_stopping = False
        self._has_ended = False

    def stop(self) -> None:
        """Take no further jobs; those in hand are finished."""
        self._is_stopping = True

    def end_with(self, error: BaseException) -> None:
        """Do as `stop`, and have it raised at the end, unless something is already."""
        self.stop()
        if self.error is None:
            self.error = error

    def end(self) -> None:
        """Note that it has ended."""
        self._has_ended = True

    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._has_ended

    def may_take(self) -> bool:
        """Whether a worker is to take another job."""
        if self._is_stopping:
            return False
        with self._lock:
            if self._left is None:
                return True
            if not self._left:
                return False  # another one may give its turn back, and takes it again itself
            self._left -= 1
            return True

    def give_back(self) -> None:
        """Note that there was no job after all."""
        with self._lock:
            if self._left is not None:
                self._left += 1

    @contextmanager
    def rejecting(self, job: Job, error: Exception) -> Iterator[None]:
        """Log a failure; at the end reject a job that nobody has acknowledged."""
        number, deliveries = job.sequence, job.delivery_count
        _log.error("job %d failed at delivery %d", number, deliveries, exc_info=error)
        try:
            yield
        finally:
            if job.state == "held":
                job.reject(reason_of(error))

    def decide(self, job: Job, error: Exception) -> Any:
        """Do what `on_error` says; return what its callable returned."""
        if callable(self._on_error):
            return self._on_error(job, error)
        if self._on_error == "discard":
            job.discard(reason_of(error))
        elif self._on_error == "stop":
            raise error
        return None

    def work_in_threads(self, work: Callable[[], object], count: int) -> None:
        """Call `work` in so many threads, or in the caller's where it is one, until all return."""
        if count == 1:
            work()
            return
        names = (f"p2pmsg-run-{number}" for number in range(count))
        threads = [threading.Thread(target=work, name=name, daemon=True) for name in names]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(LOOK_S)  # signals are handled in between
        except BaseException:  # Ctrl-C once more: the jobs in hand are not waited for
            self.stop()
            raise


def check_run(handler: Any, on_error: OnError, name: str, workers: int, count: Any) -> None:
    """Raise `ConfigError` where an argument of `run` is out of its limits."""
    check("handler", handler, callable(handler), "a function that takes a job")
    check_runs("handler", handler)
    check_runs("on_error", on_error)
    whole(name, workers, 1, WORKERS_MAX)
    if count is not None:
        whole("count", count, 1)
    ok = callable(on_error) or on_error in ("retry", "discard", "stop")
    check("on_error", on_error, ok, '"retry", "discard", "stop" or a callable')


def acknowledge(job: Job) -> None:
    """Acknowledge a job that its handler has done, unless it did that; warn where it is late."""
    if job.state in ("held", "gone") and not job.ack():
        seconds = (time.monotonic_ns() - job._begun_ns) / 1e9
        _log.warning(
            "job %d is done, but is this worker's no more: it took %.1f s", job.sequence, seconds
        )


def reason_of(error: BaseException) -> str:
    """Return what a failed job's history says of an exception."""
    return f"{type(error).__name__}: {error}"
