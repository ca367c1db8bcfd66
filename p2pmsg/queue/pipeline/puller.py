"""A pipeline's puller: what both shells share, and threads."""

import builtins
import itertools
import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

import transports
from p2pmsg.checks import at_least, checked, shown, whole
from p2pmsg.errors import ClosedError, InvalidValueError, translated
from p2pmsg.message import T_co
from p2pmsg.queue.driver import Driver
from p2pmsg.queue.job import OnInvalidJob, check_on_invalid, report_invalid
from p2pmsg.queue.pipeline import frames
from p2pmsg.queue.pipeline.config import PipelinePullerCounters
from p2pmsg.queue.pipeline.link import Link, Watches
from p2pmsg.queue.pipeline.taking import Taken
from p2pmsg.queue.process_id import worker_name
from p2pmsg.security.use import curve_client
from p2pmsg.subscriber.typed import Misfit, value_type
from p2pmsg.sync.key_watch import KeyWatch
from p2pmsg.sync.lifecycle import (
    INHERITED,
    ClosesAtOnce,
    close_at_exit,
    close_in_children,
    is_inherited,
    was_closed,
)
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.settings import check_endpoints, check_name
from p2pmsg.wire import Frame, FrameError
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

PULLER_OPTIONS: Final = ("endpoints", "name", "type", "on_invalid", "security")
_BUSY_MS: Final = 20.0
_IDLE_MS: Final = 100.0


class PipelineJob(NamedTuple, Generic[T_co]):
    """A job of a pipeline."""

    value: T_co
    """What was pushed, or what the puller makes of it (its argument `type`)."""
    sequence: int
    """The number that `push` returned."""


_make_job: Final[Callable[[tuple[Any, int]], PipelineJob]] = partial(tuple.__new__, PipelineJob)
"""As `PipelineJob._make`, in a third of the time."""


