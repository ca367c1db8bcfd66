"""What publishers and relays have in common in an event loop: their rounds, waiting, closing."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from p2pmsg.aio.closing import ClosesInLoop
from p2pmsg.aio.in_order import InOrder
from p2pmsg.aio.loop import LoopDriver
from p2pmsg.aio.turns import TakesTurns
from p2pmsg.checks import time_to_wait, whole
from p2pmsg.errors import LogFailedError
from p2pmsg.publisher.steps import Steps
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.sending import Outgoing
from p2pmsg.sync.serving import (
    BUSY_NS,
    MS,
    RETRY_NS,
    ServingPeer,
    ServingRounds,
    linger_ms,
)
from transports.own_log import own_log as _log

SLICE_NS: Final = 2 * MS
"""How long a round sends at most: other tasks run in between. It answers for half as long."""
_RETRY_S: Final = RETRY_NS / 1e9
_PACED_S: Final = 0.0003
"""A pace that lets something go so soon is waited for without a timer, which has 1 ms at least."""
_IDLE_S: Final = 1.0
_PATIENCE_S: Final = 5.0
"""How long closing may take."""


class LoopRounds(ServingRounds):
    """The rounds of a publisher or relay, taken in its event loop.

    What waits for the disk is done in the loop's executor, one call at a time. Meanwhile nothing
    is answered, as by the thread that would wait itself; messages are sent all the same.

    Attributes:
        driver: has `turn` called.
        job: what runs in the executor, or None.
        executor: makes calls that wait for the disk.

    """

    _subscription_calls = 1
    _serving_ns = SLICE_NS // 2

    driver: LoopDriver
    executor: InOrder

    def _prepare(self) -> None:
        self._steps: Steps[None] | None = None
        self._watches_sender = True
        self.job: asyncio.Future[Any] | None = None
        self._outgoing.never_wait(SLICE_NS)

    def start(self, driver: LoopDriver) -> None:
        """Begin to take them, by a driver that is not started yet."""
        self.driver = driver
        self.executor = InOrder(driver.loop)
        driver.start()
        self.driver.watch(self._fds())

    def wake(self) -> None:
        """Have a turn taken in the loop's next round."""
        self.driver.wake()

    def stop(self) -> None:
        """End them, before the sockets are closed."""
        self.driver.stop()

    def _fds(self) -> Iterable[int]:
        sender = self._sender
        fds = {self._server.fileno(), self._server.connections.fd}
        fds.add(sender.connections.fd)
        if self._watches_sender:
            fds.add(sender.fileno())
        return fds

    def turn(self) -> float:
        """Take a round, or go on with the one that waited for the disk."""
        if self.job is not None and not self.job.done():
            self._take_subscriptions()
            self._server.has_message()  # else the descriptor stays readable
            self._send_waiting()
        else:
            self._go_on()
        # What is signalled there while messages are sent is space, which sending finds by itself.
        busy = time.monotonic_ns() - self._core.sealed_ns < BUSY_NS
        watches_sender = not busy or self._outgoing.waits
        if watches_sender != self._watches_sender:
            self._watches_sender = watches_sender
            self.driver.watch(self._fds())
        wait_s = self._wait_s()
        return min(wait_s, BUSY_NS / 1e9) if busy else wait_s

    def _go_on(self) -> None:
        """Run the round until it is through, or has something to wait for."""
        steps, job = self._steps, self.job
        self._steps = self.job = None
        try:
            if steps is None or job is None:
                steps = self._round()
                request = next(steps)
            elif (error := _error_of(job)) is not None:
                request = steps.throw(error)
            else:
                request = steps.send(job.result())
        except StopIteration:
            return
        self._steps = steps
        self.job = self.executor.call(request.call)
        self.job.add_done_callback(self._wake_after)

    def _wake_after(self, job: "asyncio.Future[Any]") -> None:
        if self.driver.stopping:
            _error_of(job)  # asked for, so that nothing is said of it
        else:
            self.wake()

    def _wait_s(self) -> float:
        core = self._core
        if self.job is not None:
            return _RETRY_S if self._outgoing.waits or core.control else _IDLE_S
        if self._outgoing.has_more or self._has_more_subscriptions or self._server.has_message():
            return 0.0
        if self._outgoing.waits:
            return _RETRY_S
        return self._deadline_ms() / 1000


def _error_of(job: "asyncio.Future[Any]") -> BaseException | None:
    if job.cancelled():
        return asyncio.CancelledError()
    return job.exception()


