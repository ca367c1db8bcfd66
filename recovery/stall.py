"""What a publisher does when a send queue is full.

::

           blocked, stall_timeout waited in vain
    FLOWING ───────────────────────────────────▶ SHEDDING ──┐ every stall_timeout one
       ▲                                            │   ▲   │ attempt that waits
       └──────────────── succeeded ─────────────────┘   └───┘ stall_timeout / 4
"""

from recovery.checks import to_ns


class StallGuard:
    """Decides, each time a send would block, how long it may wait.

    The sender asks `blocked` after an attempt that would block: above 0, it waits at most so long
    for space and tries again; 0, it sends this frame in the
    mode in which full queues drop. `succeeded` is for attempts that found space everywhere, never
    for a send in the dropping mode.

    Args:
        stall_timeout: longest time in all that a send waits for space before frames are shed, in s.
            While shedding one attempt is made every `stall_timeout`; it may wait for a quarter of
            that, so that a dead reader costs the publisher at most a fifth of its time.

    Attributes:
        flowing: whether the sender waits; else it sheds.
        stalls: times that a send began to wait while flowing.
        frames_shed: frames sent in the dropping mode, that is times that `blocked` returned 0.
        stalled_ns: time spent waiting, in ns.

    """

    def __init__(self, stall_timeout: float) -> None:
        self._stall_ns = max(1, to_ns(stall_timeout))
        self._probe_ns = max(1, to_ns(stall_timeout / 4))
        self.flowing = True
        self._stalled_since_ns: int | None = None
        self._wait_since_ns: int | None = None
        self._probe_start_ns = 0
        self._probe_end_ns: int | None = None
        self.stalls = self.frames_shed = self.stalled_ns = 0

    def blocked(self, *, now_ns: int) -> int:
        """Return how long the sender may wait now, in ns; 0: shed this frame."""
        self._stop_waiting(now_ns)
        wait_ns = self._wait_flowing_ns(now_ns) if self.flowing else self._wait_shedding_ns(now_ns)
        if wait_ns > 0:
            self._wait_since_ns = now_ns
        else:
            self.frames_shed += 1
        return wait_ns

    def succeeded(self, *, now_ns: int) -> None:
        """Note an attempt that found space: all is flowing. Cheap while it is."""
        if self._stalled_since_ns is None:
            return
        self._stop_waiting(now_ns)
        self.flowing = True
        self._stalled_since_ns = None
        self._probe_end_ns = None

    def _wait_flowing_ns(self, now_ns: int) -> int:
        if self._stalled_since_ns is None:
            self._stalled_since_ns = now_ns
            self.stalls += 1
        left_ns = self._stalled_since_ns + self._stall_ns - now_ns
        if left_ns <= 0:
            self.flowing = False
            self._end_probe(now_ns)
        return max(0, left_ns)

    def _wait_shedding_ns(self, now_ns: int) -> int:
        if self._probe_end_ns is None:
            if now_ns < self._probe_start_ns:
                return 0
            self._probe_end_ns = now_ns + self._probe_ns
        left_ns = self._probe_end_ns - now_ns
        if left_ns <= 0:
            self._end_probe(now_ns)
        return max(0, left_ns)

    def _end_probe(self, now_ns: int) -> None:
        self._probe_end_ns = None
        self._probe_start_ns = now_ns + self._stall_ns

    def _stop_waiting(self, now_ns: int) -> None:
        if self._wait_since_ns is not None:
            self.stalled_ns += max(0, now_ns - self._wait_since_ns)
            self._wait_since_ns = None