class PipelinePullerBase(ABC, Generic[T_co]):
    """Takes frames of jobs under a lock; who waits, and how, is left out."""

    @checked()
    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        name: str | None = None,
        type: builtins.type[T_co] | None = None,  # noqa: A002  # as the subscribers have it
        on_invalid: OnInvalidJob = "raise",
        security: "Security | None" = None,
    ) -> None:
        self._on_invalid, self._misfits = check_on_invalid(on_invalid), 0
        self._values = None if type is None else value_type("type", type)
        self._security = security
        self._keys: list[KeyWatch] = []
        access_rules = None if security is None else security.access_rules
        self._changes = None if access_rules is None else access_rules.changes()
        self._name = check_name(name if name is not None else worker_name())
        places = check_endpoints(endpoints)
        curves = [curve_client(security, place) for place in places]
        self._lock = PublishLock()
        self._closed = False
        self._unusable: str | None = None
        self._jobs: list[PipelineJob[T_co]] = []
        self._bad: deque[int] = deque()
        """Which of `_jobs` have a `Misfit` for a value and were not reported yet, ascending."""
        self._at = self._done = self._count = 0
        self._current: tuple[Link, Taken] | None = None
        self._received = self._invalid = self._lost = 0
        self._turns = 0
        self._links: list[Link] = []
        watches = self._prepare([*map(str, places)])
        try:
            for place, curve in zip(places, curves, strict=True):
                with translated():
                    link = Link(
                        place, secrets.randbits(63), self._name, watches, curve, access_rules
                    )
                self._links.append(link)
                self._keys.append(KeyWatch())
        except BaseException:
            for link in self._links:
                link.close()
            raise
        self._begin()

    @abstractmethod
    def _prepare(self, places: list[str]) -> Watches:
        """Return what is to watch the sockets' descriptors."""

    @abstractmethod
    def _begin(self) -> None:
        """Have turns taken from now on."""

    # --------------------------------------------------------------------------------- public

    @property
    def name(self) -> str:
        """The puller's name."""
        return self._name

    def commit(self) -> None:
        """Count all jobs taken so far as done, and confirm them now."""
        self._lock.run_whole(self._commit)

    def stats(self) -> PipelinePullerCounters:
        """Return the counters as they are now; also after `close`."""
        return self._lock.read(self._stats)

    def __repr__(self) -> str:
        return shown(self, lambda: ", ".join(link.endpoint for link in self._links))

    # -------------------------------------------------------------------------------- private

    def _load(self) -> None:
        """Count the frame that was taken as done, and begin the next one."""
        self._check_usable()
        self._lock.favour()
        self._finish()
        now_ns = time.monotonic_ns()
        if not self._begin_next():
            self._work(now_ns)
            if not self._begin_next():
                for link in self._links:
                    link.say_done(0, now_ns=now_ns)  # before waiting, so that more is dealt
                return
        elif self._current is not None:
            link = self._current[0]
            link.read(now_ns)
            link.say(0, now_ns=now_ns)

    def _check_usable(self) -> None:
        if self._unusable is not None or self._closed:
            raise ClosedError("the puller", self._unusable or "it is closed")

    def _finish(self) -> None:
        if self._current is not None:
            link, taken = self._current
            link.finish(taken)
            self._received += self._at
            self._current = None
            self._jobs = []
            self._bad.clear()
            self._at = self._done = self._count = 0

    def _begin_next(self) -> bool:
        links = self._links
        for step in range(len(links)):
            link = links[(self._turns + step) % len(links)]
            while (taken := link.take()) is not None:
                try:
                    frame = Frame(taken.frame)
                    values, bad = self._values_of(frame)
                except FrameError:
                    self._invalid += 1
                    self._lost += 1
                    _log.error("a frame of the pusher at %s cannot be read", link.endpoint)
                    link.finish(taken)
                    continue
                numbers = itertools.count(frame.base_timestamp_ns)
                self._jobs = list(map(_make_job, zip(values, numbers, strict=False)))
                self._current = link, taken
                self._turns += step + 1
                self._at = self._done = 0
                self._bad.extend(bad)
                self._count = bad[0] if bad else len(self._jobs)
                return True
        return False

    def _values_of(self, frame: Frame) -> tuple[list[Any], list[int]]:
        """Return the values of a frame, and the indexes of those that are a `Misfit`."""
        if self._values is None:
            return frames.values_of(frame), []
        (values, *_), bad = self._values.sift(frame)
        return values, bad

    def _pass_invalid(self) -> bool:
        """Report the next job if its value does not fit; False: it is no such one."""
        error = self._lock.run_whole(self._take_invalid)
        if error is None:
            return False
        report_invalid(error, self._on_invalid)
        return True

    def _take_invalid(self) -> InvalidValueError | None:
        """Take the next job, which was not to be handed out; None: there is none."""
        at, bad = self._at, self._bad
        if not bad or at != bad[0]:
            return None
        self._check_usable()
        bad.popleft()
        self._done = at
        self._at = at + 1
        self._count = bad[0] if bad else len(self._jobs)
        self._misfits += 1
        job: PipelineJob[Any] = self._jobs[at]
        misfit: Misfit = job.value
        job = job._replace(value=misfit.value)
        return InvalidValueError(f"job {job.sequence}", misfit.path, misfit.reason, job)

    def _part(self, link: Link) -> int:
        """Return how many jobs of the current frame are done, where it is of this share."""
        if self._current is not None:
            current, taken = self._current
            if current is link and taken.share == link.share:
                return self._done
        return 0

    def _background(self) -> float:
        if self._unusable is not None:
            raise transports.ClosedError("puller")
        return self._work(time.monotonic_ns())

    def _work(self, now_ns: int) -> float:
        busy = self._current is not None
        have_changed = self._changes is not None and self._changes.poll()
        for link, keys in zip(self._links, self._keys, strict=True):
            if have_changed:
                link.check_access_rules(now_ns)
            if self._security is not None:
                link.check(keys, now_ns)
            else:
                link.report_closed(keys)
            link.read(now_ns)
            if link.access.unreported is not None:
                link.report_denied(keys)
            if self._current is not None and self._current[1].share == link.dropped:
                self._count = self._at  # the rest of it is others' now
                self._bad.clear()
            link.say(self._part(link), now_ns=now_ns)
            busy = busy or link.is_busy
        return _BUSY_MS if busy else _IDLE_MS

    def _raise_refused(self) -> None:
        for keys in self._keys:
            keys.raise_refused()

    def _is_refused(self) -> bool:
        return any(keys.has_error for keys in self._keys)

    def _commit(self) -> None:
        self._check_usable()
        self._done = self._at
        now_ns = time.monotonic_ns()
        for link in self._links:
            link.say_done(self._part(link), now_ns=now_ns)

    def _close_all(self) -> None:
        self._count = self._at
        self._bad.clear()
        for link in self._links:
            link.leave(self._part(link))
            link.close()

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        self._closed = True
        self._unusable = INHERITED
        self._lock = PublishLock()
        self._count = 0
        self._bad.clear()

    def _stats(self) -> PipelinePullerCounters:
        links = self._links
        return PipelinePullerCounters(
            received=self._received + self._at - self._misfits,
            ready=sum(len(link.ready) for link in links),
            lost=self._lost + sum(link.lost for link in links),
            duplicates=sum(link.duplicates for link in links),
            frames_invalid=self._invalid + sum(link.invalid for link in links),
            frames_late=sum(link.late for link in links),
            connected=sum(link.share is not None for link in links),
            answering={link.endpoint: link.share is not None for link in links},
            invalid=self._misfits,
            denied={
                link.endpoint: str(link.access.denial)
                for link in links
                if link.access.denial is not None
            },
        )


