"""What a puller has to say about jobs, and what it said that the pusher has not confirmed."""

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Final

from p2pmsg.queue import frames
from p2pmsg.queue.frames import Ranges, Refusal, Report
from p2pmsg.queue.job import Job
from p2pmsg.wire import FrameError, Kind, control_frame

UNCONFIRMED_MAX: Final = 64
"""Reports on their way; further answers wait for the next one."""


class Reports:
    """Answers by report: numbered, kept until they are confirmed, and sent again until then.

    Attributes:
        acked: jobs that were done. Other threads append meanwhile, so it is never replaced.
        refusals: those that were not, each with what is said of it.
        done: by the batch: deliveries that were done.
        released: deliveries that are given back.
        extended: for how long deliveries may take from now on, in ms.
        answers_recall: whether the pusher asked for jobs, and has no answer yet.
        confirmed: the last report that was confirmed.

    """

    def __init__(self, puller_id: int) -> None:
        self._id = puller_id
        self.acked: list[Job] = []
        self.refusals: list[tuple[Job, Refusal]] = []
        self.done: Ranges = []
        self.released: Ranges = []
        self.extended: dict[int, float] = {}
        self.answers_recall = False
        self.confirmed = self._serial = 0
        self._sent: deque[tuple[int, bytes, list[Job], Ranges]] = deque()

    @property
    def waiting(self) -> int:
        """How many answers wait to be sent."""
        answers = len(self.acked) + len(self.done) + len(self.refusals) + len(self.released)
        return answers + len(self.extended) + self.answers_recall

    @property
    def is_empty(self) -> bool:
        """Whether the pusher knows what became of all jobs that were answered for."""
        return not (self.acked or self.done or self.refusals or self._sent)

    @property
    def unconfirmed(self) -> list[bytes]:
        """The frames that were sent and not confirmed."""
        return [frame for _, frame, _, _ in self._sent]

    def make(self, *, now_ns: int) -> bytes | None:
        """Return a report of what waits; None where nothing does, or too many are on their way."""
        if len(self._sent) >= UNCONFIRMED_MAX or not self.waiting:
            return None
        # Other threads may append meanwhile: only what is copied is taken away.
        acked, done = self.acked[: frames.RANGES_MAX], self.done
        refusals = self.refusals[: frames.RANGES_MAX]
        report = Report(
            frames.ranges_of([job.delivery for job in acked]) + done,
            [refusal for _, refusal in refusals],
            self.released,
            self.answers_recall,
            list(self.extended.items()),
        )
        serial, acked_count, refused_count = self._serial + 1, len(acked), len(refusals)
        frame = control_frame(
            Kind.QUEUE_REPORT, self._id, report, sequence=serial, timestamp_ns=now_ns
        )
        jobs = acked + [job for job, _ in refusals] if refusals else acked
        self._sent.append((serial, frame, jobs, done))
        self._serial = serial
        del self.acked[:acked_count], self.refusals[:refused_count]
        self.released, self.done, self.extended = [], [], {}
        self.answers_recall = False
        return frame

    def confirm(self, serial: int) -> None:
        """Note that the pusher has the reports up to this one."""
        if serial > self._serial:
            raise FrameError("serial")
        while self._sent and self._sent[0][0] <= serial:
            self._sent.popleft()
        self.confirmed = max(self.confirmed, serial)

    def jobs(self) -> list[Job]:
        """Return the jobs of which the pusher does not know what became of them."""
        sent = [job for _, _, jobs, _ in self._sent for job in jobs]
        return [*sent, *self.acked, *(job for job, _ in self.refusals)]

    def deliveries(self) -> Iterator[tuple[int, int]]:
        """Return the deliveries that are done by the batch, and not confirmed."""
        return chain(self.done, *(done for _, _, _, done in self._sent))

    def forget(self) -> None:
        """Drop all: nobody wants to know it."""
        self.acked.clear()
        self.refusals.clear()
        self.done, self.released = [], []
        self._sent.clear()
        self.confirmed = self._serial

    def resync(self) -> None:
        """Say nothing twice after an exception that came somewhere in `make`."""
        if self._sent:
            serial, _, jobs, done = self._sent[-1]
            self._serial = max(self._serial, serial)
            reported = {*map(id, jobs)}
            while self.acked and id(self.acked[0]) in reported:
                del self.acked[0]
            while self.refusals and id(self.refusals[0][0]) in reported:
                del self.refusals[0]
            self.done = [each for each in self.done if each not in done]
