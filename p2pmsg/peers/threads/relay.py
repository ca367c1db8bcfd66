# Made by `python -m tests.faces` from p2pmsg/peers/loop/relay.py: change that one.
"""The relay for threads."""

from p2pmsg.checks import time_to_wait
from p2pmsg.driver.faces import ThreadFace
from p2pmsg.peers.relay import RelayBase
from p2pmsg.peers.serving import check_count


class Relay(RelayBase, ThreadFace):
    """Receives streams and serves them on, under their own sessions and sequences.

    Its subscribers get what the publishers publish, and ask it for what they missed. Its
    publishers may go away and not come back: what it received is served on, from its replay
    buffer and its log. It takes all that its upstreams still have when it first meets them.
    Subscribers may be given its endpoint alone, or with the publisher's own. Relays may be
    chained; one that would get from itself what it has refuses that upstream, and says so.

    Args:
        upstreams: endpoints of publishers and other relays; one, or several.
        endpoint: where to bind, as for `Publisher`.
        name: of the relay, for people; at most 255 bytes. Default: the endpoint.
        topics: what to relay, as for `Subscriber`. Default: all.
        replay_bytes: bound of the replay buffer, over all sessions, in bytes. Default 64 MiB.
        on_full: what happens when a subscriber's queue is full; see `PublisherConfig.on_full`.
        stall_timeout: how long a slow subscriber may hold up the others, in seconds. Default 1.0.
        recovery_endpoint: where repairs are asked for. Default: the same host, a port that the
            system picks.
        log: where a local log of what is received is kept, and how much of it. A relay that is
            started again on its log serves what it has at once, and continues after it. Default
            None: no log.
        config: all settings of its publishing side; the arguments above go before it.
        intake: all settings of its receiving side. Default: those of `SubscriberConfig`, but that
            a gap is given up after 5 s; keep that below the `repair_timeout` of the subscribers.
        security: this peer's key, and whom it knows, on both sides; see `Publisher`. Default
            None: everything is open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        AuthenticationError: no key is pinned for an upstream, or another one is.
        LogInUseError, LogFormatError, LogFailedError: the log cannot be opened.
        BindError: the endpoint could not be bound.

    """

    def wait_for_streams(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until so many streams are served.

        Args:
            count: how many. Default 1.
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the relay is closed, or was meanwhile.

        """
        seconds = check_count(count, timeout)
        self._driver.run(self._peer.wait_for_streams(count, seconds))

    def wait_for_subscribers(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` subscribers have confirmed that they receive, of any session.

        What is relayed afterwards reaches them; confirmed means over the very path that the
        messages take.

        Args:
            count: how many. Default 1.
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the relay is closed, or was meanwhile.

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
            ReentrantCallError: a signal handler called it that came within this relay; it is still
                open.

        """
        seconds = 5.0 if timeout is None else time_to_wait("timeout", timeout)
        self._end(self._peer.close(seconds))
