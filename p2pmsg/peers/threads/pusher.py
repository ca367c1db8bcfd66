# Made by `python -m tests.faces` from p2pmsg/peers/loop/pusher.py: change that one.
"""The pusher for threads."""

from p2pmsg.checks import time_to_wait
from p2pmsg.driver.faces import ThreadFace
from p2pmsg.peers.pushing import PusherBase


class Pusher(PusherBase, ThreadFace):
    """Gives each job to one of many workers, and keeps it until one of them has done it.

    ::

        with p2pmsg.Pusher("tcp://127.0.0.1:5558") as pusher:
            for value in values:
                pusher.push(value)
                pusher.drain()        # in an event loop: waits for space
            pusher.join()             # waits until every job is done

    It binds; pullers connect, and come and go as they like. At least once: a job whose worker dies
    goes to another. `push` may be called from several threads, and waits for space there.

    In an event loop there is no thread, and `push` never waits. What takes time is done by a thread
    of the loop's executor: forcing a log to the disk, and opening it by `open`, where there is
    one. With `fsync="always"`, what was pushed is on the disk when the next `drain` returns, and no
    worker gets it before.

    In a loop of another kind (trio's, one of your own) wait until one of `wait_fds()` is readable
    or `next_deadline` has come, and call `turn()`. What is to be awaited is begun with `begin`, as
    `begin(peer.close())`; at the end call `close_now()`.

    Args:
        endpoint: where to bind: `tcp://HOST:PORT` (port 0 picks one), `ipc://PATH` or
            `inproc://NAME`.
        acknowledge: `"each"` (default): a job is acknowledged, or rejected, by itself. `"batch"`:
            pullers, which need the same argument, confirm many jobs at a time, over PUSH and PULL
            sockets; what was not confirmed when a puller died is done twice. No log, keys,
            priorities or delays then; the PUSH sockets are bound next to `endpoint`, with `tcp` at
            ports that the system picks.
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

    def drain(self, timeout: float | None = None) -> None:
        """Wait until there is space for a job, and what was pushed is as safe as the log makes it.

        There is space for one of any size, or of half of `in_flight_bytes_max`, or for the largest
        one that was refused. With threads `push` waits for both by itself, so this is for a thread
        that must not wait there. In an event loop several tasks that wait share one fsync, and as
        many are woken as there is space for jobs, the first one first.

        It does not wait until jobs are done; `join` does.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: there was no space in time, or the disk was too slow.
            LogFailedError: the log cannot be forced to the disk. What was pushed since the `drain`
                before is not handed out; a later run on the log may find it all the same.
            ClosedError: the pusher is closed.
            RuntimeError: in an event loop: it was made in another one.

        """
        self._driver.run(self._peer.drain(timeout))

    def join(self, timeout: float | None = None) -> None:
        """Wait until every job is done, or a dead letter.

        Args:
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: some were not done in time.
            LogFailedError: the log cannot be forced to the disk, so that nothing is done any more.
            ClosedError: the pusher is closed.
            RuntimeError: in an event loop: it was made in another one.

        """
        self._driver.run(self._peer.join(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Wait until every job is done, and close; other calls that wait get `ClosedError`.

        Args:
            timeout: how long to wait, in seconds. Default: 5 without a log, where what is not done
                by then is lost, and said to be; 0 with one, where it is done after a restart.

        Raises:
            LogFailedError: the log could not be written, or forced to the disk; it is closed all
                the same.
            RuntimeError: in an event loop: it was made in another one, and is not closed.

        """
        if timeout is not None:
            timeout = time_to_wait("timeout", timeout)
        self._end(self._peer.close(timeout))
