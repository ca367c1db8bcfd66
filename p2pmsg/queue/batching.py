"""Jobs on their way into the queue: packed into one buffer while they follow one another."""

from typing import Final

from p2pmsg.queue.config import FRAME_BYTES, FRAME_JOBS, LINGER_NS, PusherConfig
from p2pmsg.queue.rules import JobRun, JobStore
from p2pmsg.wire import encoder

DUMMY: Final = 1
"""Bytes before the first value in the buffer, which keep its memory when it is emptied."""


class PushBatch:
    """A buffer of jobs that have nothing but a value.

    A job is in by one append to `ends`; `repair` cuts off what an exception left after it.

    The pusher's thread hands the batch out after `LINGER_NS`, but may have to wait for the
    interpreter, even for seconds. So `push` does it, too, after as many jobs as came within that
    time before.

    Args:
        config: of the pusher.
        sequence: the next one.
        jobs_min: how many are gathered at least before `push` hands them out. Default: one.

    Attributes:
        buffer: their values, packed, after `DUMMY` bytes.
        ends: where each ends.
        first: the sequence of the first, where there are any.
        next: the next sequence. stop: the first that `push` may not add without looking for space.
        bytes_max: how many bytes are gathered.

    """

    def __init__(self, config: PusherConfig, sequence: int, jobs_min: int = 1) -> None:
        self.buffer = bytearray(DUMMY)
        self.ends: list[int] = []
        self.first = self.next = self.stop = sequence
        self.bytes_max = min(FRAME_BYTES, config.in_flight_bytes_max // 4)
        self._opened_ns = 0
        self._jobs_min = self._pace = jobs_min

    def append(self, payload: bytes) -> None:
        """Add a job, for which there is space."""
        self.buffer += payload
        self.ends.append(len(self.buffer))
        self.next += 1
        self.stop = max(self.stop, self.next)

    def open(self, space: int, *, now_ns: int) -> None:
        """Let `push` gather jobs, as many as a frame, `space` and the linger allow."""
        self.first = self.next
        self._opened_ns = now_ns
        self.stop = self.next + max(0, min(space, FRAME_JOBS, self._pace))

    def seal(self, store: JobStore, *, now_ns: int) -> None:
        """Put what was gathered into the queue."""
        self.repair()
        ends = self.ends
        self.stop = self.next
        if not ends:
            return
        age_ns = max(1, now_ns - self._opened_ns)
        within = len(ends) * LINGER_NS // age_ns
        self._pace = max(self._jobs_min, self._pace // 2, min(within, 2 * self._pace))
        # It is there before it is no more here, so that no exception in between loses it.
        run = JobRun(self.first, bytes(self.buffer), ends, store.wall_ns(now_ns), DUMMY)
        store.push_run(run)
        self.clear()

    def repair(self) -> None:
        """Cut off what belongs to no accepted job."""
        ends = self.ends
        if ends:
            self.next = self.first + len(ends)
            del self.buffer[ends[-1] :]
        else:
            del self.buffer[DUMMY:]

    def clear(self) -> None:
        """Begin again: what was gathered is elsewhere."""
        self.ends = []
        # The buffer keeps its memory: `del` would give it back.
        encoder.encode_into(None, self.buffer, 0)
        self.first = self.stop = self.next

    def resync(self, *, is_elsewhere: bool) -> None:
        """Put all right after an exception; `is_elsewhere`: what is here was handed on already."""
        self.buffer = bytearray(self.buffer)  # of the former one the exception may have a view
        self.repair()
        if is_elsewhere or not self.ends:
            self.clear()
        self.stop = self.next
