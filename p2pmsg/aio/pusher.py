"""The pusher for asyncio."""

import asyncio
from functools import partial
from typing import Any, Final, Self

from p2pmsg.aio.closing import ClosesInLoop
from p2pmsg.aio.loop import LoopDriver
from p2pmsg.aio.turns import TakesTurns
from p2pmsg.aio.waiting import SLICE_NS, Pace, Waiters, in_executor, until_of
from p2pmsg.checks import at_least, time_to_wait
from p2pmsg.driver.lifecycle import close_in_children
from p2pmsg.errors import ClosedError, LogFailedError, SendQueueFullError
from p2pmsg.queue.config import PusherConfig
from p2pmsg.queue.each import EachJobs
from p2pmsg.queue.journal.file import FileJournal, PendingSync
from p2pmsg.queue.pusher_base import LogChoice, Opened, PusherBase
from transports.own_log import own_log as _log

_FAILING_S: Final = 0.01
"""Between two tries to write to a log that cannot be written."""
_RECORDS_AT_ONCE: Final = 500
"""Records of an old segment that are looked at, and copied, between two looks at other tasks."""
_EMPTY_AGAIN_S: Final = 1.0
_NOT_OPEN: Final = "it is not open yet; `async with` opens it, or `await open()`"
_CLOSED: Final = "it is closed"
_OPENED: Final = ("_jobs", "_batch", "_server")
"""What is there only when it is open."""
_running_loop: Final = asyncio._get_running_loop


