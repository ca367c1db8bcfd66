"""What both faces of a puller share: all that never waits."""

import builtins
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from p2pmsg.checks import check, checked
from p2pmsg.driver.section import Section
from p2pmsg.errors import ClosedError
from p2pmsg.message import T_co
from p2pmsg.peers.base import FaceBase
from p2pmsg.peers.puller import PullerPeer, Settings
from p2pmsg.peers.settings import check_endpoints, check_name
from p2pmsg.queue.config import FRAME_BYTES_CEILING, FRAME_BYTES_MAX, Acknowledge
from p2pmsg.queue.job import Job, OnInvalidJob, check_on_invalid
from p2pmsg.queue.process_id import worker_name
from p2pmsg.queue.running import JobRun, OnError
from p2pmsg.queue.stats import PullerStats
from p2pmsg.security.use import curve_client
from p2pmsg.subscriber.typed import value_type

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security


class PullerBase(FaceBase, Generic[T_co]):
    """What never waits of a puller."""

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
        settings = Settings(
            places, curves, self._name, values, security, prefetch, frame_bytes_max, by_batch,
            on_invalid,
        )  # fmt: skip
        self._begin(PullerPeer, settings, self._answered)

    _answered: Callable[[], None]
    """Has what was acknowledged or rejected reported soon; called in any thread."""

    def _on_open(self) -> None:
        self._section: Section = self._driver.section
        self._take_now = self._peer.take_plain if self._by_batch else self._take_inside
        """Takes the next job if it is there, and has nothing but a value; else None."""

    # --------------------------------------------------------------------------------- public

    @property
    def name(self) -> str:
        """The worker's name."""
        return self._name

    @property
    def connected(self) -> int:
        """How many of its endpoints have a pusher that was joined, and answers."""
        return 0 if self._closed else sum(self._read(self._peer.answering))

    def commit(self) -> None:
        """Report now what was acknowledged; by the batch, all jobs taken so far count as done.

        Raises:
            ClosedError: the puller is closed.

        """
        self._section.run(self._peer.commit)

    def stats(self) -> PullerStats:
        """Return the counters as they are now; also after `close`."""
        return self._read(self._peer.stats)

    # -------------------------------------------------------------------------------- private

    def _take_inside(self) -> Job[T_co] | None:  # `section.run`, written out
        entered = self._section
        lock = entered.lock
        try:
            if not lock.acquire():
                entered.refuse()
            if entered.busy:
                entered.check()
            entered.busy = True
            job = self._peer.take_plain()
            entered.busy = False
            lock.release()
            return job
        except BaseException as error:
            entered.leave(error)
            raise

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
