"""The puller: takes jobs from pushers, acknowledged one by one or by the batch."""

import builtins
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from p2pmsg.checks import at_least, check, checked, shown
from p2pmsg.driver.lifecycle import INHERITED
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.section import Section
from p2pmsg.driver.verbs import Calling, LateError, Verb, Wait
from p2pmsg.errors import ClosedError, InvalidValueError
from p2pmsg.message import T_co
from p2pmsg.peers.settings import check_endpoints, check_name
from p2pmsg.queue.config import FRAME_BYTES_CEILING, FRAME_BYTES_MAX, Acknowledge
from p2pmsg.queue.each_taker import EachTaker
from p2pmsg.queue.job import Job, OnInvalidJob, check_on_invalid, report_invalid
from p2pmsg.queue.pipeline.puller import BatchTaker
from p2pmsg.queue.process_id import worker_name
from p2pmsg.queue.running import JobRun, OnError
from p2pmsg.queue.stats import PullerStats
from p2pmsg.security.use import curve_client
from p2pmsg.subscriber.typed import Misfit, value_type
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security


class PullerPeer(Peer):
    """The verbs of a puller; its taker has the sockets and the engine.

    Args:
        name: as `Peer` has it.
        make: makes the taker.
        on_invalid: what is done about a job whose value does not fit its type.

    Attributes:
        taker: for what never waits.
        why_closed: why it cannot be used any more; "" while it can.

    """

    thread_name = "p2pmsg-puller"

    def __init__(
        self, name: str, make: Callable[[], EachTaker | BatchTaker], on_invalid: OnInvalidJob
    ) -> None:
        self.name = name
        self._on_invalid, self._misfits = on_invalid, 0
        self.taker = make()
        self.why_closed = ""

    def turn(self, now_ns: int) -> None:  # noqa: D102
        self.taker.turn(now_ns)

    def fds(self) -> Collection[int]:  # noqa: D102
        return self.taker.fds()

    def next_deadline_ns(self) -> int:  # noqa: D102
        return self.taker.next_deadline_ns()

    def resync(self) -> None:  # noqa: D102
        self.taker.resync()

    def shut(self) -> None:
        """Give back what was not begun, reject what was, and close the sockets."""
        self.why_closed = self.why_closed or "it is closed"
        self.taker.close()

    def abandon(self) -> None:  # noqa: D102
        self.why_closed = INHERITED
        self.taker.abandon()

    def check_open(self) -> None:
        """Raise `ClosedError` where it is closed."""
        if self.why_closed:
            raise ClosedError("the puller", self.why_closed)

    def commit(self) -> None:
        """Report what was acknowledged."""
        self.check_open()
        self.taker.commit()

    def report(self) -> None:
        """Do as `commit`, if it is open."""
        if not self.why_closed:
            self.taker.commit()

    def receive(self, timeout: float | None, deadline_ns: int | None) -> Verb[Job]:
        """Begin the next job; see `Puller.receive`."""
        while True:
            self.check_open()
            job = self.taker.take(self.now_ns())
            if job is not None:
                if not isinstance(job.value, Misfit):
                    return job
                yield Calling(partial(report_invalid, self._discard(job), self._on_invalid))
                continue
            self.taker.keys.raise_refused()
            if not (yield Wait(self._has_job, deadline_ns)) and not self.why_closed:
                raise LateError(f"no job came within {timeout} s")

    def _discard(self, job: Job) -> InvalidValueError:
        """Discard a job whose value does not fit its type; return what is wrong."""
        misfit: Misfit = job.value
        job.value = misfit.value
        error = InvalidValueError(f"job {job.sequence}", misfit.path, misfit.reason, job)
        self._misfits += 1
        if isinstance(self.taker, EachTaker):  # by the batch it counts as done
            job.discard(str(error))
        return error

    def stats(self) -> PullerStats:
        """Return the counters."""
        stats, misfits = self.taker.stats(), self._misfits
        received = stats.received - (misfits if isinstance(self.taker, BatchTaker) else 0)
        return replace(stats, received=received, invalid=misfits)

    def close(self, time_ns: int, run: JobRun | None) -> Verb[None]:
        """Wait until `run` has ended, then until pushers know what was done: each so long."""
        if run is not None:
            yield Wait(run.has_ended, self.now_ns() + time_ns, by_io=False)
        self.why_closed = self.why_closed or "it is closed"
        yield Wait(self._is_confirmed, self.now_ns() + time_ns)

    def _has_job(self) -> bool:
        taker = self.taker
        return taker.has_ready() or taker.keys.has_error or bool(self.why_closed)

    def _is_confirmed(self) -> bool:
        return not self.taker.is_unconfirmed()