class PipelinePuller(PipelinePullerBase[T_co], ClosesAtOnce):
    """Takes jobs from a pipeline's pushers; `Puller(endpoint, mode="pipeline")`.

    A job counts as done when the next one is asked for, or at `commit()`; what is not done when the
    process dies goes to another puller. What is done is confirmed at intervals, of 20 ms at most,
    so that a job may be done twice after a death. One thread at a time may take jobs.

    Args:
        endpoints: one, or several, of pushers.
        name: who works, for people. Default: host and process id.
        type: of the jobs' values: a dataclass, a msgspec Struct, a pydantic model, a TypedDict or
            anything else that values can be decoded into. A job whose value does not fit is not
            handed out, and counts as done like the others: no puller could do it. It is reported
            as `on_invalid` says, and counts in `stats().invalid`. Default None: values come as
            they are.
        on_invalid: how it is reported: `raise` (default, since nobody keeps such a job) raises
            `InvalidValueError`, whose `item` has the value, where the job would have come, and the
            next call goes on; `skip` logs a warning; a callable gets that exception.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; the pushers' keys are pinned by `?key=` or in the file of known
            peers. Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    # --------------------------------------------------------------------------------- public

    def __iter__(self) -> Iterator[PipelineJob[T_co]]:
        return self

    def __next__(self) -> PipelineJob[T_co]:
        # No call stands between the steps, so that no interrupt and no other thread comes between.
        at = self._at
        if at < self._count:
            job = self._jobs[at]
            self._done = at
            self._at = at + 1
            return job
        try:
            return self.receive()
        except ClosedError as error:
            if is_inherited(error):
                raise
            raise StopIteration from None

    def receive(self, timeout: float | None = None) -> PipelineJob[T_co]:
        """Return the next job; the one before counts as done from now on.

        Args:
            timeout: how long to wait, in seconds. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            AuthenticationError: a pusher refused the connection, or does not hold the pinned key;
                once for each time that it is tried. It goes on.
            InvalidValueError: the next one does not fit `type`, with `on_invalid="raise"`.
            AccessDeniedError: a pusher gives us no right to `pull`, or an access file here gives it
                none to `push`; once, and every 5 s while it stays so. It goes on.
            ClosedError: the puller is closed.

        """
        self._wait(timeout)
        at = self._at
        job = self._jobs[at]
        self._done = at
        self._at = at + 1
        return job

    def receive_many(self, count_max: int, timeout: float | None = None) -> list[PipelineJob[T_co]]:
        """Return the next jobs, one at least; those before count as done from now on.

        Args:
            count_max: how many at most; they are of one frame, so often fewer.
            timeout: how long to wait, in seconds. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            AuthenticationError: a pusher refused the connection, or does not hold the pinned key;
                once for each time that it is tried. It goes on.
            InvalidValueError: the next one does not fit `type`, with `on_invalid="raise"`.
            AccessDeniedError: a pusher gives us no right to `pull`, or an access file here gives it
                none to `push`; once, and every 5 s while it stays so. It goes on.
            ClosedError: the puller is closed.

        """
        whole("count_max", count_max, 1)
        self._wait(timeout)
        at = self._at
        jobs = self._jobs[at : max(at + 1, min(at + count_max, self._count))]
        after = at + len(jobs)
        self._done = at
        self._at = after
        return jobs

    def close(self) -> None:
        """Confirm what is done, give back the rest, and close.

        The job taken last counts as not done, unless it was committed.
        """
        if not self._closed:
            self._lock.refuse_inside()
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        self._unusable = "it is closed"
        self._driver.stop()
        self._lock.run_whole(self._close_all)

    # -------------------------------------------------------------------------------- private

    def _prepare(self, places: list[str]) -> Watches:
        self._driver = Driver("p2pmsg-pipeline-puller", self._turn, [])
        return self._driver

    def _begin(self) -> None:
        close_in_children(self)
        self._driver.start()
        close_at_exit(self, lambda one, left: one.close())

    def _wait(self, timeout: float | None) -> None:
        """Wait until a job is there."""
        if timeout is not None:
            at_least("timeout", timeout, 0)
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._at >= self._count:
            if self._bad and self._pass_invalid():
                continue
            self._lock.run_whole(self._load)
            if self._at < self._count or self._bad:
                continue
            self._raise_refused()
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no job came within {timeout} s")
            self._driver.wait(min(_BUSY_MS, left * 1000))
        self._check_usable()

    def _turn(self) -> float:
        return self._lock.run(self._background)
