"""Jobs on their way into the queue: packed into one buffer while they follow one another."""

import time
from typing import Final

from p2pmsg.queue.config import FRAME_BYTES, FRAME_JOBS, LINGER_S, PusherConfig
from p2pmsg.queue.rules import JobRun, JobStore
from p2pmsg.wire import encoder
from recovery.checks import to_ns

DUMMY: Final = 1
"""Bytes before the first value in the buffer, which keep its memory when it is emptied."""


class Gathered:
    """A buffer of jobs that have nothing but a value.

    A job is in by one append to `ends`; `repair` cuts off what an exception left after it.

    Attributes:
        buffer: their values, packed, after `DUMMY` bytes.
        ends: where each ends.
        first: the sequence of the first, where there are any.
        next: the next sequence. stop: the first that `push` may not add without looking for space.
        bytes_max: how many bytes are gathered.

    """

    def __init__(self, sequence: int, bytes_max: int) -> None:
        self.buffer = bytearray(DUMMY)
        self.ends: list[int] = []
        self.first = self.next = self.stop = sequence
        self.bytes_max = bytes_max

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


class PushBatch(Gathered):
    """Gathers jobs that are acknowledged one by one.

    The pusher's thread hands the batch out after `LINGER_S`, but may have to wait for the
    interpreter, even for seconds. So `push` does it, too, after as many jobs as came within that
    time before.
    """

    def __init__(self, store: JobStore, config: PusherConfig, sequence: int) -> None:
        super().__init__(sequence, FRAME_BYTES)
        self._store = store
        self._config = config
        self._linger_ns = to_ns(LINGER_S)
        self._opened_ns = 0
        self._pace = 1

    def open(self, in_flight_max: int) -> None:
        """Let `push` gather jobs, as many as a frame, the queue's limits and the linger allow."""
        config, store = self._config, self._store
        space = in_flight_max - store.in_flight
        if store.bytes + self.bytes_max > config.in_flight_bytes_max:
            space = 0
        self.first = self.next
        self._opened_ns = time.monotonic_ns()
        self.stop = self.next + max(0, min(space, FRAME_JOBS, self._pace))

    def seal(self) -> None:
        """Put what was gathered into the queue."""
        self.repair()
        ends = self.ends
        self.stop = self.next
        if not ends:
            return
        age_ns = max(1, time.monotonic_ns() - self._opened_ns)
        within = len(ends) * self._linger_ns // age_ns
        self._pace = max(1, self._pace // 2, min(within, 2 * self._pace))
        # It is there before it is no more here, so that no exception in between loses it.
        self._store.push_run(JobRun(self.first, bytes(self.buffer), ends, time.time_ns(), DUMMY))
        self.clear()
