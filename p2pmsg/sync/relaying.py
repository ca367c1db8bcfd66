"""What a relay does, with threads or in an event loop: receive, keep, and serve on."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NoReturn

import transports
from p2pmsg.checks import checked
from p2pmsg.config import OnFull, PublisherConfig, SubscriberConfig
from p2pmsg.driver.lifecycle import INHERITED, close_in_children, zmq_context
from p2pmsg.errors import ClosedError, ConfigError, LogFailedError, translated
from p2pmsg.peers.lines import open_lines
from p2pmsg.peers.network import MACHINE
from p2pmsg.peers.receiving import Receiving
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.relay.core import SESSIONS_MAX, RelayCore
from p2pmsg.relay.metadata import RelayMetadata
from p2pmsg.relay.stats import RelayStats
from p2pmsg.relay.transfer import Resumption, Transfer
from p2pmsg.security.use import curve_server, warn_if_open
from p2pmsg.start import Start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.relays import LOOP
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.opening import ZMQ_MEMORY, allowed_by, recovery_endpoint_of
from p2pmsg.sync.relay_stats import relay_stats
from p2pmsg.sync.sending import Outgoing
from p2pmsg.sync.serving import ServingPeer, ServingRounds
from p2pmsg.sync.settings import (
    check_endpoints,
    check_name,
    check_topics,
    log_config,
    publisher_config,
)
from p2pmsg.sync.settings import subscriber_config as intake_config
from p2pmsg.trouble import Refusals
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.security.settings import Security
    from recovery.log import LogConfig

REPAIR_TIMEOUT_S: Final = 5.0
"""How long a relay waits for a repair without progress: half as long as subscribers do. What it has
after a gap it serves when the gap is repaired or given up, and they should not give up first."""
LOG_RETRY_S: Final = 0.1
"""How long it rests when the log did not take what came."""
_random = Random()


class RelayingPeer(ServingPeer):
    """A relay; the subclass makes what takes its rounds, and moves what has come.

    Attributes:
        _receiving: its receiving side; `_receiving_lock` is held around each of its calls.

    """

    _kind = "relay"
    _core: RelayCore
    _outgoing: Outgoing
    _rounds: ServingRounds
    _receiving: Receiving

    @checked()
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
        log: "LogConfig | str | Path | None" = None,
        config: PublisherConfig | None = None,
        intake: SubscriberConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        self._security = security
        settings = publisher_config(config, replay_bytes, on_full, stall_timeout)
        receiving = intake_config(intake, None, REPAIR_TIMEOUT_S if intake is None else None)
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        places, names = check_endpoints(upstreams), check_topics(topics)
        self._topics = names
        self._upstreams = [str(place.without_key()) for place in places]
        self._lock = self._make_lock()
        self._receiving_lock = threading.RLock()
        self._loops_logged: set[int] = set()
        self._log_failure: str | None = None
        publishing = partial(self._open_publishing, endpoint, recovery_endpoint, settings, log)
        self._open_by(partial(self._open, publishing, places, names, receiving))

    def _open(
        self,
        open_publishing: Callable[[ExitStack], None],
        places: list[transports.Endpoint],
        names: list[str],
        receiving: SubscriberConfig,
    ) -> None:
        with translated(), ExitStack() as undo:
            open_publishing(undo)
            undo.pop_all()
        self._source = SubscriberCore(
            topics=names,
            lines=len(places),
            start=Start("earliest"),
            subscriber=_random.getrandbits(64),
            name=self._name,
            config=receiving,
            rng=Random(_random.getrandbits(64)),
            now_ns=time.monotonic_ns(),
            cursor=Resumption(self._core),
            relay=self._core.id,
            datagram_lines=[at for at, place in enumerate(places) if place.is_datagram],
            counts_replies=True,
        )
        self._transfer = Transfer(self._source, self._core)
        try:
            self._receiving = open_lines(
                self._source, places, names, receiving, MACHINE, self._security
            )
        except BaseException:
            self._close_sockets(0)
            self._close_log()
            raise
        close_in_children(self)

    def _open_publishing(
        self,
        endpoint: str,
        recovery_endpoint: str | None,
        config: PublisherConfig,
        log: "LogConfig | str | Path | None",
        undo: ExitStack,
    ) -> None:
        at = transports.parse_endpoint(endpoint)
        if at.is_datagram:
            raise ConfigError("endpoint", "tcp://…, ipc://… or inproc://… for a relay", endpoint)
        recovery_at = recovery_endpoint_of(at, recovery_endpoint)
        context, relay = zmq_context(), _random.getrandbits(64)
        kept, metadata = None, None
        if (log := log_config(log)) is not None:
            kept = PublisherLog(log, session=relay, wall_ns=time.time_ns())
            undo.callback(kept.close)
            relay, metadata = kept.session, RelayMetadata(kept.store)
            if kept.topics():
                limit = "the log of a relay, or a new one; this is a publisher's"
                raise ConfigError("log", limit, str(log.directory))
            if kept.copied:
                _log.warning(
                    "the log %s is a relay's: what it received since the copy was made is asked "
                    "for again where its sessions go on, and else it is unknown, and not reported",
                    log.directory,
                )
            if metadata.is_damaged:
                _log.warning("%s: its metadata is damaged; names are unknown", log.directory)
            metadata.write()
        curve = curve_server(self._security)
        server = transports.ZmqRecoveryServer(
            recovery_at, context=context, queue_frames=config.queue_frames, curve=curve
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
            topics=self._topics,
        )
        self._too_many_sessions = Refusals(f"sessions than {SESSIONS_MAX:,}")
        self._too_many_streams = Refusals(f"streams than {self._core.config.streams_max:,}")
        self._server = server
        self._sender = transports.ZmqSender(
            at, context=context, queue_frames=config.queue_frames, welcome=self._core.welcome,
            curve=curve, allows=allowed_by(self._core, self._security),
        )  # fmt: skip
        for bound in (self._sender.endpoint, server.endpoint):
            warn_if_open(self._security, bound)
        self._outgoing = Outgoing(self._core, self._sender)

    def _refuse_wait_for_streams(self, count: int, timeout: float | None) -> NoReturn:
        """Raise that not so many streams came."""
        if self._closed:
            raise ClosedError("the relay", self._why)
        there = self._lock.run(self._count_streams)
        raise TimeoutError(f"{there} of {count} streams came within {timeout} s")

    def _count_streams(self) -> int:
        return sum(len(served.streams) for served in self._core.sessions.values())

    @property
    def connected(self) -> int:
        """How many of its upstreams' endpoints have somebody who was joined, and answers."""
        with self._receiving_lock:
            return sum(self._receiving.connected())

    def stats(self) -> RelayStats:
        """Return the counters as they are now; also after `close`."""
        with self._receiving_lock:
            return self._lock.read(
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

    def _check_logged(self, failure: LogFailedError | None) -> None:
        """Raise what failed; what the log did not take was not taken from the upstream either."""
        if failure is not None:
            raise failure

    def _close_log(self) -> None:
        if self._core.metadata is not None:
            self._core.metadata.write()
        if self._core.log is not None:
            self._core.log.close()

    def _move_some(self, count_max: int = 256, *, writes: bool = True) -> tuple[int, bool]:
        """Move what is ready: how many frames and losses, and whether all has left."""
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        version = self._core.version
        with self._receiving_lock, self._lock:
            moved = self._transfer.transfer(
                now_ns=now_ns, wall_ns=wall_ns, count_max=count_max, writes=writes
            )
            gone = self._send()
        if version != self._core.version:
            self._rounds.wake()
        return moved, gone

    def _close_receiving(self) -> None:
        with self._receiving_lock:
            self._receiving.close()

    def _send(self) -> bool:
        if self._core.unsynced:
            self._rounds.wake()
        return self._outgoing.send()

    def _after_move(self) -> None:
        """Say what is new to say."""
        self._log_failure = None
        self._say_loops()
        self._say_refusals()
        if self._source.denials.waiting:
            self._say_denials()

    def _on_log_failure(self, error: LogFailedError) -> None:
        log = self._core.log
        if log is not None and log.broken is None:
            return  # it will be tried again, and the log says so itself
        if str(error) != self._log_failure:
            _log.error("the relay cannot keep what it receives, and waits: %s", error)
        self._log_failure = str(error)

    def _say_loops(self) -> None:
        """Log which upstreams lead back here: each once, and again where it was taken meanwhile."""
        for at, line in enumerate(self._source.lines):
            if line.refusal != LOOP:
                self._loops_logged.discard(at)
            elif at not in self._loops_logged:
                self._loops_logged.add(at)
                upstream = self._upstreams[at]
                _log.warning("the relay %r refuses %s: %s", self._name, upstream, line.refusal)

    def _say_denials(self) -> None:
        """Log what is denied to it, or by it to those who send; each once."""
        with self._receiving_lock:
            waiting, self._source.denials.waiting = self._source.denials.waiting, []
        for denial in waiting:
            _log.warning("the relay %r: %s", self._name, denial.as_error())

    def _say_refusals(self) -> None:
        core, now_ns = self._core, time.monotonic_ns()
        self._too_many_sessions.check(self._name, core.sessions_refused, now_ns=now_ns)
        self._too_many_streams.check(self._name, core.streams_refused, now_ns=now_ns)

    def _forget(self) -> None:
        """In a forked child: the sockets and the threads are the parent's, perhaps the lock too."""
        self._closed, self._why = True, INHERITED
        self._lock = PublishLock()
        self._receiving_lock = threading.RLock()
        self._core.closing = True
