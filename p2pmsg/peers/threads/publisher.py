# Made by `python -m tests.faces` from p2pmsg/peers/loop/publisher.py: change that one.
"""The publisher for threads."""

from p2pmsg.checks import time_to_wait
from p2pmsg.driver.faces import ThreadFace
from p2pmsg.peers.publisher import PublisherBase
from p2pmsg.peers.serving import check_count


class Publisher(PublisherBase, ThreadFace):
    """Sends messages to every subscriber, and keeps them for those who missed some.

    It binds; subscribers connect. `publish` may be called from several threads. A background
    thread answers NACKs, sends heartbeats and flushes.

    Args:
        endpoint: where to bind: `tcp://HOST:PORT` (port 0 picks one), `ipc://PATH` or
            `inproc://NAME`; or where to send to:
            `udp://GROUP:PORT?interface=…&ttl=…&loopback=…`, for a multicast group or one address.
            Several of these are the A and B lines of one stream: all goes to each.
        name: who publishes, for people; at most 255 bytes. Default: the endpoint.
        replay_bytes: bound of the replay buffer in bytes. Default 64 MiB.
        on_full: what happens when a subscriber's queue is full: `block` (default), `drop`,
            `raise`; see `PublisherConfig.on_full`.
        stall_timeout: how long a slow subscriber may hold up `publish`, in seconds. Default 1.0.
        recovery_endpoint: where repairs are asked for. Default: the same host, a port that the
            system picks; for several udp:// at different interfaces, all of them. Set it where a
            firewall must know it.
        log: where a local log of what is sent is kept, and how much of it. A publisher that is
            started again on its log goes on in the same session at the next sequence. Default
            None: no log.
        exact_types: whether each value is looked at for parts that would arrive as another type,
            such as a Decimal. Default None: each, but of streams that `publish` fills at more
            than 500,000 messages a second; see `PublisherConfig.exact_types`.
        enc_hook: a function that gets each part of a value whose type is not known, and each int
            of more than 64 bits, and returns what goes in its place; it raises `TypeError` for
            what it does not know either. Default None: such values are refused.
        config: all settings; the arguments above go before it.
        security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
            prove who they are. Default None: everything is open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        LogInUseError, LogFormatError, LogFailedError: the log cannot be opened.
        BindError: the endpoint could not be bound.

    """

    def drain(self) -> None:
        """Wait until what was published has left, as far as subscribers have space for it.

        With a log with `fsync="always"`, wait until all of it is on the disk, too. What is gathered
        leaves within `linger`, or by `flush`. In an event loop a task that publishes all the time
        lets others run here.

        Raises:
            LogFailedError: it could not be brought to the disk. It may be sent all the same when
                the log can be written again.
            ClosedError: the publisher is closed, or was meanwhile.

        """
        self._driver.run(self._peer.drain())

    def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
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
        self._driver.run(self._peer.wait_for_subscribers(count, seconds))

    def close(self, timeout: float | None = 5.0) -> None:
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
        self._end(self._peer.close(seconds))
