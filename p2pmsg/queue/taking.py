"""Jobs that are acknowledged by the batch, as a worker takes them."""

from collections import deque
from typing import Any, Protocol

from p2pmsg.queue.frames import Ranges
from p2pmsg.queue.job import Job
from p2pmsg.wire import Frame


class Source(Protocol):
    """Where jobs are from: a `PullerCore`."""

    def collect(self) -> None:
        """Take note of what is done."""


class Arrived:
    """A frame of jobs of which none was begun; its jobs are made then, so that memory is reused.

    Attributes:
        frame: as it came.
        first, stop: the deliveries that are still here.

    """

    __slots__ = ("first", "frame", "stop")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.first: int = frame.sequence
        self.stop: int = frame.sequence + frame.count

    @property
    def count(self) -> int:
        """How many jobs are still here."""
        return self.stop - self.first


class Arrivals:
    """Frames of jobs that came from one pusher and were not begun.

    Attributes:
        endpoint: where they come from; empty where there is nothing to connect to.
        frames: those whose jobs are to be answered for.
        left: those of a pusher that is no more; nobody else has them.

    """

    def __init__(self) -> None:
        self.endpoint = ""
        self.frames: deque[Arrived] = deque()
        self.left: deque[Arrived] = deque()
        self.sent = self._came = 0

    def connect(self, endpoint: str) -> None:
        """Begin to count what the pusher sent over a connection, and what of that came."""
        self.endpoint = endpoint
        self.sent = self._came = 0

    def add(self, frame: Frame) -> None:
        """Take a frame."""
        self.frames.append(Arrived(frame))
        self._came += frame.count

    @property
    def count(self) -> int:
        """How many jobs are here."""
        return sum(each.count for each in (*self.frames, *self.left))

    @property
    def missing(self) -> int:
        """How many jobs were sent that have not come."""
        return max(0, self.sent - self._came)

    def give_back(self, count: int) -> Ranges:
        """Take so many out again, the latest first; return their deliveries."""
        given: Ranges = []
        while self.frames and count > 0:
            last = self.frames[-1]
            stop, last.stop = last.stop, max(last.first, last.stop - count)
            given.append((last.stop, stop))
            count -= stop - last.stop
            if not last.count:
                self.frames.pop()
        return given

    def drop(self, start: int, stop: int) -> int:
        """Drop deliveries `[start, stop)`, and those after them in a frame; return how many."""
        before = self.count
        for each in self.frames:
            if start < each.stop and each.first < stop:
                each.stop = max(start, each.first)
        self.frames = deque(each for each in self.frames if each.count)
        return before - self.count

    def clear(self) -> int:
        """Drop what another worker gets; return how many jobs that was."""
        count = sum(each.count for each in self.frames)
        self.frames.clear()
        return count

    def leave(self) -> int:
        """Keep the jobs of a pusher that is no more; return how many did not come."""
        missing = self.missing
        self.left.extend(self.frames)
        self.frames.clear()
        self.connect("")
        return missing


class Batch:
    """The jobs of a frame, which were begun; each is done when the next one is asked for.

    One for all pushers of a puller.

    Attributes:
        jobs: all of them, in the order of their deliveries. first: the first delivery.
        core: where they are from; None: nobody wants to know what becomes of them.
        at: the next. done: how many of them are done. reported: how many of these were reported.
        stop: up to where they may be taken without a further look. end: up to where with one.

    """

    __slots__ = ("at", "core", "done", "end", "first", "jobs", "reported", "stop", "took")

    def __init__(self) -> None:
        self.jobs: list[Job[Any]] = []
        self.core: Source | None = None
        self.at = self.done = self.first = self.reported = self.stop = self.end = 0
        self.took = False

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

    def take(self) -> Job[Any] | None:
        """Take the next job; None where there is none, and all that were taken are done."""
        self.took = False
        self.done = self.at
        if self.at >= self.end:
            return None
        self.took = True
        self.at = self.done + 1
        return self.jobs[self.done]

    def begin(
        self, jobs: list[Job[Any]], first: int, core: Source | None, *, is_plain: bool
    ) -> None:
        """Begin others; those of before are done, and were reported."""
        self.stop = self.end = self.at = self.done = self.reported = 0
        self.jobs, self.first, self.core = jobs, first, core
        self.end = len(jobs)
        self.stop = self.end if is_plain else 0

    def unreported(self) -> tuple[int, int]:
        """Return the deliveries [start, stop) that are done, each once."""
        start, done = self.reported, self.done
        self.reported = done
        return self.first + start, self.first + done

    def open(self) -> list[tuple[int, int]]:
        """Return the jobs that are here and were not reported: (delivery, sequence)."""
        return [(self.first + at, self.jobs[at].sequence) for at in range(self.reported, self.end)]

    def drop_rest(self) -> None:
        """Hand out no more of them: they are others' now."""
        self.end = min(self.end, self.at)
        self.stop = min(self.stop, self.end)

    def resync(self) -> None:
        """Go on after an exception: the job that was taken last may not have got to the caller."""
        if self.took:
            self.at = self.done
