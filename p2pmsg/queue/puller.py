"""The threaded puller."""

import math
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from p2pmsg.checks import at_least, check, time_to_wait
from p2pmsg.errors import ClosedError
from p2pmsg.message import T_co
from p2pmsg.queue.driver import Driver
from p2pmsg.queue.job import Job
from p2pmsg.queue.pipeline.config import refuse_queue_options
from p2pmsg.queue.pipeline.puller import PULLER_OPTIONS, PipelinePuller
from p2pmsg.queue.puller_base import PullerBase
from p2pmsg.queue.running import RunsJobs
from p2pmsg.sync.lifecycle import (
    ClosesAtOnce,
    close_at_exit,
    close_in_children,
    is_inherited,
    was_closed,
)

_get_ident = threading.get_ident


class Puller(RunsJobs[T_co], PullerBase[T_co], ClosesAtOnce):
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
        prefetch: how many jobs it may have in flight at each pusher. Default None: 16, or as many
            as it does within 20 ms.
        name: who works, for people. Default: host and process id.
        config: all settings; the arguments above go before it.
        type: of the jobs' values: a dataclass, a msgspec Struct, a pydantic model, a TypedDict or
            anything else that values can be decoded into. A job whose value does not fit is not
            handed out: it becomes a dead letter at once, with what is wrong and where, and counts
            in `stats().invalid`. Default None: values come as they are.
        on_invalid: what is done besides: `skip` (default) logs a warning and goes on with the next
            job; `raise` raises `InvalidValueError` where the job would have come, and the next call
            goes on; a callable gets that exception.
        mode: `"queue"` (default), or `"pipeline"` for a `p2pmsg.queue.PipelinePuller` (which is
            what type checkers know it by), which takes `endpoints`, `name`, `type`, `on_invalid`
            and `security` only, and whose jobs count as done when the next one is asked for.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; the pushers' keys are pinned by `?key=` or in the file of known
            peers. Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    if not TYPE_CHECKING:  # for type checkers, the signature is that of __init__

        def __new__(cls, *arguments: Any, mode: str = "queue", **options: Any) -> Any:
            """Make a puller of the mode; a pipeline's is of a class of its own."""
            check("mode", mode, mode in ("queue", "pipeline"), 'one of "queue", "pipeline"')
            if mode == "pipeline":
                refuse_queue_options(PULLER_OPTIONS, options)
                return PipelinePuller(*arguments, **options)
            return super().__new__(cls)

        __new__.__wrapped__ = PullerBase.__init__  # for `help`, too

    # --------------------------------------------------------------------------------- public

    def __iter__(self) -> Iterator[Job[T_co]]:
        return self

    def __next__(self) -> Job[T_co]:
        # The fast path, for a job that is there already, is written out: see Publisher.publish. One
        # with a key, or a history, takes `receive`, which looks at the lease.
        lock = self._lock
        me = lock.mark
        if not me._is_owned():
            me = _get_ident()
        if lock.owner is None:
            lock.owner = me
            core, job = self._core, None
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
                    self._keys.raise_refused()
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(f"no job came within {timeout} s")
                    wait_ms = self._lock.run(self._wait_ms)
                    self._driver.wait(min(wait_ms, left * 1000))
                elif not self._fits(taken[0]):
                    taken.clear()
            return taken[0]
        except BaseException:
            if taken:  # Ctrl-C: it does not get to the caller
                self._lock.run(taken[0]._origin.core.requeue, taken[0])
            raise

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
            while self._lock.run(self._is_unsettled) and time.monotonic() < deadline:
                self._driver.wait(20)
        finally:
            self._unusable = "it is closed"
            self._driver.stop()
            self._lock.run(self._close_all)

    # -------------------------------------------------------------------------------- private

    def _begin(self) -> None:
        self._driver = Driver(
            "p2pmsg-puller", partial(self._lock.run, self._background),
            [client.fd for client in self._clients],
        )  # fmt: skip
        close_in_children(self)
        self._driver.start()
        close_at_exit(self, Puller.close)