class LoopServingPeer(ServingPeer, TakesTurns, ClosesInLoop):
    """A publisher or relay in an event loop: waits for subscribers, and closes.

    The subclass makes `_rounds`.
    """

    _driver: LoopDriver
    _outgoing: Outgoing
    _rounds: LoopRounds
    _log_closing: "asyncio.Future[None] | None" = None
    _is_over = True
    """Whether all is closed; from the beginning to the end of its work it is not."""

    @property
    def _is_left_open(self) -> bool:
        return not self._is_over

    @classmethod
    async def open(cls, *arguments: Any, **options: Any) -> Self:
        """Make one as `cls(…)` does, and let the loop go on while that waits.

        For a log that was not closed, so that its end is read, and for the names of hosts.

        Args:
            arguments: as for the class.
            options: as for the class.

        Raises:
            RuntimeError: no event loop is running.
            Others: as the class.

        """
        made = cls.__new__(cls)
        made._opens_later = True
        cls.__init__(made, *arguments, **options)
        opening = asyncio.get_running_loop().run_in_executor(None, made._opening)
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(made._close_opened)
            raise
        made._begin()
        return made

    def _close_opened(self, opening: "asyncio.Future[None]") -> None:
        """Close what was opened for a call that was cancelled."""
        if _error_of(opening) is None:
            self._closed = True
            self._close_sockets(0)
            closing = self._driver.loop.run_in_executor(None, self._close_log)
            closing.add_done_callback(self._say_failure)

    def _make_lock(self) -> PublishLock:
        """Return a lock that refuses other threads; raise where no event loop runs."""
        self._described = f"the {self._kind} {self._name!r}"
        self._driver = LoopDriver(
            self._described, lambda: self._rounds.turn(), at_loop_end=self.close_now, by_caller=True
        )
        return PublishLock(ident=self._refuse_thread)

    def _make_rounds(self) -> LoopRounds:
        return LoopRounds(self._core, self._sender, self._server, self._lock, self._outgoing)

    def revoke(self, who: str) -> list[str]:
        """Do as `revoke` of `p2pmsg.Publisher` does; it never waits.

        Args:
            who: the name of a peer that is known, or its public key as text.

        Returns:
            The public keys that were revoked, as text.

        Raises:
            ConfigError, ClosedError: as there.
            RuntimeError: it belongs to another event loop.

        """
        self._check_caller()
        return super().revoke(who)

    def _start(self) -> None:
        self._is_over = False
        self._rounds.start(self._driver)

    def _refuse_thread(self) -> int:
        self._driver.check_loop()
        return threading.get_ident()

    def _check_caller(self) -> None:
        self._driver.check_loop()

    async def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` subscribers receive, as `p2pmsg.Publisher.wait_for_subscribers`.

        Args:
            count: how many. Default 1.
            timeout: for how long, in seconds. Default None: without end.

        Raises:
            TimeoutError: not so many came in time.
            ClosedError: it is closed, or was meanwhile.
            RuntimeError: it belongs to another event loop.

        """
        self._check_caller()
        whole("count", count, 0)
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        core = self._core
        if not self._closed:
            await self._driver.wait_for(lambda: core.joined >= count or self._closed, timeout)
        if self._closed or core.joined < count:
            self._refuse_wait(count, timeout)

    async def close(self, timeout: float | None = _PATIENCE_S) -> None:
        """Take no more messages, send what is left, wait until every subscriber has it, and close.

        A call that is cancelled leaves it half closed: it accepts nothing, and goes on to send and
        to answer. Call it again to close it.

        Args:
            timeout: how long subscribers may take that still repair gaps, in seconds; one that has
                not been heard of for `subscriber_timeout` is not waited for. Default, and with
                None, 5.0. The others are counted in `stats().undelivered`.

        Raises:
            LogFailedError: not everything could be written to the log.
            RuntimeError: it belongs to another event loop.

        """
        patience_s = _PATIENCE_S if timeout is None else time_to_wait("timeout", timeout)
        await self._close(patience_s)

    async def _close(self, timeout: float, is_through: Callable[[], bool] | None = None) -> None:
        """Close as `close` does, but wait for `is_through` instead, within the same time."""
        if self._is_over:
            return
        self._check_caller()
        if not self._closed:
            self._lock.refuse_inside()
            self._closed = True
            self._begin_close()
            self._driver.notify()
        core, outgoing = self._core, self._outgoing
        through = is_through or (lambda: core.is_complete)
        self._rounds.wake()
        await self._driver.wait_for(lambda: through() and not outgoing.waits, timeout)
        self._stop(linger_ms(timeout))
        if self._log_closing is None:
            self._log_closing = self._rounds.executor.call(self._close_log)
        await asyncio.wait([self._log_closing])
        if self._is_over:
            return
        self._is_over = True
        failure = self._log_closing.exception()
        if failure is not None and not isinstance(failure, LogFailedError):
            raise failure
        self._check_delivered(failure)

    def _stop(self, linger_ms: int) -> None:
        """End the rounds and close the sockets; it may be called again."""
        if not self._driver.stopping:
            self._on_undelivered()
            self._rounds.stop()
            self._lock.run(self._close_sockets, linger_ms)

    def close_now(self) -> None:
        """Close without waiting for subscribers: for the end of the loop, which calls it.

        What is gathered is sent as far as there is space. A log is closed in the executor; where
        that fails it is logged.
        """
        if self._is_over:
            return
        try:
            if not self._closed:
                self._closed = True
                self._begin_close()
                self._lock.run(self._outgoing.send_now)
        finally:
            self._is_over = True
            self._stop(linger_ms(_PATIENCE_S))
            if self._log_closing is None:
                self._log_closing = self._rounds.executor.call(self._close_log)
                if self._log_closing.done():
                    self._say_failure(self._log_closing)
                else:
                    self._log_closing.add_done_callback(self._say_failure)

    def _say_failure(self, closing: "asyncio.Future[None]") -> None:
        error = _error_of(closing)
        if error is not None:
            _log.error("%r: its log was closed, but %s", self, error)
