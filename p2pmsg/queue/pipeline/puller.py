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
from p2pmsg.security.key_watch import KeyWatch
from p2pmsg.subscriber.typed import ValueType
from p2pmsg.wire import Frame, FrameError
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_BUSY_NS: Final = 20_000_000
_IDLE_NS: Final = 100_000_000


class Batch:
    """The jobs of one frame, as they are taken.

    Attributes:
        jobs: all of them.
        at: the next. done: how many of them are done.
        stop: up to where they may be taken without a further look. end: up to where with one.

    """

    __slots__ = ("at", "done", "end", "jobs", "stop")

    def __init__(self) -> None:
        self.jobs: list[Job[Any]] = []
        self.at = self.done = self.stop = self.end = 0

    def take_plain(self) -> Job[Any] | None:
        """Take the next job, if that needs no further look; the one before it is done.

        It is called by who takes jobs, also while another thread takes a turn, which reads `done`
        and may set `stop` and `end` back.
        """
        at = self.at
        if at >= self.stop:
            return None
        try:
            self.done = at
            self.at = at + 1
            return self.jobs[at]
        except BaseException:
            self.at = at  # it comes again
            raise

    def clear(self) -> None:
        """Have no jobs."""
        self.stop = self.end = self.at = self.done = 0
        self.jobs = []


class BatchTaker:
    """Takes frames of jobs.

    A job is done when the next one is asked for, or at `commit`.

    Attributes:
        keys: what the handshakes came to.
        take_plain: takes a job of the frame that was taken last; None: see whether `take` does.

    """

    def __init__(
        self,
        places: Sequence[transports.Endpoint],
        curves: Sequence["transports.CurveClient | None"],
        name: str,
        values: ValueType | None,
        security: "Security | None",
    ) -> None:
        self._batch = Batch()
        self.take_plain = self._batch.take_plain
        self.keys = KeyWatch()
        self._values = values
        self._has_keys = security is not None
        access_rules = None if security is None else security.access_rules
        self._changes = None if access_rules is None else access_rules.changes()
        self._current: tuple[Link, Taken] | None = None
        self._received = self._invalid = self._lost = self._turns = 0
        self._is_closed = self._took = False
        self._fds: frozenset[int] = frozenset()
        self._due_ns = 0
        self._links: list[Link] = []
        try:
            for place, curve in zip(places, curves, strict=True):
                with translated():
                    link = Link(place, secrets.randbits(63), name, curve, access_rules)
                self._links.append(link)
        except BaseException:
            for link in self._links:
                link.close()
            raise

    # ------------------------------------------------------------------------------- the jobs

    def take(self, now_ns: int) -> Job | None:
        """Take the next job; None where there is none."""
        self._took = False
        batch = self._batch
        if batch.at >= batch.end:
            self._load(now_ns)
        if batch.at >= batch.end:
            return None
        self._took = True
        batch.done = batch.at
        batch.at = batch.done + 1
        return batch.jobs[batch.done]

    def commit(self) -> None:
        """Count all jobs taken so far as done, and confirm them now."""
        self._batch.done = self._batch.at
        now_ns = time.monotonic_ns()
        for link in self._links:
            link.say_done(self._part(link), now_ns=now_ns)

    # -------------------------------------------------------------------------------- the work

    def has_ready(self) -> bool:
        """Whether there may be a job, or a frame of them, that was not begun."""
        batch = self._batch
        return batch.at < batch.end or any(link.has_ready for link in self._links)

    def fds(self) -> frozenset[int]:
        """Return the descriptors that become readable when a turn is worth it."""
        fds = frozenset(fd for link in self._links for fd in link.fds())
        if fds != self._fds:
            self._fds = fds
        return self._fds

    def turn(self, now_ns: int) -> None:
        """Send and receive, and do what is due."""
        for link in self._links:
            link.close_left()
        self._work(now_ns)

    def next_deadline_ns(self) -> int:
        """Return when the next turn is due."""
        return self._due_ns

    def resync(self) -> None:
        """Go on after an exception that came anywhere in it.

        The job that was taken last may not have got to the caller: it comes again.
        """
        for link in self._links:
            link.resync()
        batch = self._batch
        if self._current is None:
            batch.clear()
            return
        link, taken = self._current
        link.drop(taken)
        if self._took:
            batch.at = batch.done

    @property
    def is_report_due(self) -> bool:
        """Whether an answer to a job is to be reported at once: there are none."""
        return False

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
        links, batch = self._links, self._batch
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
            in_hand=max(0, batch.end - batch.done) + ready,
            ready=max(0, batch.end - batch.at) + ready,
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

    def _load(self, now_ns: int) -> None:
        """Count the frame that was taken as done, and begin the next one."""
        self._finish()
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
        received = self._received + self._batch.at
        self._batch.clear()
        self._received = received

    def _begin_next(self) -> bool:
        links = self._links
        for step in range(len(links)):
            link = links[(self._turns + step) % len(links)]
            while (taken := link.first()) is not None:
                try:
                    self._open(link, taken)
                except FrameError:
                    self._invalid += 1
                    self._lost += 1
                    _log.error("a frame of the pusher at %s cannot be read", link.endpoint)
                    link.drop(taken)
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
        batch = self._batch
        batch.jobs, batch.end = jobs, len(jobs)
        self._current = link, taken
        link.drop(taken)
        batch.stop = 0 if bad else len(jobs)

    def _part(self, link: Link) -> int:
        """Return how many jobs of the current frame are done, where it is of this share."""
        if self._current is not None:
            current, taken = self._current
            if current is link and taken.share == link.share:
                return self._batch.done
        return 0

    def _work(self, now_ns: int) -> None:
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
        self._due_ns = now_ns + (_BUSY_NS if busy else _IDLE_NS)

    def _drop_rest(self) -> None:
        batch = self._batch
        batch.end = min(batch.end, batch.at)
        batch.stop = min(batch.stop, batch.end)
