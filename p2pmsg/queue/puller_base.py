"""What the pullers for threads and for asyncio share: connecting, taking, counting."""

import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Generic

import transports
from p2pmsg.checks import check, checked, shown
from p2pmsg.driver.lifecycle import INHERITED
from p2pmsg.errors import ClosedError, InvalidValueError
from p2pmsg.message import T_co
from p2pmsg.queue.config import FRAME_BYTES_CEILING, FRAME_BYTES_MAX, Acknowledge
from p2pmsg.queue.each_taker import EachTaker
from p2pmsg.queue.job import Job, OnInvalidJob, check_on_invalid, report_invalid
from p2pmsg.queue.pipeline.puller import Batch, BatchTaker
from p2pmsg.queue.process_id import worker_name
from p2pmsg.queue.stats import PullerStats
from p2pmsg.queue.watches import Watches
from p2pmsg.security.use import curve_client
from p2pmsg.subscriber.typed import Misfit, value_type
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.settings import check_endpoints, check_name

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security


class PullerBase(ABC, Generic[T_co]):
    """Takes jobs under a lock; who waits, and how, is left out."""

    _turn_ns_max: ClassVar[int] = 2**63
    _frames_per_round: ClassVar[int] = 64

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
        self._on_invalid, self._misfits = check_on_invalid(on_invalid), 0
        values = None if type is None else value_type("type", type)
        places = check_endpoints(endpoints)
        curves = [curve_client(security, place) for place in places]
        self._name = check_name(name if name is not None else worker_name())
        self._places = [*map(str, places)]
        self._lock = PublishLock(nests=True)  # what is acknowledged may be so by itself
        self._closed = False
        self._unusable: str | None = None
        self._prepare()
        self._watches = Watches()
        common = places, curves, self._name, self._watches, self._lock, values, security
        self._taker: EachTaker | BatchTaker
        self._batch = Batch()
        if by_batch:
            self._taker = BatchTaker(*common)
            self._batch = self._taker.batch
        else:
            self._taker = EachTaker(
                *common, prefetch=prefetch, frame_bytes_max=frame_bytes_max,
                acknowledged=self._on_acknowledged, turn_ns_max=self._turn_ns_max,
                frames_per_round=self._frames_per_round,
            )  # fmt: skip
        self._begin()

    def _prepare(self) -> None:  # threads need nothing
        """Do what comes before anything is opened."""

    @abstractmethod
    def _begin(self) -> None:
        """Have turns taken from now on."""

    @abstractmethod
    def _on_acknowledged(self) -> None:
        """Have reported soon what was acknowledged or rejected."""

    # --------------------------------------------------------------------------------- public

    @property
    def name(self) -> str:
        """The worker's name."""
        return self._name

    @property
    def connected(self) -> int:
        """How many of its endpoints have a pusher that was joined, and answers."""
        return 0 if self._closed else sum(self._taker.answering())

    def commit(self) -> None:
        """Report now what was acknowledged; by the batch, all jobs taken so far count as done."""
        self._lock.run_whole(self._commit)

    def __repr__(self) -> str:
        return shown(self, lambda: ", ".join(self._places))

    def stats(self) -> PullerStats:
        """Return the counters as they are now; also after `close`."""
        return self._lock.read(self._stats)

    # -------------------------------------------------------------------------------- private

    def _take(self, taken: list[Job[T_co]]) -> None:
        """Begin the next job, and put it into `taken`; nothing where there is none."""
        self._check_usable()
        self._taker.take(taken)

    def _report_misfit(self, job: Job) -> None:
        """Discard a job whose value does not fit its type, and report that."""
        misfit: Misfit = job.value
        job.value = misfit.value
        error = InvalidValueError(f"job {job.sequence}", misfit.path, misfit.reason, job)
        self._misfits += 1
        if isinstance(self._taker, EachTaker):
            job.discard(str(error))
        report_invalid(error, self._on_invalid)

    def _commit(self) -> None:
        self._check_usable()
        self._taker.commit()

    def _background(self) -> float:
        """Take the background's turn; return how long it may sleep, in ms."""
        if self._unusable is not None:
            raise transports.ClosedError("puller")
        return self._taker.turn()

    def _stats(self) -> PullerStats:
        stats = self._taker.stats()
        received = stats.received - (self._misfits if isinstance(self._taker, BatchTaker) else 0)
        return replace(stats, received=received, invalid=self._misfits)

    def _check_usable(self) -> None:
        if self._unusable is not None or self._closed:
            raise ClosedError("the puller", self._unusable or "it is closed")

    def _check_each(self) -> None:
        """Raise `ConfigError` where jobs are acknowledged by the batch."""
        check("acknowledge", "batch", isinstance(self._taker, EachTaker), '"each" for run()')

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        self._closed = True
        self._unusable = INHERITED
        self._lock = PublishLock(nests=True)  # a thread of the parent's may have been inside
        self._taker.abandon()
