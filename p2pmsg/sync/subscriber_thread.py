"""The subscriber's I/O, by the thread that waits in `receive`, or else by its own thread."""

import threading
import time

import transports
from p2pmsg.sync.subscriber_io import NEVER_NS, SubscriberIO
from transports.own_log import own_log as _log

_MS = 1_000_000
_TICK_S = 0.01
_IDLE_TICK_S = 0.05
"""How often the thread looks at the sockets while nobody waits: often while frames come, and else
20 times a second, which costs 0.3 % of a core."""
_TURN_NS = 3 * _MS
"""How long it reads then at most: a third of the time, and some 300 frames."""
_DATAGRAM_TICK_S = 0.002
"""The same where a line is UDP: nobody holds the sender up while the kernel's buffer fills."""
_LATE_NS = _MS
"""How late the thread may be until a reader that takes frame after frame sleeps, to let it run."""


class SubscriberDriver(SubscriberIO):
    """Has a thread read while nobody waits."""

    def start(self) -> None:
        """Start the thread."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="p2pmsg-subscriber", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Announce it to the publishers, end the thread, close the sockets."""
        self.stopping = True
        self._ended.set()
        self._thread.join(5.0)
        super().stop()

    def _run(self) -> None:
        busy_s = _DATAGRAM_TICK_S if self._has_datagrams else _TICK_S
        idle_s = 5 * _DATAGRAM_TICK_S if self._has_datagrams else _IDLE_TICK_S
        commits = self.commits
        tick_max_s = idle_s if commits is None else min(idle_s, commits.tick_s)
        tick_s = busy_s
        while not self._wait_for_turn(min(tick_s, tick_max_s)):
            tick_s = idle_s
            if commits is not None:
                commits.handle_timer(time.monotonic_ns())
            self.check_answers(time.monotonic_ns())
            if time.monotonic_ns() - self.last_round_ns < busy_s * 1e9 / 2:
                continue
            if not self.io_lock.acquire(blocking=False):
                continue
            try:
                end_ns = time.monotonic_ns() + _TURN_NS
                while time.monotonic_ns() < end_ns:
                    before = self._core.frames_received
                    self.round(0)
                    if self._core.frames_received == before or self._ended.is_set():
                        break
                    tick_s = busy_s
                self.last_round_ns = 0  # nobody waits: look again at the next tick
            except transports.ClosedError:
                return
            except Exception:  # the thread must go on: without it gaps are not asked for
                self.interrupted = True
                _log.exception("the subscriber's background thread failed; it goes on")
            finally:
                self.io_lock.release()

    def _wait_for_turn(self, tick_s: float) -> bool:
        """Wait for the thread's turn; True: it ends."""
        if not self._has_datagrams:
            self.late_ns = time.monotonic_ns() + int(tick_s * 1e9) + _LATE_NS
        if self._ended.wait(tick_s):
            self.late_ns = NEVER_NS
            return True
        return False
