"""Takes jobs that are acknowledged by the batch, from several pushers."""

import itertools
import secrets
import time
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import transports
from p2pmsg.errors import translated
from p2pmsg.queue.job import BY_BATCH, Job, Origin
from p2pmsg.queue.pipeline import frames
from p2pmsg.queue.pipeline.link import Link
from p2pmsg.queue.pipeline.taking import Taken
from p2pmsg.queue.stats import PullerStats
from p2pmsg.queue.watches import Watches
from p2pmsg.subscriber.typed import ValueType
from p2pmsg.sync.key_watch import KeyWatch
from p2pmsg.sync.lock import PublishLock
from p2pmsg.wire import Frame, FrameError
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_BUSY_MS: Final = 20.0
_IDLE_MS: Final = 100.0


class Batch:
    """The jobs of one frame, as they are taken.

    Attributes:
        jobs: all of them.
        at: the next. done: how many of them are done.
        stop: up to where they may be taken without a further look.

    """

    __slots__ = ("at", "done", "jobs", "stop")

    def __init__(self) -> None:
        self.jobs: list[Job[Any]] = []
        self.at = self.done = self.stop = 0


class BatchTaker:
    """Takes frames of jobs; every call is made under the puller's lock.

    A job is done when the next one is asked for, or at `commit`.

    Attributes:
        batch: the frame that was taken last.
        keys: what the handshakes came to.

    """

    def __init__(
        self,
        places: Sequence[transports.Endpoint],
        curves: Sequence["transports.CurveClient | None"],
        name: str,
        watches: Watches,
        lock: PublishLock,
        values: ValueType | None,
        security: "Security | None",
    ) -> None:
        self.batch = Batch()
        self.keys = KeyWatch()
        self._lock = lock
        self._values = values
        self._has_keys = security is not None
        access_rules = None if security is None else security.access_rules
        self._changes = None if access_rules is None else access_rules.changes()
        self._current: tuple[Link, Taken] | None = None
        self._received = self._invalid = self._lost = self._turns = 0
        self._is_closed = False
        self._links: list[Link] = []
        try:
            for place, curve in zip(places, curves, strict=True):
                with translated():
                    link = Link(place, secrets.randbits(63), name, watches, curve, access_rules)
                self._links.append(link)
        except BaseException:
            for link in self._links:
                link.close()
            raise

    # ------------------------------------------------------------------------------- the jobs

    def take(self, taken: list[Job]) -> None:
        """Take the next job, and put it into `taken`; nothing where there is none."""
        batch = self.batch
        if batch.at >= len(batch.jobs):
            self._load()
        if batch.at < len(batch.jobs):
            batch.done = batch.at
            batch.at += 1
            taken.append(batch.jobs[batch.done])

    def requeue(self, job: Job) -> None:
        """Take back the job that was taken last, and did not get to the caller."""
        self.batch.at = self.batch.done

    def commit(self) -> None:
        """Count all jobs taken so far as done, and confirm them now."""
        self.batch.done = self.batch.at
        now_ns = time.monotonic_ns()
        for link in self._links:
            link.say_done(self._part(link), now_ns=now_ns)

    # -------------------------------------------------------------------------------- the work

    @property
    def ready(self) -> int:
        """How many jobs, or frames of them, are there that were not begun."""
        left = len(self.batch.jobs) - self.batch.at
        return left + sum(link.has_ready for link in self._links)

    def turn(self) -> float:
        """Take the background's turn; return how long it may sleep, in ms."""
        return self._work(time.monotonic_ns())

    def wait_ms(self) -> float:
        """Return how long nothing is due, in ms."""
        return _BUSY_MS

    def is_unconfirmed(self) -> bool:
        """Whether a pusher is to be waited for: none is."""
        return False

    def answering(self) -> list[bool]:
        """Return which pushers took this worker on."""
        return [link.share is not None and not self._is_closed for link in self._links]

    def close(self) -> None:
        """Confirm what is done, give back the rest, and close."""
        self._is_closed = True
        self._drop_rest()
        for link in self._links:
            link.leave(self._part(link))
            link.close()

    def abandon(self) -> None:
        """Drop all, in a forked child."""
        self._drop_rest()

    def stats(self) -> PullerStats:
        """Return the counters."""
        links, batch = self._links, self.batch
        invalid = {
            "frame": self._invalid + sum(link.invalid for link in links),
            "duplicate": sum(link.duplicates for link in links),
            "late": sum(link.late for link in links),
        }
        received = self._received + batch.at
        ready = sum(link.jobs_ready for link in links)
        return PullerStats(
            received=received,
            acked=self._received + batch.done,
            in_hand=len(batch.jobs) - batch.done + ready,
            ready=len(batch.jobs) - batch.at + ready,
            lost=self._lost + sum(link.lost for link in links),
            frames_invalid={name: count for name, count in invalid.items() if count},
            pushers=sum(link.share is not None for link in links),
            answering=dict(zip((link.endpoint for link in links), self.answering(), strict=True)),
            denied={
                link.endpoint: str(link.access.denial)
                for link in links
                if link.access.denial is not None
            },
        )

    # --------------------------------------------------------------------------------- private

    def _load(self) -> None:
        """Count the frame that was taken as done, and begin the next one."""
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

    def _finish(self) -> None:
        if self._current is not None:
            link, taken = self._current
            link.finish(taken)
            self._current = None
        batch = self.batch
        self._received += batch.at
        batch.jobs = []
        batch.at = batch.done = batch.stop = 0

    def _begin_next(self) -> bool:
        links = self._links
        for step in range(len(links)):
            link = links[(self._turns + step) % len(links)]
            while (taken := link.take()) is not None:
                try:
                    self._open(link, taken)
                except FrameError:
                    self._invalid += 1
                    self._lost += 1
                    _log.error("a frame of the pusher at %s cannot be read", link.endpoint)
                    link.finish(taken)
                    continue
                self._turns += step + 1
                return True
        return False

    def _open(self, link: Link, taken: Taken) -> None:
        """Make the jobs of a frame; `FrameError` where it cannot be read."""
        frame = Frame(taken.frame)
        bad: list[int] = []
        if self._values is None:
            values = frames.values_of(frame)
        else:
            (values, *_), bad = self._values.sift(frame)
        first, now_ns = frame.base_timestamp_ns, time.time_ns()
        origin = Origin(BY_BATCH, link.session, 0, now_ns, 1)
        numbers = itertools.count(first)
        jobs = list(map(Job, values, repeat(taken.number), numbers, repeat(origin), repeat(None)))
        self._current = link, taken
        batch = self.batch
        batch.jobs = jobs
        batch.at = batch.done = 0
        batch.stop = 0 if bad else len(jobs)

    def _part(self, link: Link) -> int:
        """Return how many jobs of the current frame are done, where it is of this share."""
        if self._current is not None:
            current, taken = self._current
            if current is link and taken.share == link.share:
                return self.batch.done
        return 0

    def _work(self, now_ns: int) -> float:
        busy, keys = self._current is not None, self.keys
        if self._has_keys:
            keys.check([link.client for link in self._links], now_ns)
        have_changed = self._changes is not None and self._changes.poll()
        for link in self._links:
            if have_changed:
                link.check_access_rules(now_ns)
            if self._has_keys:
                link.check(keys)
            else:
                link.report_closed(keys)
            link.read(now_ns)
            if link.access.unreported is not None:
                link.report_denied(keys)
            if self._current is not None and self._current[1].share == link.dropped:
                self._drop_rest()  # it is others' now
            link.say(self._part(link), now_ns=now_ns)
            busy = busy or link.is_busy
        return _BUSY_MS if busy else _IDLE_MS

    def _drop_rest(self) -> None:
        batch = self.batch
        del batch.jobs[batch.at :]
        batch.stop = min(batch.stop, batch.at)
