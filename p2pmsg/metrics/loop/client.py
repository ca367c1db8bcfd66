"""The face of the metrics client for asyncio."""

from p2pmsg.metrics.peer import ClientBase
from p2pmsg.toolkit import LoopFace, check_count, time_to_wait


class Client(ClientBase, LoopFace):
    """Counts and measures, and sends the changes every `interval`.

    With `tcp://` or `ipc://` it publishes deltas with sequences: a collector with
    `exact=[endpoint]` subscribes, requests what was lost, and so arrives at exactly the totals that
    were sent; what cannot be repeated is reported with its range. With `udp://HOST:PORT` or
    `unixgram:///PATH` the same calls go to a plain StatsD server, which may miss some. ::

        async with p2pmsg.aio.metrics.Client("tcp://127.0.0.1:9125") as metrics:
            metrics.increment("orders", tags=["zone:b"])
            with metrics.timed("checkout"):
                ...

    The calls that count never wait, and may be made in any thread. Integers are added up exactly,
    floats as floats in the order in which they are sent. In a forked child a threaded client of a
    StatsD server starts again with nothing gathered; others are closed.

    When a call returns, its value is in this process's memory. It is sent within `interval`, and
    kept for collectors until the process ends; it is safe once a collector has it on its disk
    (`exact=`, `state=`). `close` waits for a collector, and so does, with threads, the end of a
    program that has not called it. A process that is killed loses what no collector had; with `log`
    only what was not sent.

    While the name of a StatsD server's host is looked up, its caller waits; in an event loop
    `open` has the loop go on.

    Args:
        endpoint: where to bind (`tcp`, `ipc`, `inproc`), or where the StatsD server is.
        prefix: put before each name, with a dot between. Default "".
        tags: added to each metric, `key:value` or `key`. Default none.
        interval: how long deltas are gathered, in seconds. Default 0.1: what a crash may cost, and
            ten messages a second. 0 sends each call by itself.
        name: of the publisher, for people. Default: the endpoint.
        config: of the publisher. Its replay buffer bounds how long a collector may be away: the
            default of 64 MiB lasts most of an hour with 100 counters that change all the time.
        log: of the publisher, so that what was sent outlasts the client too. Default: none.
        close_timeout: how long `close` without an argument, and the end of a program, wait until a
            collector has everything that was sent, in seconds; 0 does not wait. Default 5.0: a
            running collector takes less than one, one that is being restarted a few. What no
            collector has by then is counted in `undelivered`, with a warning. A relay counts as a
            collector: it keeps what it has received. With a plain StatsD server there is nothing to
            wait for.
        security: of the publisher: only peers that it knows connect, encrypted. None with a plain
            StatsD server. Default None: open.

    Raises:
        ConfigError: an argument is out of its limits, or the host of a StatsD server is unknown.
        BindError: the endpoint could not be bound.

    """

    async def wait_for_collectors(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` collectors subscribe; with a plain StatsD server return at once.

        Raises:
            TimeoutError: they did not come within `timeout` seconds.
            ClosedError: the client is closed, or was meanwhile.

        """
        seconds = check_count(count, timeout)
        await self._driver.run(self._peer.wait_for_collectors(count, seconds))

    async def close(self, timeout: float | None = None) -> None:
        """Send the rest, wait until a collector has everything, and close.

        What no collector has confirmed by then is counted in `undelivered`, with a warning.

        Args:
            timeout: how long to wait, in seconds. Default None: `close_timeout`.

        Raises:
            MessageError, LogFailedError, SendQueueFullError: as `flush`; it is closed.
            ReentrantCallError: a signal handler called it that came within a call of this client;
                it is still open.

        """
        self._start_again()
        seconds = time_to_wait("timeout", self._close_timeout if timeout is None else timeout)
        await self._end(self._peer.close(seconds))
