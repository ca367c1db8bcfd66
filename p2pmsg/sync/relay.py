"""The threaded relay."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from random import Random
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg.config import OnFull, PublisherConfig, SubscriberConfig
from p2pmsg.errors import ClosedError, ConfigError, LogFailedError, translated
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.relay.core import SESSIONS_MAX, RelayCore
from p2pmsg.relay.metadata import RelayMetadata
from p2pmsg.relay.stats import RelayStats
from p2pmsg.relay.transfer import Resumption, Transfer
from p2pmsg.start import Start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.sync.lifecycle import close_at_exit, close_in_children
from p2pmsg.sync.lines import open_lines
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.opening import ZMQ_MEMORY, recovery_endpoint_of
from p2pmsg.sync.publisher_thread import PublisherDriver, ServingPeer
from p2pmsg.sync.relay_stats import relay_stats
from p2pmsg.sync.sending import Outgoing
from p2pmsg.sync.settings import check_endpoints, check_name, check_topics, publisher_config
from p2pmsg.sync.settings import subscriber_config as intake_config
from p2pmsg.sync.worker import Worker
from p2pmsg.trouble import Refusals
from recovery._renamed import renamed_arguments

if TYPE_CHECKING:
    from recovery.log import LogConfig

REPAIR_TIMEOUT_S: Final = 5.0
"""How long a relay waits for a repair without progress: half as long as subscribers do. What it has
after a gap it serves when the gap is repaired or given up, and they should not give up first."""
_WAIT_MS: Final = 100
_LOG_RETRY_S: Final = 0.1
_POLL_S: Final = 0.01
_log = logging.getLogger("p2pmsg")
_random = Random()


class Relay(ServingPeer):
    """Receives streams and serves them on, under their own sessions and sequences.

    Its subscribers get what the publishers publish, and ask it for what they missed. Its
    publishers may go away and not come back: what it received is served on, from its replay buffer
    and its log. It takes all that its upstreams still have when it first meets them. Subscribers
    may be given its endpoint alone, or with the publisher's own. Relays may be chained; one that
    would get from itself what it has refuses that upstream, and says so.

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
        intake: all settings of its receiving side. Default: those of `SubscriberConfig`, but that a
            gap is given up after 5 s; keep that below the `repair_timeout` of the subscribers.

    Raises:
        ConfigError: a setting is out of its limits; `EndpointError` for the endpoints.
        LogInUseError, LogFormatError, LogFailedError: the log cannot be opened.
        BindError: the endpoint could not be bound.

    """

    _kind = "relay"
    _core: RelayCore

    @renamed_arguments(stall_ms="stall_timeout")
    def __init__(
        self,
        upstreams: str | Sequence[str],
        endpoint: str,
        *,
        name: str | None = None,
        topics: str | Sequence[str] | None = None,
        replay_bytes: int | None = None,
        on_full: OnFull | None = None,
        stall_timeout: float | None = None,
        recovery_endpoint: str | None = None,
        log: "LogConfig | None" = None,
        config: PublisherConfig | None = None,
        intake: SubscriberConfig | None = None,
    ) -> None:
        settings = publisher_config(config, replay_bytes, on_full, stall_timeout)
        receiving = intake_config(intake, None, REPAIR_TIMEOUT_S if intake is None else None)
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        places, names = check_endpoints(upstreams), check_topics(topics)
        self._upstreams = [*map(str, places)]
        self._lock = PublishLock()
        self._loops_said = 0
        self._log_failure: str | None = None
        with translated(), ExitStack() as undo:
            self._open(endpoint, recovery_endpoint, settings, log, undo)
            undo.pop_all()
        self._source = SubscriberCore(
            topics=names,
            lines=len(places),
            start=Start("earliest"),
            subscriber=_random.getrandbits(64),
            name=self._name,
            config=receiving,
            wait_for_repair=True,
            rng=Random(_random.getrandbits(64)),
            now_ns=time.monotonic_ns(),
            cursor=Resumption(self._core),
            relay=self._core.id,
            datagram_lines=[at for at, place in enumerate(places) if place.is_datagram],
        )
        self._transfer = Transfer(self._source, self._core)
        try:
            self._receiving = open_lines(self._source, places, names, receiving)
        except BaseException:
            self._close_sockets(0)
            raise
        self._worker = Worker("p2pmsg-relay", "the relay", self._turn)
        close_in_children(self)
        self._driver.start()
        self._receiving.start()
        self._worker.start()
        close_at_exit(self, Relay.close)

    def _open(
        self,
        endpoint: str,
        recovery_endpoint: str | None,
        config: PublisherConfig,
        log: "LogConfig | None",
        undo: ExitStack,
    ) -> None:
        at = transports.parse_endpoint(endpoint)
        if at.is_datagram:
            raise ConfigError("endpoint", "tcp://…, ipc://… or inproc://… for a relay", endpoint)
        recovery_at = recovery_endpoint_of(at, recovery_endpoint)
        context, relay = transports.context(), _random.getrandbits(64)
        kept, metadata = None, None
        if log is not None:
            kept = PublisherLog(log, session=relay, wall_ns=time.time_ns())
            undo.callback(kept.close, time.time_ns())
            relay, metadata = kept.session, RelayMetadata(kept.store)
            if kept.topics():
                limit = "the log of a relay, or a new one; this is a publisher's"
                raise ConfigError("log", limit, str(log.directory))
            if metadata.is_damaged:
                _log.warning("%s: its metadata is damaged; names are unknown", log.directory)
            metadata.write()
        server = transports.ZmqRecoveryServer(
            recovery_at, context=context, queue_frames=config.queue_frames
        )
        undo.callback(server.close)
        self._core = RelayCore(
            name=self._name,
            relay=relay,
            recovery=server.endpoint,
            config=config,
            now_ns=time.monotonic_ns(),
            log=kept,
            metadata=metadata,
            memory=ZMQ_MEMORY,
        )
        self._too_many_sessions = Refusals(f"sessions than {SESSIONS_MAX:,}")
        self._too_many_streams = Refusals(f"streams than {self._core.streams_max:,}")
        self._server = server
        self._sender = transports.ZmqSender(
            at, context=context, queue_frames=config.queue_frames, welcome=self._core.welcome
        )
        self._outgoing = Outgoing(self._core, self._sender)
        self._driver = PublisherDriver(
            self._core, self._sender, self._server, self._lock, self._outgoing
        )

    def wait_for_streams(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until so many streams are served.

        Args:
            count: how many. Default 1.
            timeout: in seconds. Default None: without end.

        Raises:
            TimeoutError: they did not come in time.
            ClosedError: the relay is closed.

        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (there := self._lock.run(self._count_streams)) < count:
            if self._closed:
                raise ClosedError("the relay")
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{there} of {count} streams came within {timeout} s")
            time.sleep(_POLL_S)

    def _count_streams(self) -> int:
        return sum(len(served.streams) for served in self._core.sessions.values())

    @property
    def connected(self) -> int:
        """How many of its upstreams' endpoints have somebody who was joined, and answers."""
        return sum(self._receiving.connected())

    def stats(self) -> RelayStats:
        """Return the counters as they are now; also after `close`."""
        with self._receiving.lock:
            return self._lock.look(
                relay_stats,
                self._core,
                self._source,
                self._outgoing.guard,
                self._sender,
                self._server,
                upstreams=self._upstreams,
                undelivered=self._undelivered,
                unanswered=self._receiving.unanswered(),
                answering=dict(zip(self._upstreams, self._receiving.connected(), strict=True)),
            )

    def _begin_close(self) -> None:
        self._worker.stop()
        self._receiving.stop()
        self._lock.run(self._core.begin_close, now_ns=time.monotonic_ns())

    def _check_logged(self, failure: LogFailedError | None) -> None:
        """Raise what failed; what the log did not take was not taken from the upstream either."""
        if failure is not None:
            raise failure

    def _close_sockets(self, linger_ms: int) -> None:
        super()._close_sockets(linger_ms)
        if self._core.metadata is not None:
            self._core.metadata.write()
        if self._core.log is not None:
            self._core.log.close(time.time_ns())

    def _turn(self) -> None:
        """Receive, keep and send on."""
        try:
            self._receive()
            while self._move() and not self._worker.stopping:
                pass
            self._log_failure = None
            self._say_loops()
            self._say_refusals()
            self._receiving.look_for_answers(time.monotonic_ns())
        except LogFailedError as error:
            if str(error) != self._log_failure:
                _log.error("the relay cannot keep what it receives, and waits: %s", error)
            self._log_failure = str(error)
            self._worker.rest(_LOG_RETRY_S)
        except Exception:
            self._receiving.interrupted = True
            raise

    def _receive(self) -> None:
        receiving = self._receiving
        with receiving.io_lock:
            if not self._source.ready.entries:
                receiving.round(_WAIT_MS)

    def _move(self) -> bool:
        """Move what is ready; False when nothing is left."""
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        version = self._core.version
        with self._receiving.lock, self._lock:
            moved = self._transfer.transfer(now_ns=now_ns, wall_ns=wall_ns)
            gone = self._send()
        if version != self._core.version:
            self._driver.wake()
        while not gone and not self._worker.stopping:
            time.sleep(0.0002)
            gone = self._lock.run(self._send)
        return bool(moved)

    def _send(self) -> bool:
        if self._core.unsynced:
            self._driver.wake()
        return self._outgoing.send()

    def _say_loops(self) -> None:
        loops = self._source.relays.loops_refused
        if loops and not self._loops_said:
            _log.warning(
                "%r refuses an upstream that gets what it has from this relay: a loop", self._name
            )
        self._loops_said = loops

    def _say_refusals(self) -> None:
        core, now_ns = self._core, time.monotonic_ns()
        self._too_many_sessions.look(self._name, core.sessions_refused, now_ns=now_ns)
        self._too_many_streams.look(self._name, core.streams_refused, now_ns=now_ns)

    def _forget(self) -> None:
        """In a forked child: the sockets and the threads are the parent's, perhaps the lock too."""
        self._closed = True
        self._worker.stopping = True
        self._lock = PublishLock()
        self._receiving.lock = threading.RLock()
        self._core.closing = True
