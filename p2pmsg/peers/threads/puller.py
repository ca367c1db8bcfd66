# Made by `python -m tests.faces` from p2pmsg/peers/loop/puller.py: change that one.
"""The puller, for threads."""

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Self

from p2pmsg.checks import check, check_result, is_async, time_to_wait
from p2pmsg.driver.faces import ThreadFace
from p2pmsg.driver.lifecycle import is_inherited
from p2pmsg.driver.stop_signals import StopSignals
from p2pmsg.errors import ClosedError, ReentrantCallError, SecurityError
from p2pmsg.message import T_co
from p2pmsg.peers.pulling import PullerBase
from p2pmsg.queue.job import Job
from p2pmsg.queue.running import LOOK_S, JobRun, OnError, acknowledge, check_run, reason_of
from recovery.checks import to_ns


class Puller(PullerBase[T_co], ThreadFace):
    """Takes jobs from pushers, one after the other.

    ::

        with p2pmsg.Puller("tcp://127.0.0.1:5557") as puller:
            puller.run(work)          # calls work(job) for each; what fails is tried again

    or, in a loop of one's own::

        for job in puller:
            try:
                with job:             # acknowledged at the end, rejected if it raises
                    work(job.value)
            except Exception:               # it is tried again; without this the loop would end
                logging.exception("job %d failed", job.sequence)

    It connects; pushers bind, and come and go as they like. What it has in flight is kept alive by
    its background thread for as long as the process lives; in an event loop by that loop, so that
    one that is held up for `ack_timeout` loses its jobs to other workers. Several threads, or
    tasks, may take jobs from it. A job may be acknowledged in any thread; all else of a puller in
    an event loop is for that loop.

    A task that is cancelled while it waits for a job has taken none. One that is cancelled inside
    of a job's block rejects the job, as Ctrl-C does. A job that a call of a thread was about to
    return when Ctrl-C came is returned by the next one.

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

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Job[T_co]:
        try:
            return self._take_now() or self.receive()
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
            RuntimeError: it was made in another event loop.

        """
        verb = self._peer.receive(timeout)
        return self._driver.run(verb)  # type: ignore[no-any-return]

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
        those in hand, and returns. A second signal does what it did before, so that Ctrl-C ends it,
        and the job is rejected; so does the cancellation of a task. A pusher that refuses the
        connection by its key does not end it: that is logged, and tried again.

        Args:
            handler: takes a `Job`; what it returns is ignored. It is no generator; one that a
                decorator hides fails with `TypeError`. In an event loop it is a coroutine function,
                or one that returns at once; with threads no coroutine function.
            on_error: what becomes of a job whose handler raised; each failure is logged. `retry`
                (default): it is rejected, so that the pusher has it tried again, by its own rules.
                `discard`: it becomes a dead letter at once. `stop`: it is rejected, `run` finishes
                the other jobs in hand, and raises the exception. A callable gets the job and the
                exception, and may `discard` the job, or `reject` it with a delay; if it does
                neither the job is rejected, and if it raises, that ends `run`, too. In an event
                loop it may be a coroutine function.
            threads: how many jobs are worked on at once. Default 1: by the caller itself; at most
                10,000, each by one of its own. A puller has at most `prefetch` jobs.
            count: end after so many jobs, failed ones included. Default: never.
            signals: whether SIGTERM and Ctrl-C end it as said above. Default True; in a thread
                other than the main one they do not.

        Raises:
            ConfigError: an argument is out of its limits.
            ClosedError: the puller is closed, or another call of `run` takes its jobs.
            RuntimeError: it was made in another event loop.

        """
        self._check_each()
        check_run(handler, on_error, "threads", threads, count)
        for name, function in (("handler", handler), ("on_error", on_error)):
            check(name, function, not is_async(function), _NO_ASYNC)
        run = self._begin_run(handler, on_error, count)
        try:
            with StopSignals(run.stop) if signals else nullcontext():
                run.work_in_threads(partial(self._work, run), threads)
        finally:
            self._end_run(run)
        if run.error is not None:
            raise run.error

    def close(self, timeout: float = 1.0) -> None:
        """Give back what was not begun, reject what was, and close; who waits gets `ClosedError`.

        Args:
            timeout: how long to wait, in seconds, until the pushers have confirmed what was
                acknowledged. Default 1. As long it waits before that for the jobs that `run` has
                in hand, where it is not called within that.

        """
        time_ns = to_ns(time_to_wait("timeout", timeout))
        run = None if self._driver.stopping else self._stop_run(_worker())
        self._end(self._peer.close(time_ns, run))

    # -------------------------------------------------------------------------------- private

    def _answered(self) -> None:
        if self._peer.is_report_due:
            with suppress(ReentrantCallError):  # who is inside takes a turn after it
                self._section.run(self._peer.report)

    def _work(self, run: JobRun) -> None:
        """Take jobs, one after the other, until `run` is to stop."""
        run.workers.add(_worker())
        try:
            while run.may_take():
                try:
                    job = self._take_now() or self.receive(LOOK_S)
                except (TimeoutError, SecurityError):  # that is logged, and tried again
                    run.give_back()
                    continue
                self._do(run, job)
        except ClosedError as error:
            run.stop()
            if is_inherited(error):
                run.end_with(error)
        except BaseException as error:
            run.end_with(error)

    def _do(self, run: JobRun, job: Job[T_co]) -> None:
        try:
            result = run.handler(job)
            if result is not None:
                check_result("the handler", result, _HINT, may_be_task=_MAY_BE_TASK)
        except Exception as error:
            with run.rejecting(job, error):
                result = run.decide(job, error)
                check_result("on_error", result, _HINT, may_be_task=_MAY_BE_TASK)
        except BaseException as error:
            job.reject(reason_of(error))
            raise
        else:
            acknowledge(job)


_HINT = "use p2pmsg.aio.Puller or p2pmsg.App"
_MAY_BE_TASK = False
_NO_ASYNC = "no async function; those are for p2pmsg.aio.Puller and p2pmsg.App"


def _worker() -> Any:
    """Return what works on jobs here, or might."""
    return threading.current_thread()
