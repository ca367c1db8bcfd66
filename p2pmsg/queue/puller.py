"""The threaded puller."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from p2pmsg.checks import at_least, check, is_async, time_to_wait
from p2pmsg.driver.lifecycle import (
    ClosesAtOnce,
    close_at_exit,
    close_in_children,
    is_inherited,
    was_closed,
)
from p2pmsg.driver.stop_signals import StopSignals
from p2pmsg.errors import ClosedError
from p2pmsg.message import T_co
from p2pmsg.queue.driver import Driver
from p2pmsg.queue.each_taker import EachTaker
from p2pmsg.queue.job import Job
from p2pmsg.queue.puller_base import PullerBase
from p2pmsg.queue.running import OnError, ThreadRun, check_run
from p2pmsg.subscriber.typed import Misfit

_NO_ASYNC: Final = "no async function; those are for p2pmsg.aio.Puller and p2pmsg.App"
_get_ident = threading.get_ident


class Puller(PullerBase[T_co], ClosesAtOnce):
    """Takes jobs from pushers, one after the other.

    ::

        puller.run(work)                # calls work(job) for each; what fails is tried again

    or, in a loop of one's own::

        for job in puller:
            try:
                with job:               # acknowledged at the end, rejected if it raises
                    work(job.value)
            except Exception:           # it is tried again; without this the loop would end here
                logging.exception("job %d failed", job.sequence)

    It connects; pushers bind, and come and go as they like. A background thread keeps what it has
    in flight alive, for as long as the process lives. Several threads may take jobs from it.

    Args:
        endpoints: one, or several, of pushers.
        acknowledge: as the pushers have it. `"each"` (default): each job is acknowledged or
            rejected. `"batch"`: a job counts as done when the next one is asked for, or at
            `commit()`, cannot be rejected, and may be done twice after a death; one thread at a
            time may take jobs.
        prefetch: how many jobs it may have in flight at each pusher, those at work included; 1 for
            the strictest order. What it has not begun is given back when another worker is idle.
            Default None: 16, or as many as it does within 20 ms, up to 2048.
        frame_bytes_max: the largest frame, in bytes. The pusher gives jobs that need a larger one
            to other pullers; where none takes them, they become dead letters. Default 16 MiB.
        name: who works, for people. Default: host and process id.
        type: of the jobs' values: a dataclass, a msgspec Struct, a pydantic model, a TypedDict or
            anything else that values can be decoded into. A job whose value does not fit is not
            handed out: it becomes a dead letter at once, with what is wrong and where, and counts
            in `stats().invalid`. Default None: values come as they are.
        on_invalid: what is done besides: `skip` (default) logs a warning and goes on with the next
            job; `raise` raises `InvalidValueError` where the job would have come, and the next call
            goes on; a callable gets that exception. By the batch the default is `raise`, since such
            a job counts as done, and nobody keeps it.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; the pushers' keys are pinned by `?key=` or in the file of known
            peers. Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    _run: "ThreadRun | None" = None

    # --------------------------------------------------------------------------------- public

    def __iter__(self) -> Iterator[Job[T_co]]:
        return self

    def __next__(self) -> Job[T_co]:
        batch = self._batch
        at = batch.at
        if at < batch.stop:  # by the batch
            taken = batch.jobs[at]
            batch.done = at
            batch.at = at + 1
            return taken
        # The fast path, for a job that is there already, is written out: see Publisher.publish. One
        # with a key, or a history, takes `receive`, which looks at the lease.
        lock = self._lock
        me = lock.mark
        if not me._is_owned():
            me = _get_ident()
        if lock.owner is None and self._each is not None:
            lock.owner = me
            core, job = self._each.core, None
            try:
                ready = core.ready
                if ready and ready[0]._detail is None:
                    job = ready[0]
                    core.open[job.delivery] = job
                    job._begun_ns = core.now_ns
                    ready.popleft()  # the only call: Ctrl-C comes after it
                    lock.owner = None
                    return job
            except BaseException:
                if job is not None:
                    core.requeue(job)
                lock.owner = None
                raise
            lock.owner = None
        try:
            return self.receive()
        except ClosedError as error:
            if is_inherited(error):
                raise
            raise StopIteration from None

    def receive(self, timeout: float | None = None) -> Job[T_co]:
        """Return the next job.

        Args:
            timeout: how long to wait, in seconds. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            AuthenticationError: a pusher refused the connection, or does not hold the pinned key;
                once for each time that it is tried. It goes on.
            AccessDeniedError: a pusher gives us no right to `pull`, or an access file here gives it
                none to `push`; once, and every 5 s while it stays so. It goes on.
            InvalidValueError: the next one does not fit `type`, with `on_invalid="raise"`.
            ClosedError: the puller is closed.

        """
        if timeout is not None:
            at_least("timeout", timeout, 0)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        taken: list[Job[T_co]] = []
        try:
            while not taken:
                self._lock.run(self._take, taken)
                if not taken:
                    self._taker.keys.raise_refused()
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"no job came within {timeout} s")
                    wait_ms = self._lock.run(self._taker.wait_ms)
                    self._driver.wait(min(wait_ms, left * 1000))
                elif isinstance(taken[0].value, Misfit):
                    self._report_misfit(taken.pop())
            return taken[0]
        except BaseException:
            if taken:  # Ctrl-C: it does not get to the caller
                self._lock.run(self._taker.requeue, taken[0])
            raise

    def run(
        self,
        handler: Callable[[Job[T_co]], Any],
        *,
        on_error: OnError = "retry",
        threads: int = 1,
        count: int | None = None,
        signals: bool = True,
    ) -> None:
        """Call `handler(job)` for each job; a failing one does not end it.

        ::

            def work(job):
                resize(job.value)

            with p2pmsg.Puller("tcp://127.0.0.1:5557") as puller:
                puller.run(work)

        A job is acknowledged when its handler returns, unless the handler did that itself. It
        ends when `close` is called, and at SIGTERM or Ctrl-C: it takes no further job, finishes
        those in hand, and returns. A second signal does what it did before, so Ctrl-C raises
        KeyboardInterrupt then, and the job is rejected. A pusher that refuses the connection by its
        key does not end it: that is logged, and tried again.

        Args:
            handler: takes a `Job`; what it returns is ignored. No `async def`: those are for
                `p2pmsg.aio.Puller` and `p2pmsg.App`; and no generator. One that a decorator hides
                fails with `TypeError`.
            on_error: what becomes of a job whose handler raised; each failure is logged. `retry`
                (default): it is rejected, so that the pusher has it tried again, by its own rules.
                `discard`: it becomes a dead letter at once. `stop`: it is rejected, `run` finishes
                the other jobs in hand, and raises the exception. A callable gets the job and the
                exception, and may `discard` the job, or `reject` it with a delay; if it does
                neither the job is rejected, and if it raises, that ends `run`, too.
            threads: how many jobs are worked on at once, each in a thread of its own. Default 1:
                in the caller's thread; at most 10,000. A puller has at most `prefetch` jobs.
            count: end after so many jobs, failed ones included. Default: never.
            signals: whether SIGTERM and Ctrl-C end it as said above. Default True; in a thread
                other than the main one they do not.

        Raises:
            ConfigError: an argument is out of its limits.
            ClosedError: the puller is closed, or another call of `run` takes its jobs.

        """
        self._check_each()
        check_run(handler, on_error, "threads", threads, count)
        for name, function in (("handler", handler), ("on_error", on_error)):
            check(name, function, not is_async(function), _NO_ASYNC)
        if self._run is not None:
            raise ClosedError("the puller", "another call of run() takes its jobs")
        self._run = run = ThreadRun(self.receive, handler, on_error, count)
        try:
            if signals:
                with StopSignals(run.stop):
                    run.run(threads)
            else:
                run.run(threads)
        finally:
            self._run = None
            run.ended.set()

    def close(self, timeout: float = 1.0) -> None:
        """Give back what was not begun, reject what was, and close.

        Args:
            timeout: how long to wait, in seconds, until the pushers have confirmed what was
                acknowledged. Default 1. As long it waits before that for the jobs that `run` has
                in hand, where that is called in another thread.

        """
        timeout = time_to_wait("timeout", timeout)
        if not self._closed:
            self._lock.refuse_inside()
            self._end_run(timeout)
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        try:
            deadline = time.monotonic() + timeout
            while self._lock.run(self._taker.is_unconfirmed) and time.monotonic() < deadline:
                self._driver.wait(20)
        finally:
            self._unusable = "it is closed"
            self._driver.stop()
            self._lock.run_whole(self._taker.close)

    # -------------------------------------------------------------------------------- private

    def _begin(self) -> None:
        self._driver = Driver("p2pmsg-puller", self._turn, [])
        self._watches.begin(self._driver)
        self._each = self._taker if isinstance(self._taker, EachTaker) else None
        close_in_children(self)
        self._driver.start()
        close_at_exit(self, Puller.close)

    def _turn(self) -> float:
        return self._lock.run(self._background)

    def _on_acknowledged(self) -> None:
        each = self._each
        if each is not None and each.is_report_due and self._unusable is None:
            self._lock.run(each.commit)

    def _end_run(self, timeout: float) -> None:
        """Stop `run`, and wait until the jobs in hand are finished; not where it is called there.

        Args:
            timeout: how long to wait at most, in seconds.

        """
        run = self._run
        if run is not None:
            run.stop()
            if threading.current_thread() not in run.threads:
                run.ended.wait(timeout)
