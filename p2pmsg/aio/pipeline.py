"""The pipeline's pusher and puller for asyncio."""

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Self

import transports
from p2pmsg.aio.closing import ClosesInLoop
from p2pmsg.aio.loop import LoopDriver
from p2pmsg.aio.turns import TakesTurns
from p2pmsg.aio.waiting import Pace, Waiters, in_executor, is_looked_up, until_of
from p2pmsg.checks import at_least, checked, time_to_wait, whole
from p2pmsg.errors import ClosedError, SendQueueFullError, translated
from p2pmsg.message import T_co
from p2pmsg.queue.pipeline.config import PipelineConfig
from p2pmsg.queue.pipeline.link import Watches
from p2pmsg.queue.pipeline.puller import PipelineJob, PipelinePullerBase
from p2pmsg.queue.pipeline.pusher import SEALING_BYTES, PipelinePusherBase
from p2pmsg.sync.lifecycle import close_in_children, is_inherited

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_NOT_OPEN: Final = "it is not open yet; `async with` opens it, or `await open()`"
_CLOSED: Final = "it is closed"
_OPENED: Final = ("_server", "_shares")
"""What is there only when it is open."""
_running_loop: Final = asyncio._get_running_loop
_monotonic_ns = time.monotonic_ns


class PipelinePusher(PipelinePusherBase, TakesTurns, ClosesInLoop):
    """Deals jobs that need no acknowledgement one by one; `aio.Pusher(…, mode="pipeline")`.

    As `p2pmsg.queue.PipelinePusher`, without a thread: the event loop does the work. `push` never
    waits; `await drain()` waits for space, and `await join()` until every job is confirmed.

    Where the endpoint has a name for an address (other than `localhost`), it is bound by
    `async with` or by `open`, and not when it is made, since looking it up may take long.

    Args:
        endpoint: where to bind: `tcp://HOST:PORT` (port 0 picks one), `ipc://PATH` or
            `inproc://NAME`. The PUSH sockets are bound next to it.
        name: who pushes, for people. Default: the endpoint.
        config: all settings. `on_full` is `"raise"` here, whatever it says.
        security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
            known to each other. Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or the endpoint is none.
        BindError: the endpoint could not be bound; raised by `open` where that binds it.

    """

    @checked()
    def __init__(
        self,
        endpoint: str,
        *,
        name: str | None = None,
        config: PipelineConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        self._driver: LoopDriver = LoopDriver(
            f"the pusher at {endpoint}", self._turn, at_loop_end=self.close_now, by_caller=True
        )
        with translated():
            self._parsed = transports.parse_endpoint(endpoint)
        self._loop = self._driver.loop
        self._pace = Pace()
        self._spaces = Waiters(self._loop)
        self._refused_bytes = 0
        self._opening = asyncio.Lock()
        super().__init__(endpoint, name=name, config=config, security=security)

    # --------------------------------------------------------------------------------- public

    @property
    def endpoint(self) -> str:
        """Where pullers connect to, with the port that was picked once it is open."""
        return self._shares.endpoint if self._is_made else self._place

    async def open(self) -> Self:
        """Bind the endpoint, where that is still to be done.

        Raises:
            BindError: the endpoint could not be bound.
            ClosedError: the pusher is closed.

        """
        self._driver.check_loop()
        async with self._opening:
            if not self._is_made:
                if self._closed:
                    raise ClosedError("the pusher")
                self._take_over(await in_executor(self._open, lambda server: server.close()))
        return self

    def push(self, value: Any) -> int:  # type: ignore[override]  # no `timeout`: it never waits
        """Accept one job and return its sequence; it never waits.

        Args:
            value: any msgpack value: bytes, str, int (64 bits), float, bool, None, list, dict.

        Raises:
            MessageError: it cannot be pushed as it is; `MessageTooLargeError` for its size.
            SendQueueFullError: `buffer_bytes_max` bytes are not confirmed. One push right after an
                `await drain()` never gets it, where the job has half of them at most, or as much as
                one that was refused before.
            ClosedError: the pusher is closed, or not open yet.
            RuntimeError: it was made in another event loop.

        """
        if _running_loop() is not self._loop:
            self._driver.check_loop()
        return super().push(value)

    def push_many(self, values: Iterable[Any]) -> list[int]:
        """Push each of `values`, as `push` does, and return their sequences; it never waits.

        Args:
            values: the jobs. Where one is refused, those before it were accepted.

        Raises:
            MessageError, SendQueueFullError, ClosedError, RuntimeError: as `push`.

        """
        return [self.push(value) for value in values]

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until there is space for a job of any size, or of half of `buffer_bytes_max`.

        After one larger than that was refused, until there is space for as large a one.

        It returns at once while there is, except that it lets other tasks run every 2 ms. It does
        not wait until jobs are done; `join` does.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: there was no space in time.
            ClosedError: the pusher is closed.
            RuntimeError: it was made in another event loop.

        """
        self._check_caller()
        until = until_of(self._loop, timeout)
        if self._pace.is_over():
            await self._pace.rest()
        if not (self._spaces or not self._space()):
            return
        while True:
            in_time = await self._spaces.wait(until)
            if self._spaces.is_closed:
                raise ClosedError("the pusher")
            if not in_time:
                limit = f"buffer_bytes_max ({self._config.buffer_bytes_max}) bytes"
                raise TimeoutError(f"{limit} were not confirmed for {timeout} s")
            if self._space():
                return

    async def join(self, timeout: float | None = None) -> None:
        """Wait until every job is confirmed: what `drain` of the threaded one does.

        What it waits for is logged after 5 s, and then once a minute.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: some were not confirmed in time.
            ClosedError: the pusher is closed.
            RuntimeError: it was made in another event loop.

        """
        self._check_caller()
        if timeout is not None:
            at_least("timeout", timeout, 0)
        if not await self._wait_until_empty(timeout):
            raise TimeoutError(f"{self._in_flight} jobs were not confirmed within {timeout} s")

    async def close(self, timeout: float | None = 5.0) -> None:
        """Wait until every job is confirmed, and close; other tasks that wait get `ClosedError`.

        What it waits for is logged after 5 s, and then once a minute.

        Args:
            timeout: how long to wait, in seconds; None: without end. What is not confirmed by then
                is lost, unless a puller has it, and said to be. Default 5.

        Raises:
            RuntimeError: it was made in another event loop, which is not closed.

        """
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        if self._closed:
            return
        if not self._driver.stopping:
            self._driver.check_loop()
        self._closed = True
        self._spaces.close()
        try:
            if self._is_made and not self._driver.stopping:
                await self._wait_until_empty(timeout)
        finally:
            self.close_now()

    def close_now(self) -> None:
        """Close without waiting for pullers, also where its event loop has ended."""
        if self._unusable == _CLOSED:
            return
        self._closed, self._unusable = True, _CLOSED
        self._spaces.close()
        self._driver.stop()
        if not self._is_made:
            return
        self._lock.run_whole(self._close_all)
        self._say_left()

    # -------------------------------------------------------------------------------- private

    def _check_caller(self) -> None:
        """Raise where it cannot be used, or not from here."""
        self._check_usable()
        self._driver.check_loop()

    async def __aenter__(self) -> Self:
        return await self.open()

    def __getattr__(self, name: str) -> Any:
        if name in _OPENED:
            raise ClosedError("the pusher", _NOT_OPEN)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _begin(self) -> None:
        if is_looked_up(self._parsed):
            self._unusable = _NOT_OPEN
        else:
            self._take_over(self._open())

    def _take_over(self, server: transports.ZmqQueueServer) -> None:
        if self._closed:
            server.close()
            raise ClosedError("the pusher")
        self._start(server)
        self._unusable = None
        self._is_made = True
        close_in_children(self)
        self._driver.watch((server.fd, server.break_fd))
        self._driver.start()

    def _push_slowly(self, value: Any, timeout: float | None) -> int:
        self._check_usable()
        payload = self._packed(value)
        sequence = self._lock.run_whole(self._try_push, payload)
        if sequence is None:
            self._refused_bytes = max(self._refused_bytes, len(payload))
            limit = f"buffer_bytes_max ({self._config.buffer_bytes_max}) bytes"
            raise SendQueueFullError(f"{limit} are not confirmed; `await drain()` waits for space")
        return sequence

    def _turn(self) -> float:
        self._pace.begin()
        wait_ms = self._lock.run_whole(self._work)
        if self._spaces:
            self._spaces.offer(self._space())
        return wait_ms / 1000

    def _space(self) -> int:
        """Return how many jobs fit in, of which the first one may have any size.

        Half of the buffer is enough, or a puller that keeps one job would be waited for where the
        buffer is smaller than two of the largest. So a larger job may be refused, once: then there
        is space only for as large a one.
        """
        if not self._in_flight:
            return 1
        config = self._config
        taken = self._dealer.bytes + len(self._buffer) + 2 * SEALING_BYTES
        half = config.buffer_bytes_max // 2
        size = min(config.message_bytes_max, max(half, self._refused_bytes))
        return max(0, config.buffer_bytes_max - taken) // size

    async def _wait_until_empty(self, timeout: float | None) -> bool:
        self._lock.run_whole(self._is_empty)  # so that what is gathered is dealt now
        until = until_of(self._loop, timeout)
        waits = self._new_wait()
        while not self._driver.stopping:
            left = waits.left_s()
            if until is not None:
                left = min(left, max(0.0, until - self._loop.time()))
            if await self._driver.wait_for(lambda: not self._in_flight, left):
                break
            if waits.is_due():
                self._say_waiting()
            if until is not None and self._loop.time() >= until:
                break
        return self._lock.run_whole(self._is_empty)

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        PipelinePusherBase._forget(self)
        ClosesInLoop._forget(self)


class PipelinePuller(PipelinePullerBase[T_co], TakesTurns, ClosesInLoop):
    """Takes jobs from a pipeline's pushers; `aio.Puller(…, mode="pipeline")`.

    ::

        async with aio.Puller("tcp://127.0.0.1:5558", mode="pipeline") as puller:
            async for job in puller:
                await work(job.value)

    A job counts as done when the next one is asked for, or at `commit()`, as with
    `p2pmsg.queue.PipelinePuller`; one task at a time may take jobs. The event loop says that it is
    alive, so a loop that is held up for the pusher's `ack_timeout` loses its share to others.

    A task that is cancelled while it waits for a job has taken none; the one before counts as done.

    Args:
        endpoints: one, or several, of pushers.
        name: who works, for people. Default: host and process id.
        type, on_invalid: of the jobs' values, as those of `p2pmsg.queue.PipelinePuller`.
        security: this peer's key, and whom it knows: connections are encrypted, and both ends
            known to each other; the pushers' keys are pinned by `?key=` or in the file of known
            peers. Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an endpoint, or another one is.

    """

    _driver: LoopDriver

    # --------------------------------------------------------------------------------- public

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PipelineJob[T_co]:
        at = self._at
        if at < self._count and _monotonic_ns() < self._pace.until_ns:
            job = self._jobs[at]
            self._done = at
            self._at = at + 1
            return job
        try:
            return await self.receive()
        except ClosedError as error:
            if is_inherited(error):
                raise
            raise StopAsyncIteration from None

    async def receive(self, timeout: float | None = None) -> PipelineJob[T_co]:
        """Return the next job; the one before counts as done from now on.

        Args:
            timeout: how long to wait, in seconds. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            AuthenticationError: a pusher refused the connection, or does not hold the pinned key;
                once for each time that it is tried. It goes on.
            InvalidValueError: the next one does not fit `type`, with `on_invalid="raise"`.
            AccessDeniedError: a pusher gives us no right to `pull`, or an access file here gives it
                none to `push`; once, and every 5 s while it stays so. It goes on.
            ClosedError: the puller is closed.
            RuntimeError: it was made in another event loop.

        """
        return (await self.receive_many(1, timeout))[0]

    async def receive_many(
        self, count_max: int, timeout: float | None = None
    ) -> list[PipelineJob[T_co]]:
        """Return the next jobs, one at least; those before count as done from now on.

        Args:
            count_max: how many at most; they are of one frame, so often fewer.
            timeout: how long to wait, in seconds. Default None: without end.

        Raises:
            TimeoutError: none came in time.
            AuthenticationError: a pusher refused the connection, or does not hold the pinned key;
                once for each time that it is tried. It goes on.
            InvalidValueError: the next one does not fit `type`, with `on_invalid="raise"`.
            AccessDeniedError: a pusher gives us no right to `pull`, or an access file here gives it
                none to `push`; once, and every 5 s while it stays so. It goes on.
            ClosedError: the puller is closed.
            RuntimeError: it was made in another event loop.

        """
        whole("count_max", count_max, 1)
        self._driver.check_loop()
        until = until_of(self._loop, timeout)
        if self._pace.is_over():
            await self._pace.rest()
        while self._at >= self._count:
            if self._bad and self._pass_invalid():
                continue
            self._lock.run_whole(self._load)
            if self._at < self._count or self._bad:
                continue
            self._raise_refused()
            if not await self._waiters.wait(until):
                raise TimeoutError(f"no job came within {timeout} s")
        self._check_usable()
        at = self._at
        jobs = self._jobs[at : max(at + 1, min(at + count_max, self._count))]
        self._done = at
        self._at = at + len(jobs)
        return jobs

    async def close(self, timeout: float = 1.0) -> None:
        """Confirm what is done, give back the rest, and close; who waits gets `ClosedError`.

        The job taken last counts as not done, unless it was committed.

        Args:
            timeout: takes no time, and is here for what closes all peers alike. Default 1.

        """
        time_to_wait("timeout", timeout)
        if not self._closed and not self._driver.stopping:
            self._driver.check_loop()
        self.close_now()

    def close_now(self) -> None:
        """Close, also where its event loop has ended."""
        if self._unusable is None:
            self._closed, self._unusable = True, _CLOSED
            self._waiters.close()
            self._driver.stop()
            self._lock.run_whole(self._close_all)

    # -------------------------------------------------------------------------------- private

    def _prepare(self, places: list[str]) -> Watches:
        who = f"the puller of {', '.join(places)}"
        self._driver = LoopDriver(who, self._turn, at_loop_end=self.close_now, by_caller=True)
        self._loop = self._driver.loop
        self._waiters = Waiters(self._loop)
        self._pace = Pace()
        self._watched = _Watched(self._driver)
        return self._watched

    def _begin(self) -> None:
        self._is_made = True
        close_in_children(self)
        self._watched.begin()
        self._driver.start()

    def _turn(self) -> float:
        self._pace.begin()
        wait_ms = self._lock.run_whole(self._background)
        if self._waiters and (any(link.has_ready for link in self._links) or self._is_refused()):
            self._waiters.offer(1)
        return wait_ms / 1000

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        PipelinePullerBase._forget(self)
        ClosesInLoop._forget(self)


class _Watched:
    """The descriptors that a driver watches, one by one; none before `begin`."""

    def __init__(self, driver: LoopDriver) -> None:
        self._driver = driver
        self._fds: set[int] = set()
        self._has_begun = False

    def begin(self) -> None:
        self._has_begun = True
        self._driver.watch(self._fds)

    def watch(self, fd: int) -> None:
        self._fds.add(fd)
        self._update()

    def unwatch(self, fd: int) -> None:
        self._fds.discard(fd)
        self._update()

    def wake(self) -> None:
        self._driver.wake()

    def _update(self) -> None:
        if self._has_begun and not self._driver.stopping:
            self._driver.watch(self._fds)