class PullerBase(Generic[T_co]):
    """What never waits of a puller."""

    _driver: Any
    _peer: PullerPeer
    _patience_s: ClassVar[float | None] = 1.0
    _run: JobRun | None = None

    @checked(prefetch=(1, 65_536), frame_bytes_max=(64 * 1024, FRAME_BYTES_CEILING))
    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        acknowledge: Acknowledge = "each",
        prefetch: int | None = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        name: str | None = None,
        type: builtins.type[T_co] | None = None,  # noqa: A002  # as the subscribers have it
        on_invalid: OnInvalidJob | None = None,
        security: "Security | None" = None,
    ) -> None:
        by_batch = acknowledge == "batch"
        if by_batch:
            limit = 'left out with acknowledge="batch"'
            check("prefetch", prefetch, prefetch is None, limit)
            is_default = frame_bytes_max == FRAME_BYTES_MAX
            check("frame_bytes_max", frame_bytes_max, is_default, limit)
        if on_invalid is None:
            on_invalid = "raise" if by_batch else "skip"
        on_invalid = check_on_invalid(on_invalid)
        self._by_batch = by_batch
        values = None if type is None else value_type("type", type)
        places = check_endpoints(endpoints)
        curves = [curve_client(security, place) for place in places]
        self._name = check_name(name if name is not None else worker_name())
        self._places = ", ".join(map(str, places))
        common = places, curves, self._name, values, security
        make: Callable[[], EachTaker | BatchTaker] = (
            partial(BatchTaker, *common)
            if by_batch
            else partial(
                EachTaker,
                *common,
                prefetch=prefetch,
                frame_bytes_max=frame_bytes_max,
                answered=self._answered,
            )
        )
        self._open(partial(PullerPeer, f"the puller of {self._places}", make, on_invalid))

    _open: Callable[[Callable[[], Peer]], None]
    _answered: Callable[[], None]
    """Has what was acknowledged or rejected reported soon; called in any thread."""

    def _on_open(self) -> None:
        self._section: Section = self._driver.section
        self._taker = self._peer.taker
        self._take_now = self._taker.take_plain if self._by_batch else self._take_inside
        """Takes the next job if it is there, and has nothing but a value; else None."""

    # --------------------------------------------------------------------------------- public

    @property
    def name(self) -> str:
        """The worker's name."""
        return self._name

    @property
    def connected(self) -> int:
        """How many of its endpoints have a pusher that was joined, and answers."""
        return 0 if self._closed else sum(self._section.read(self._taker.answering))

    def commit(self) -> None:
        """Report now what was acknowledged; by the batch, all jobs taken so far count as done.

        Raises:
            ClosedError: the puller is closed.

        """
        self._section.run(self._peer.commit)

    def stats(self) -> PullerStats:
        """Return the counters as they are now; also after `close`."""
        return self._section.read(self._peer.stats)

    def __repr__(self) -> str:
        return shown(self, lambda: self._places)

    # -------------------------------------------------------------------------------- private

    @property
    def _closed(self) -> bool:
        return bool(self._peer.why_closed)

    def _take_inside(self) -> Job[T_co] | None:  # `section.run`, written out
        entered = self._section
        try:
            if not entered.acquire():
                entered.refuse()
            if entered.busy:
                entered.check()
            entered.busy = True
            job = self._taker.take_plain()
            entered.busy = False
            entered.release()
            return job
        except BaseException as error:
            entered.leave(error)
            raise

    def _deadline_ns(self, timeout: float | None) -> int | None:
        if timeout is None:
            return None
        at_least("timeout", timeout, 0)
        return self._peer.now_ns() + to_ns(timeout)

    def _check_each(self) -> None:
        """Raise `ConfigError` where jobs are acknowledged by the batch."""
        check("acknowledge", "batch", not self._by_batch, '"each" for run()')

    def _begin_run(
        self, handler: Callable[[Job[T_co]], Any], on_error: OnError, count: int | None
    ) -> JobRun:
        self._section.run(self._peer.check_open)
        if self._run is not None:
            raise ClosedError("the puller", "another call of run() takes its jobs")
        self._run = run = JobRun(handler, on_error, count)
        return run

    def _end_run(self, run: JobRun) -> None:
        self._run = None
        run.end()
        self._driver.wake()

    def _stop_run(self, worker: Any) -> JobRun | None:
        """Have `run` stop; return it where it is to be waited for: not within it."""
        self._section.run(bool)  # within another call nothing is begun
        run = self._run
        if run is not None:
            run.stop()
        return None if run is None or worker in run.workers else run
