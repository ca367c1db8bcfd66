"""Waiting awake: a thread that waits for an answer looks for it before it sleeps.

The kernel wakes a sleeping thread late, with cold caches, and perhaps on another core: half of a
ping-pong's round trip. Aeron's idle strategies and Linux's haltpoll governor wait awake for the
same reason, and the governor decides as it is done here: by how long the last waits were.
"""

import time
from collections.abc import Callable
from typing import Final

from transports.platform import sched_yield

BUSY_WAIT_US: Final = 200.0
"""How long a wait looks by default, in µs: twice as long as an answer takes that comes from another
process of this machine, and as long as KVM and haltpoll look."""
_REST_MAX: Final = 16
"""How many waits sleep at most after looks in vain. Two ends that both sleep may take longer than
the window where looking would take half of it: one of them has to try, and at that it succeeds."""


class Turn:
    """Whose turn it is in this process's talk with others; all its sockets share one.

    Attributes:
        is_theirs: set by the sender of a message that stands alone, and so may be answered.

    """

    __slots__ = ("is_theirs",)

    def __init__(self) -> None:
        self.is_theirs = False


TURN: Final = Turn()


class BusyWait:
    """Whether a wait looks first, and the looking.

    It looks when this process has sent a message since it last looked. So a process that takes
    turns with another looks, and one that only consumes sleeps. After a look in vain the next wait
    sleeps, and after each further one twice as many, 16 at most; a wait that was over within the
    window ends that. So answers that are slow cost one window in 17 waits. After each look the core
    is left to other threads, so that two ends on one core do not hinder each other.

    ::

        asleep, n waits to go ──n waits──▶ looks ──in vain──▶ asleep, twice the n of before
              └─────a wait within the window─▲ └─▲ something came
    """

    def __init__(
        self,
        window_us: float,
        has_come: Callable[[], object],
        *,
        turn: Turn = TURN,
        now_ns: Callable[[], int] = time.monotonic_ns,
        yield_core: Callable[[], object] | None = sched_yield,
    ) -> None:
        """Sleep in the first wait.

        Args:
            window_us: how long to look at most, in µs; 0 never looks.
            has_come: returns whether something is there, without waiting.
            turn: whose turn it is.
            now_ns: the clock.
            yield_core: leaves the core to others; where the system has no such call it never looks.

        """
        self._rest = self._rest_last = 1
        self._window_ns = round(window_us * 1000)
        self._has_come = has_come
        self._turn = turn
        self._now_ns = now_ns
        self._yield_core = yield_core if self._window_ns else None
        self._begun_ns = 0

    def begin(self) -> bool:
        """Look, if it is worth it; what is still not there is then to be slept for.

        Returns whether it has looked, and something has come.
        """
        now_ns = self._now_ns
        self._begun_ns = begun_ns = now_ns()
        turn, yield_core = self._turn, self._yield_core
        if not turn.is_theirs or yield_core is None:
            return False
        if self._rest:
            self._rest -= 1
            return False
        turn.is_theirs = False
        until_ns = begun_ns + self._window_ns
        while not self._has_come():
            if now_ns() >= until_ns:
                self._rest = self._rest_last = min(max(1, 2 * self._rest_last), _REST_MAX)
                return False
            yield_core()
        return True

    def end(self) -> None:
        """Note that something came."""
        if self._now_ns() - self._begun_ns < self._window_ns:
            self._rest, self._rest_last = 0, 0