class Pusher(PusherBase, TakesTurns, ClosesInLoop):
    """Gives each job to one of many workers, and keeps it until one of them has done it.

    ::

        async with aio.Pusher("tcp://127.0.0.1:5558") as pusher:
            for value in values:
                pusher.push(value)
                await pusher.drain()        # waits while `in_flight_max` jobs are in flight
            await pusher.join()             # waits until every job is done

    As `p2pmsg.Pusher`, without a thread: the event loop does the work. `push` never waits.

    What takes time is done by a thread of the loop's executor: opening a log, and forcing it to the
    disk. So with a log it is opened by `async with` or by `open`, and not when it is made.

    The arguments are those of `p2pmsg.Pusher`. With a `log` whose `fsync` is `"always"`, what was
    pushed is on the disk when the next `drain` returns, and no worker gets it before.

    **Without asyncio** (trio, a loop of your own): make it where no asyncio loop runs. Then wait
    until one of `wait_fds()` is readable or `next_deadline` has come, and call `turn()`. What is to
    be awaited is begun with `begin`, as `begin(peer.close())`; at the end call `close_now()`.

    Raises:
        ConfigError: a setting is out of its limits, or the endpoint is none.
        BindError: the endpoint could not be bound; raised by `open` where that opens it.
        LogInUseError, LogFormatError, LogFailedError: the log cannot be used; raised by `open`.

    """

    # --------------------------------------------------------------------------------- public

    @property
    def endpoint(self) -> str:
        """Where pullers connect to, with the port that was picked once it is open."""
        return self._server.endpoint if self._fds else self._place

    async def open(self) -> Self:
        """Open the log and bind the endpoint, where that is still to be done.

        Raises:
            BindError: the endpoint could not be bound.
            LogInUseError, LogFormatError, LogFailedError: the log cannot be used.
            ClosedError: the pusher is closed.

        """
        self._driver.check_loop()
        async with self._opening:
            if not self._fds:
                if self._closed:
                    raise ClosedError("the pusher")
                self._take_over(await in_executor(self._open_all, Opened.close))
        return self

    def push(  # type: ignore[override]  # without `timeout`, since it never waits
        self,
        value: Any,
        key: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        message_id: str | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Accept one job and return its sequence; it never waits.

        It is handed out at once, and shares a frame with others where jobs follow one another
        closely, for 1 ms at most. What is changed in `value` afterwards changes nothing.

        With a log, its record is written when this returns: a process that is killed loses nothing.
        With `fsync="always"` it is not yet on the disk; `drain` waits until it is, and raises where
        that failed.

        Args:
            value: any msgpack value: bytes, str, int (64 bits), float, bool, None, list, dict.
            key: what it belongs to. Of one key, one job at a time is with any worker, in the order
                of pushing; a later one waits until it is done or a dead letter. Default None:
                it waits for nothing.
            priority: 0 to 9; higher ones go first among what is not yet handed out. Within a key
                the order of pushing rules. Default 0.
            delay: how long it is not handed out, in seconds, 31,622,400 (366 days) at most.
                Default 0.
            message_id: by which a job that was pushed before, within 10 min, is known and not
                accepted again; the sequence that it got then is returned. Default None.
            headers: further fields by name, msgpack values. Default None.

        Raises:
            MessageError: it cannot be pushed as it is; `MessageTooLargeError` for its size.
            ConfigError: priority, delay or message_id is out of its limits.
            SendQueueFullError: `in_flight_max` jobs, or their bytes, are in flight. One push right
                after an `await drain()` never gets it, where the job has half of
                `in_flight_bytes_max` at most, or as much as one that was refused before.
            LogFailedError: the log could not be written; the job was not accepted.
            ClosedError: the pusher is closed, or not open yet.
            RuntimeError: it was made in another event loop.

        """
        if self._unusable is not None:
            self._check_usable()
        if _running_loop() is not self._loop:
            self._driver.check_loop()
        return super().push(value, key, priority, delay, message_id, headers)

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until there is space for a job, and what was pushed is as safe as the log makes it.

        There is space for one of any size, or of half of `in_flight_bytes_max`, or for the largest
        one that was refused.

        Without a log, or with `fsync` other than `"always"`, it returns at once while there is
        space, except that it lets other tasks run every 2 ms. With `fsync="always"` it waits until
        all that was pushed before is on the disk; tasks that wait share one fsync. Of several tasks
        that wait for space, as many are woken as there is space for jobs, the first one first.

        It does not wait until jobs are done; `join` does.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: there was no space in time, or the disk was too slow.
            LogFailedError: the log cannot be forced to the disk. What was pushed since the `drain`
                before is not handed out; a later run on the log may find it all the same.
            ClosedError: the pusher is closed.
            RuntimeError: it was made in another event loop.

        """
        self._check_caller()
        until = until_of(self._loop, timeout)
        if self._syncs:
            await self._wait_for_disk(timeout)
        if self._pace.is_over():
            await self._pace.rest()
        if self._spaces or not self._space():
            await self._wait_for_space(timeout, until)

    async def join(self, timeout: float | None = None) -> None:
        """Wait until every job is done, or a dead letter.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: some were not done in time.
            LogFailedError: the log cannot be forced to the disk, so that nothing is done any more.
            ClosedError: the pusher is closed.
            RuntimeError: it was made in another event loop.

        """
        self._check_caller()
        if timeout is not None:
            at_least("timeout", timeout, 0)
        if not await self._wait_until_empty(timeout):
            raise TimeoutError(f"{self._in_flight} jobs were not done within {timeout} s")

    async def close(self, timeout: float | None = None) -> None:
        """Wait until every job is done, and close; other tasks that wait get `ClosedError`.

        Args:
            timeout: how long to wait, in seconds. Default: 5 without a log, where what is not done
                by then is lost, and said to be; 0 with one, where it is done after a restart.

        Raises:
            LogFailedError: the log could not be written, or forced to the disk; it is closed all
                the same.
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
            if self._fds and not self._driver.stopping:
                wait = timeout if timeout is not None else (0.0 if self._journal else 5.0)
                await self._wait_until_empty(wait)
            if self._emptying is not None and not self._driver.stopping:
                await asyncio.wait([self._emptying])
        finally:
            journal, self._journal = self._journal, None
            self.close_now()
            if journal is not None:  # by a thread, since it is forced to the disk
                await in_executor(journal.close, lambda _: None)

    def close_now(self) -> None:
        """Close without waiting for workers, also where its event loop has ended."""
        if self._unusable == _CLOSED:
            return
        self._closed, self._unusable = True, _CLOSED
        self._spaces.close()
        self._driver.stop()
        if not self._fds:
            return
        self._lock.run_whole(self._close_all)
        left = self._in_flight
        if left and self._log_settings is None:
            _log.warning("%d jobs were not done at close; what no worker has is lost", left)

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

    def _open_all(self) -> Opened:
        """Open everything; it may take long, and is not called in the loop's thread then."""
        opened = self._open()
        try:
            self._start(opened, sync_soon=self._sync_soon, turn_ns_max=SLICE_NS)
            if self._journal is not None and isinstance(self._jobs, EachJobs):
                self._journal.defers = True
                # Now, so that the first turn does not wait for the disk.
                self._journal.allow_deliveries(self._jobs.core.queue.next_delivery)
        except BaseException:
            opened.close()
            raise
        return opened

    def _configure(
        self, endpoint: str, log: LogChoice, name: str | None, config: PusherConfig
    ) -> None:
        who = f"the pusher at {endpoint}"
        self._driver: LoopDriver = LoopDriver(
            who, self._turn, at_loop_end=self.close_now, by_caller=True
        )
        super()._configure(endpoint, log, name, config)
        self._loop = self._driver.loop
        self._pace = Pace()
        self._spaces = Waiters(self._loop)
        self._refused_bytes = 0
        self._syncing: asyncio.Future[None] | None = None
        self._pending: PendingSync | None = None
        self._emptying: asyncio.Task[None] | None = None
        self._fds: tuple[int, ...] = ()
        self._is_one_way = False
        self._opening = asyncio.Lock()

    def _begin(self) -> None:
        if self._log_settings is None:
            self._take_over(self._open_all())
        else:
            self._unusable = _NOT_OPEN

    def _take_over(self, opened: Opened) -> None:
        if self._closed:
            opened.close()
            raise ClosedError("the pusher")
        self._unusable = None
        self._fds = (opened.server.fd, opened.server.break_fd)
        self._is_made = True
        close_in_children(self)
        self._driver.watch(self._fds)
        self._driver.start()

    def _push_slowly(
        self, value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any,
        timeout: float | None,
    ) -> int:  # fmt: skip
        job = self._jobs.job(value, key, priority, delay, message_id, headers)
        accepted = self._lock.run_whole(self._try_push, job)
        if accepted is None:
            size = len(job) if isinstance(job, bytes) else job.size
            self._refused_bytes = max(self._refused_bytes, size)
            limit = self._jobs.limit
            raise SendQueueFullError(f"{limit}, are in flight; `await drain()` waits for space")
        if self._syncs:
            self._sync_soon()
        self._driver.wake()  # what is left, and tasks that wait for space
        return accepted[0]

    def _turn(self) -> float:
        self._pace.begin()
        wait_ms: float = self._lock.run_whole(self._work)
        if self._spaces:
            self._spaces.offer(self._space())
        journal = self._journal
        if journal is not None and self._emptying is None and journal.has_to_empty:
            self._emptying = self._loop.create_task(self._empty_segments(journal))
        if self._jobs.is_failing != self._is_one_way:
            self._is_one_way = not self._is_one_way
            # What came is left where it is, and would wake it at once.
            self._driver.watch(() if self._is_one_way else self._fds)
        return _FAILING_S if self._is_one_way else wait_ms / 1000

    # ---------------------------------------------------------------------------- waiting

    async def _wait_for_space(self, timeout: float | None, until: float | None) -> None:
        while True:
            in_time = await self._spaces.wait(until)
            if self._spaces.is_closed:
                raise ClosedError("the pusher")
            if not in_time:
                raise TimeoutError(f"{self._jobs.limit}, were in flight for {timeout} s")
            if self._space():
                return

    def _space(self) -> int:
        return self._jobs.space(self._refused_bytes)

    def _sync_soon(self) -> None:
        """Have a thread force to the disk what was written; one at a time."""
        journal = self._journal
        if journal is None or self._syncing is not None or journal.broken is not None:
            return
        if journal.written > journal.synced or journal.is_due:
            self._pending = journal.begin_sync()
            self._syncing = self._loop.run_in_executor(None, self._pending.wait)
            self._syncing.add_done_callback(self._end_sync)

    def _end_sync(self, syncing: "asyncio.Future[None]") -> None:
        pending, self._pending, self._syncing = self._pending, None, None
        journal = self._journal
        if pending is None or journal is None:
            return
        if syncing.cancelled():
            pending.wait()  # the loop ends: nobody is held up
        try:
            self._lock.run_whole(journal.end_sync, pending)
        except LogFailedError:
            pass  # `journal.broken` says so, and the next turn logs it
        self._driver.take_turn()
        if self._syncs and not self._driver.stopping:
            self._sync_soon()  # what was pushed meanwhile

    async def _empty_segments(self, journal: FileJournal) -> None:
        """Empty old segments of the log, a little at a time; the disk is waited for by a thread."""
        in_thread = partial(self._loop.run_in_executor, None)
        try:
            while journal.has_to_empty:
                found = await in_thread(journal.read_oldest)
                for at in range(0, len(found), _RECORDS_AT_ONCE):
                    if self._closed:
                        return  # what was copied is there twice, which changes nothing
                    self._lock.run_whole(journal.copy, found[at : at + _RECORDS_AT_ONCE])
                    await asyncio.sleep(0)
                pending = self._lock.run_whole(journal.begin_sync)
                await in_thread(pending.wait)
                self._lock.run_whole(journal.end_sync, pending)
                await in_thread(journal.delete_oldest)
            self._emptying = None
        except OSError as error:
            if journal.broken is None:
                _log.warning("an old segment of the log could not be emptied: %s", error)
                self._loop.call_later(_EMPTY_AGAIN_S, setattr, self, "_emptying", None)

    async def _wait_for_disk(self, timeout: float | None) -> None:
        journal = self._journal
        assert journal is not None
        stop = journal.written
        self._sync_soon()
        is_there = await self._driver.wait_for(
            lambda: journal.synced >= stop or journal.broken is not None, timeout
        )
        if journal.broken is not None:
            raise LogFailedError(journal.broken)
        if journal.synced < stop:
            self._check_usable()
        if not is_there:
            raise TimeoutError(f"the log was not on the disk within {timeout} s")

    async def _wait_until_empty(self, timeout: float | None) -> bool:
        journal = self._journal

        def is_over() -> bool:
            broken = journal is not None and journal.broken is not None
            return broken or self._in_flight == 0

        await self._driver.wait_for(is_over, timeout)
        return bool(self._lock.run_whole(self._is_empty))

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        PusherBase._forget(self)
        ClosesInLoop._forget(self)
