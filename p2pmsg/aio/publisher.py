"""The asyncio publisher."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from p2pmsg.aio.serving import LoopRounds, LoopServingPeer
from p2pmsg.errors import ClosedError, LogFailedError
from p2pmsg.sync.publishing import PublishingPeer

_YIELD_NS: Final = 1_000_000
"""A task that drains again and again, and never has to wait, lets others run so often."""


class Publisher(LoopServingPeer, PublishingPeer):
    """Sends messages to every subscriber, and keeps them for those who missed some.

    It is `p2pmsg.Publisher` for asyncio, with the same arguments, and belongs to the event loop in
    which it is made. `publish`, `publish_many` and `flush` never wait: what a slow subscriber has
    no space for stays in memory, and `drain` waits until it has left, as with a `StreamWriter`.
    Where more than 16 MiB or 4,096 frames wait, `publish` raises `SendQueueFullError`. ::

        async with p2pmsg.aio.Publisher("tcp://127.0.0.1:9000") as publisher:
            publisher.publish("trades", {"price": 1.5})
            await publisher.drain()

    Making it binds, and opens its log. What that waits for (a host's name, a log that was not
    closed) the loop waits for, too; `await Publisher.open(…)` has the loop go on.

    The arguments are those of `p2pmsg.Publisher`: `endpoint`, `name`, `replay_bytes` (bytes),
    `on_full`, `stall_timeout` (seconds), `recovery_endpoint`, `log`, `config` and
    `security`, with the same defaults. With `on_full="block"` frames are kept until a subscriber
    has space, or has been slow for `stall_timeout`; with `LogConfig(fsync="always")` messages
    are on the disk after `drain`.

    **Without asyncio** (trio, a loop of your own): make it where no asyncio loop runs. Then wait
    until one of `wait_fds()` is readable or `next_deadline` has come, and call `turn()`. What is to
    be awaited is begun with `begin`, as `begin(peer.close())`; at the end call `close_now()`.

    Raises:
        Others: as `p2pmsg.Publisher`.

    """

    _rounds: LoopRounds

    def _begin(self) -> None:
        self._yielded_ns = 0
        self._publish_alone = self._publish_alone_here
        self._rounds = self._make_rounds()
        self._start()

    async def drain(self) -> None:
        """Wait until what was published has left, as far as subscribers have space for it.

        With a log with `fsync="always"`, wait until all of it is on the disk, too. A task
        that publishes all the time lets others run here.

        Raises:
            LogFailedError: it could not be brought to the disk. It may be sent all the same when
                the log can be written again.
            ClosedError: the publisher is closed, or was meanwhile.
            RuntimeError: it belongs to another event loop.

        """
        self._check_caller()
        if self._unusable is not None:
            raise ClosedError("the publisher", self._unusable)
        core, outgoing, began_ns = self._core, self._outgoing, time.monotonic_ns()
        if self._is_synced:
            await self._drain_to_disk()
        if outgoing.waits:
            await self._driver.wait_for(lambda: not outgoing.waits or self._closed, None)
            if outgoing.waits and self._closed:  # else another frame came after it was empty
                raise ClosedError("the publisher")
        elif began_ns - self._yielded_ns > _YIELD_NS:
            await asyncio.sleep(0)
            self._yielded_ns = time.monotonic_ns()
        if core.log is not None and core.log.broken is not None:
            raise LogFailedError(core.log.broken)

    async def _drain_to_disk(self) -> None:
        commits = self._rounds.acknowledgements
        number = commits.ask()
        results: list[str | None] = []

        def has_ended() -> bool:
            if commits.ended >= number and not results:
                results.append(commits.failure)
            return bool(results)

        self._rounds.wake()
        if not await self._driver.wait_for(has_ended, None):
            raise ClosedError("the publisher", "it was closed before it was on the disk")
        if results[0] is not None:
            raise LogFailedError(results[0])

    def _publish_alone_here(self, *arguments: Any) -> int:
        if self._closed:
            return -1
        self._driver.check_loop()
        return self._core.publish_alone(*arguments)

    def _send_rest(self, is_done: Callable[[], bool] | None = None) -> None:
        self._rounds.wake()

    def _wait_for_disk(self) -> None:
        """Return at once: `drain` waits."""

    def _forget(self) -> None:
        super()._forget()
        self._is_over = True
