"""The threaded publisher."""

import time
from collections.abc import Callable
from typing import Any

from p2pmsg.driver.lifecycle import close_at_exit
from p2pmsg.errors import LogFailedError
from p2pmsg.publisher.batch import OpenBatches
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.publisher_thread import PublisherDriver, ThreadedServingPeer
from p2pmsg.sync.publishing import PublishingPeer


class Publisher(PublishingPeer, ThreadedServingPeer):
    """Sends messages to every subscriber, and keeps them for those who missed some.

    It binds; subscribers connect. `publish` may be called from several threads. A background thread
    answers NACKs, sends heartbeats and flushes.

    Args:
        endpoint: where to bind: `tcp://HOST:PORT` (port 0 picks one), `ipc://PATH` or
            `inproc://NAME`; or where to send to: `udp://GROUP:PORT?interface=…&ttl=…&loopback=…`,
            for a multicast group or one address. Several of these are the A and B lines of one
            stream: all goes to each.
        name: who publishes, for people; at most 255 bytes. Default: the endpoint.
        replay_bytes: bound of the replay buffer in bytes. Default 64 MiB.
        on_full: what happens when a subscriber's queue is full: `block` (default), `drop`, `raise`;
            see `PublisherConfig.on_full`.
        stall_timeout: how long a slow subscriber may hold up `publish`, in seconds. Default 1.0.
        recovery_endpoint: where repairs are asked for. Default: the same host, a port that the
            system picks; for several udp:// at different interfaces, all of them. Set it where a
            firewall must know it.
        log: where a local log of what is sent is kept, and how much of it. A publisher that is
            started again on its log goes on in the same session at the next sequence. Default None:
            no log.
        exact_types: whether each value is looked at for parts that would arrive as another type,
            such as a Decimal. Default None: each, but of streams that `publish` fills at more than
            500,000 messages a second; see `PublisherConfig.exact_types`.
        enc_hook: a function that gets each part of a value whose type is not known, and each int
            of more than 64 bits, and returns what goes in its place; it raises `TypeError` for what
            it does not know either. Default None: such values are refused.
        config: all settings; the arguments above go before it.
        security: this peer's key, and whom it knows: only they connect, encrypted, and both ends
            prove who they are. Default None: everything is open.

    Raises:
        ConfigError: a setting is out of its limits, or an endpoint is none.
        LogInUseError, LogFormatError, LogFailedError: the log cannot be opened.
        BindError: the endpoint could not be bound.

    """

    def _make_lock(self) -> PublishLock:
        return PublishLock()

    def _begin(self) -> None:
        self._rounds = self._driver = PublisherDriver(
            self._core, self._sender, self._server, self._lock, self._outgoing
        )
        # What is acknowledged must be on the disk: see `PublishingPeer`.
        is_plain = type(self).publish is Publisher.publish
        self._waits_inside = self._is_synced and not is_plain
        self._gathers = not self._is_synced  # else it leaves for those who wait
        if self._is_synced and is_plain:
            self.publish = self._publish_synced  # type: ignore[method-assign]
        elif self._is_synced:
            self._fast_batches = OpenBatches()
        self._driver.start()
        close_at_exit(self, Publisher.close)

    def _publish_synced(
        self,
        topic: str,
        value: Any,
        key: str | None = None,
        timestamp_ns: int | None = None,
        headers: dict[str, Any] | None = None,
    ) -> int:
        """Do as `publish`, and wait until the message is on the disk."""
        sequence = PublishingPeer.publish(self, topic, value, key, timestamp_ns, headers)
        self._wait_for_disk()
        return sequence

    def _publish_locked(
        self, topic: str, value: Any, key: Any, timestamp_ns: Any, headers: Any
    ) -> int:
        sequence = super()._publish_locked(topic, value, key, timestamp_ns, headers)
        if self._waits_inside:
            self._wait_for_disk()
        return sequence

    def _wait_for_disk(self) -> None:
        """Wait until all that was accepted so far is on the disk."""
        driver = self._driver
        commits = driver.acknowledgements
        failure = commits.wait(commits.begun + 1, driver.wake, driver.is_over)
        if failure is not None:
            raise LogFailedError(failure)

    def _send_rest(self, is_done: Callable[[], bool] | None = None) -> None:
        """Send what has no space yet; the lock is left now and then, for those who need it."""
        while True:
            time.sleep(0.0002)
            if self._lock.run(is_done or self._send_more):
                return
