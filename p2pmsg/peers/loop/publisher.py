"""The publisher for asyncio."""

from p2pmsg.checks import time_to_wait
from p2pmsg.driver.faces import LoopFace
from p2pmsg.peers.publisher import PublisherBase
from p2pmsg.peers.serving import check_count


class Publisher(PublisherBase, LoopFace):
    # loop only
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

    # threads only
    # """Sends messages to every subscriber, and keeps them for those who missed some.
    #
    # It binds; subscribers connect. `publish` may be called from several threads. A background
    # thread answers NACKs, sends heartbeats and flushes.
    #
    # Args:
    #     endpoint: where to bind: `tcp://HOST:PORT` (port 0 picks one), `ipc://PATH` or
    #         `inproc://NAME`; or where to send to:
    #         `udp://GROUP:PORT?interface=…&ttl=…&loopback=…`, for a multicast group or one address.
    #         Several of these are the A and B lines of one stream: all goes to each.
    #     name: who publishes, for people; at most 255 bytes. Default: the endpoint.
    #     replay_bytes: bound of the replay buffer in bytes. Default 64 MiB.
    #     on_full: what happens when a subscriber's queue is full: `block` (default), `drop`,
    #         `raise`; see `PublisherConfig.on_full`.
    #     stall_timeout: how long a slow subscriber may hold up `publish`, in seconds. Default 1.0.
    #     recovery_endpoint: where repairs are asked for. Default: the same host, a port that the
    #         system picks; for several udp:// at different interfaces, all of them. Set it where a
    #         firewall must know it.
    #     log: where a local log of what is sent is kept, and how much of it. A publisher that is
    #         started again on its log goes on in the same session at the next sequence. Default
    #         None: no log.
    #     exact_types: whether each value is looked at for parts that would arrive as another type,
    #         such as a Decimal. Default None: each, but of streams that `publish` fills at more
    #         than 500,000 messages a second; see `PublisherConfig.exact_types`.
    #     enc_hook: a function that gets each part of a value whose type is not known, and each int
    #         of more than 64 bits, and returns what goes in its place; it raises `TypeError` for
    #         what it does not know either. Default None: such values are refused.
    #     config: all settings; the arguments above go before it.
    #     security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
    #         prove who they are. Default None: everything is open.
    #
    # Raises:
    #     ConfigError: a setting is out of its limits, or an endpoint is none.
    #     LogInUseError, LogFormatError, LogFailedError: the log cannot be opened.
    #     BindError: the endpoint could not be bound.
    #
    # """
    # both

    async def drain(self) -> None:
        """Wait until what was published has left, as far as subscribers have space for it.

        With a log with `fsync="always"`, wait until all of it is on the disk, too. What is gathered
        leaves within `linger`, or by `flush`. In an event loop a task that publishes all the time
        lets others run here.

        Raises:
            LogFailedError: it could not be brought to the disk. It may be sent all the same when
                the log can be written again.
            ClosedError: the publisher is closed, or was meanwhile.

        """
        await self._driver.run(self._peer.drain())

    async def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` subscribers have confirmed that they receive.

        What is published afterwards reaches them; confirmed means over the very path that the
        messages take.

        Args:
            count: how many. Default 1.
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the publisher is closed, or was meanwhile.

        """
        seconds = check_count(count, timeout)
        await self._driver.run(self._peer.wait_for_subscribers(count, seconds))

    async def close(self, timeout: float | None = 5.0) -> None:
        """Take no more messages, send what is left, wait until every subscriber has it, and close.

        Args:
            timeout: how long to wait, in seconds, for subscribers that still repair gaps; one that
                has not been heard of for `subscriber_timeout` is not waited for. Default, and with
                None, 5.0. Those who are not through by then are counted in `stats().undelivered`.

        Raises:
            LogFailedError: not everything could be written to the log.
            ReentrantCallError: a signal handler called it that came within this publisher; it is
                still open.

        """
        seconds = 5.0 if timeout is None else time_to_wait("timeout", timeout)
        await self._end(self._peer.close(seconds))
