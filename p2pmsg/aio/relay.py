"""The asyncio relay."""

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from p2pmsg.aio.loop import LoopDriver
from p2pmsg.aio.serving import SLICE_NS, LoopRounds, LoopServingPeer
from p2pmsg.checks import time_to_wait, whole
from p2pmsg.errors import LogFailedError
from p2pmsg.sync.relaying import LOG_RETRY_S, RelayingPeer
from p2pmsg.sync.sending import UNSYNCED_MAX

if TYPE_CHECKING:
    pass

_RETRY_S: Final = 0.002
_MOVED_AT_ONCE: Final = 32
"""Frames that are kept, and sent on, before it is looked whether the round has lasted too long."""


class Relay(LoopServingPeer, RelayingPeer):
    """Receives streams and serves them on, under their own sessions and sequences.

    It is `p2pmsg.Relay` for asyncio, with the same arguments, and belongs to the event loop in
    which it is made. What its log and its metadata wait for is waited for in the loop's executor;
    what opening them waits for as well, by `await Relay.open(…)`.

    The arguments are `upstreams`, `endpoint`, `name`, `topics`, `replay_bytes` (bytes), `on_full`,
    `stall_timeout` (seconds), `recovery_endpoint`, `log`, `config`, `intake` and `security`,
    with the same defaults.

    **Without asyncio** (trio, a loop of your own): make it where no asyncio loop runs. Then wait
    until one of `wait_fds()` is readable or `next_deadline` has come, and call `turn()`. What is to
    be awaited is begun with `begin`, as `begin(peer.close())`; at the end call `close_now()`.

    Raises:
        Others: as `p2pmsg.Relay`.

    """

    _rounds: LoopRounds

    def _begin(self) -> None:
        self._writing: asyncio.Future[None] | None = None
        self._rounds = self._make_rounds()
        fds = set(self._receiving.fds())
        self._intake = LoopDriver(
            self._described, self._turn, fds, self.close_now, self._driver.loop
        )
        self._start()
        self._intake.start()

    async def wait_for_streams(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until so many streams are served, as `p2pmsg.Relay.wait_for_streams` does.

        Args:
            count: of streams. Default 1.
            timeout: for how long, in seconds. Default None: without end.

        Raises:
            TimeoutError: not so many came in time.
            ClosedError: the relay is closed.
            RuntimeError: it belongs to another event loop.

        """
        self._check_caller()
        whole("count", count, 0)
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)

        def are_there() -> bool:
            return self._lock.run(self._count_streams) >= count

        if self._closed or not await self._intake.wait_for(are_there, timeout):
            self._refuse_wait_for_streams(count, timeout)

    def _turn(self) -> float:
        """Receive, keep and send on, for a while."""
        try:
            wait_s = self._take()
            self._after_move()
        except LogFailedError as error:
            self._on_log_failure(error)
            wait_s = LOG_RETRY_S
            self._receiving.settle()  # else the descriptors stay readable
        except Exception:
            self._receiving.resync()
            raise
        self._write_metadata()
        return wait_s

    def _take(self) -> float:
        receiving = self._receiving
        end_ns = time.monotonic_ns() + SLICE_NS
        while True:
            now_ns = time.monotonic_ns()
            came = receiving.round(now_ns)
            if self._is_held_up:
                receiving.settle()
                return _RETRY_S
            moved, _ = self._move_some(_MOVED_AT_ONCE, writes=False)
            if not (came or moved or receiving.settle()):
                self._intake.watch(set(receiving.fds()))
                return max(0, receiving.next_deadline_ns() - now_ns) / 1e9
            if now_ns > end_ns:
                return 0.0

    @property
    def _is_held_up(self) -> bool:
        """Whether its own subscribers have no space: what has come waits until they have."""
        return bool(self._core.outbox) or len(self._core.unsynced) >= UNSYNCED_MAX

    def _write_metadata(self) -> None:
        metadata = self._core.metadata
        if metadata is None or not (self._writing is None or self._writing.done()):
            return
        content = metadata.take(now_ns=time.monotonic_ns())
        if content is not None:
            self._writing = self._rounds.executor.call(partial(metadata.store, content))

    def _begin_close(self) -> None:
        self._intake.stop()
        self._close_receiving()
        self._lock.run(self._core.begin_close, now_ns=time.monotonic_ns())

    def _close_opened(self, opening: "asyncio.Future[None]") -> None:
        if not opening.cancelled() and opening.exception() is None:
            self._close_receiving()
        super()._close_opened(opening)

    def _forget(self) -> None:
        super()._forget()
        self._is_over = True
