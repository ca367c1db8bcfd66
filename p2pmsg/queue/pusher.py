"""The threaded pusher."""

import time
from collections.abc import Callable
from typing import Any

from p2pmsg.checks import at_least, time_to_wait
from p2pmsg.driver.lifecycle import ClosesItself, close_at_exit, close_in_children, was_closed
from p2pmsg.queue.driver import Driver
from p2pmsg.queue.journal.file import GroupCommit
from p2pmsg.queue.pusher_base import PusherBase
from transports.own_log import own_log as _log
from transports.signals import defer_signals


class Pusher(PusherBase, ClosesItself):
    """Gives each job to one of many workers, and keeps it until one of them has done it.

    It binds; pullers connect, and come and go as they like. At least once: a job whose worker dies
    goes to another. `push` may be called from several threads.

    Args:
        endpoint: where to bind: `tcp://HOST:PORT` (port 0 picks one), `ipc://PATH` or
            `inproc://NAME`.
        acknowledge: `"each"` (default): a job is acknowledged, or rejected, by itself. `"batch"`:
            pullers, which need the same argument, confirm many jobs at a time, over PUSH and PULL
            sockets; what was not confirmed when a puller died is done twice. No log, dead letters,
            keys, priorities or delays then; the PUSH sockets are bound next to `endpoint`, with
            `tcp` at ports that the system picks.
        log: a directory. What is pushed is written there before `push` returns, so that a pusher
            that is killed goes on after a restart with what was not acknowledged. Default None: in
            memory only.
        ack_timeout: how long a worker may be silent, in seconds, before its jobs are given to
            others. Default 30, and 5 by the batch; see `PusherConfig.ack_timeout`.
        deliveries_max: attempts, the first one included: a job that failed so often becomes a dead
            letter. Default 5.
        in_flight_max: how many jobs may be accepted and not yet done. Default None: 1000, or as
            many as are done within 50 ms.
        job_timeout: how long a job may take at a worker that lives, in seconds. Default 1800; 0: as
            long as it likes.
        name: who pushes, for people. Default: the endpoint.
        config: all settings; the arguments above go before it.
        security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
            known to each other. Default None: open.

    Raises:
        ConfigError: a setting is out of its limits, or the endpoint is none.
        BindError: the endpoint could not be bound.
        LogInUseError, LogFormatError, LogFailedError: the log cannot be used.

    """

    _patience_s = None

    # --------------------------------------------------------------------------------- public

    def drain(self, timeout: float | None = None) -> None:
        """Wait until there is space for a job, and what was pushed is as safe as the log makes it.

        `push` waits for both by itself, so this is for a thread that must not wait there. It does
        not wait until jobs are done; `join` does.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: there was no space in time.
            LogFailedError: the log cannot be forced to the disk.
            ClosedError: the pusher is closed.

        """
        if not self._wait_until(self._has_space, timeout):
            raise TimeoutError(f"{self._jobs.limit}, were in flight for {timeout} s")

    def join(self, timeout: float | None = None) -> None:
        """Wait until every job is done, or a dead letter.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: some were not done in time.
            LogFailedError: the log cannot be forced to the disk, so that nothing is done any more.
            ClosedError: the pusher is closed.

        """
        if not self._wait_until(self._is_empty, timeout):
            raise TimeoutError(f"{self._in_flight} jobs were not done within {timeout} s")

    def close(self, timeout: float | None = None) -> None:
        """Wait until every job is done, and close.

        Args:
            timeout: how long to wait, in seconds. Default: 5 without a log, where what is not done
                by then is lost, and said to be; 0 with one, where it is done after a restart.

        Raises:
            LogFailedError: the log could not be written, or forced to the disk; it is closed all
                the same.

        """
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        if not self._closed:
            self._lock.refuse_inside()
        if self._closed:
            return
        self._closed = True
        was_closed(self)
        try:
            wait = timeout if timeout is not None else (0.0 if self._journal else 5.0)
            self._wait_until(self._is_empty, wait)
        finally:
            self._unusable = "it is closed"
            self._driver.stop()
            self._lock.run_whole(self._close_all)
        left = self._in_flight
        if left and self._journal is None:
            _log.warning("%d jobs were not done at close; what no worker has is lost", left)

    # -------------------------------------------------------------------------------- private

    def _begin(self) -> None:
        opened = self._open()
        try:
            fds = [opened.server.fd, opened.server.break_fd]
            self._driver: Driver = Driver("p2pmsg-pusher", self._turn, fds)
            self._start(opened)
            self._group: GroupCommit | None = None
            if self._syncs and self._journal is not None:
                self._group = GroupCommit(self._lock, self._journal, self._hand_out)
        except BaseException:
            opened.close()
            raise
        close_in_children(self)
        self._driver.start()
        close_at_exit(self, lambda one, left: one.close(0.0 if one._journal else left))

    def _turn(self) -> float:
        return self._lock.run(self._work)

    def _push_slowly(
        self, value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any,
        timeout: float | None,
    ) -> int:  # fmt: skip
        if timeout is not None:
            at_least("timeout", timeout, 0)
        job = self._jobs.job(value, key, priority, delay, message_id, headers)
        deadline = None if timeout is None else time.monotonic() + timeout
        while (sequence := defer_signals(self._accept, job)) is None:
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self._jobs.limit}, were in flight for {timeout} s")
            self._wait(left)
        return sequence

    def _accept(self, job: Any) -> int | None:
        """Accept a job, and sync it with `fsync="always"`; None while the queue is full.

        Called with signal handlers deferred, so that no accepted job is left unsynced.
        """
        accepted = self._lock.run(self._try_push, job)
        if accepted is None:
            return None
        sequence, written = accepted
        if self._group is not None:
            self._group.wait(written)
        return sequence

    def _wait(self, seconds: float) -> None:
        """Wait in the caller's thread until something may have changed."""
        wait_ms = self._lock.run(self._jobs.wait_ms)
        self._driver.wait(min(wait_ms, seconds * 1000))

    def _has_space(self) -> bool:
        is_empty = self._is_empty()
        return is_empty or self._jobs.space(0) > 0

    def _wait_until(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        if timeout is not None:
            at_least("timeout", timeout, 0)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._lock.run_whole(is_so):
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            self._wait(left)
        return True
