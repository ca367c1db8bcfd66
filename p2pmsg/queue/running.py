"""Calls a function for each job, until it is to stop: what is under `Puller.run`."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from p2pmsg.checks import check, check_result, check_runs, whole
from p2pmsg.driver.lifecycle import is_inherited
from p2pmsg.errors import ClosedError, SecurityError
from p2pmsg.queue.job import Job
from transports.own_log import own_log as _log

LOOK_S: Final = 0.1
"""While no job comes, how often is looked whether to stop."""
WORKERS_MAX: Final = 10_000
"""How many threads or tasks may work; all of them are made at the start."""

_USE_ASYNC: Final = "use p2pmsg.aio.Puller or p2pmsg.App"

OnError = Literal["retry", "discard", "stop"] | Callable[[Job, Exception], Any]
"""What becomes of a job whose handler raised; see `Puller.run`."""


class JobRun:
    """One call of `run`: what threads and tasks have in common.

    Args:
        handler: called with each.
        on_error: what becomes of those that fail.
        count: how many at most; None: no limit.

    """

    def __init__(self, handler: Callable[[Job], Any], on_error: OnError, count: int | None) -> None:
        self._handler = handler
        self._on_error = on_error
        self._left = count
        self._lock = threading.Lock()
        self._is_stopping = False
        self._error: BaseException | None = None

    def stop(self) -> None:
        """Take no further jobs; those in hand are finished."""
        self._is_stopping = True

    def _end_with(self, error: BaseException) -> None:
        self.stop()
        if self._error is None:
            self._error = error

    def _may_take(self) -> bool:
        with self._lock:
            if self._left is None:
                return True
            if not self._left:
                return False  # another one may give its turn back, and takes it again itself
            self._left -= 1
            return True

    def _give_back(self) -> None:
        with self._lock:
            if self._left is not None:
                self._left += 1

    @contextmanager
    def _rejecting(self, job: Job, error: Exception) -> Iterator[None]:
        """Log a failure; at the end reject a job that nobody has acknowledged."""
        number, deliveries = job.sequence, job.delivery_count
        _log.error("job %d failed at delivery %d", number, deliveries, exc_info=error)
        try:
            yield
        finally:
            if job.state == "held":
                job.reject(reason_of(error))

    def _decide(self, job: Job, error: Exception) -> Any:
        """Do what `on_error` says; return what its callable returned."""
        if callable(self._on_error):
            return self._on_error(job, error)
        if self._on_error == "discard":
            job.discard(reason_of(error))
        elif self._on_error == "stop":
            raise error
        return None


class ThreadRun(JobRun):
    """One call of `run` in threads.

    Attributes:
        threads: those that take jobs.
        ended: set when the call has ended.

    """

    def __init__(
        self,
        receive: Callable[[float], Job],
        handler: Callable[[Job], Any],
        on_error: OnError,
        count: int | None,
    ) -> None:
        super().__init__(handler, on_error, count)
        self._receive = receive
        self.threads: list[threading.Thread] = []
        self.ended = threading.Event()

    def run(self, threads: int) -> None:
        """Work until it is to stop; raise what ended it."""
        if threads == 1:
            self.threads = [threading.current_thread()]
            self._work()
        else:
            self._work_in(threads)
        if self._error is not None:
            raise self._error

    def _work_in(self, count: int) -> None:
        names = (f"p2pmsg-run-{number}" for number in range(count))
        self.threads = [
            threading.Thread(target=self._work, name=name, daemon=True) for name in names
        ]
        for thread in self.threads:
            thread.start()
        try:
            for thread in self.threads:
                while thread.is_alive():
                    thread.join(LOOK_S)  # signals are handled in between
        except BaseException:  # Ctrl-C once more: the jobs in hand are not waited for
            self.stop()
            raise

    def _work(self) -> None:
        try:
            while not self._is_stopping and self._may_take():
                try:
                    job = self._receive(LOOK_S)
                except (TimeoutError, SecurityError):  # that is logged, and tried again
                    self._give_back()
                    continue
                self._do(job)
        except ClosedError as error:
            self.stop()
            if is_inherited(error):
                self._end_with(error)
        except BaseException as error:
            self._end_with(error)

    def _do(self, job: Job) -> None:
        try:
            result = self._handler(job)
            if result is not None:
                check_result("the handler", result, _USE_ASYNC)
        except Exception as error:
            with self._rejecting(job, error):
                check_result("on_error", self._decide(job, error), _USE_ASYNC)
        except BaseException as error:
            job.reject(reason_of(error))
            raise
        else:
            acknowledge(job)


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
