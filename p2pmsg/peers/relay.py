"""A relay: it receives, keeps, and serves on; and the base of its faces, which never waits."""

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import transports
from p2pmsg.checks import checked
from p2pmsg.config import OnFull, PublisherConfig, SubscriberConfig
from p2pmsg.driver.verbs import Blocking, LateError, Verb, Wait
from p2pmsg.errors import ConfigError, LogFailedError, LogFormatError, translated
from p2pmsg.peers.lines import open_lines
from p2pmsg.peers.network import Network
from p2pmsg.peers.opening import allowed_by, recovery_endpoint_of
from p2pmsg.peers.relay_stats import relay_stats
from p2pmsg.peers.sending import UNSYNCED_MAX, Outgoing
from p2pmsg.peers.serving import ServingBase, ServingPeer
from p2pmsg.peers.settings import (
    check_endpoints,
    check_name,
    check_topics,
    laid_over,
    log_config,
)
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.relay.core import SESSIONS_MAX, RelayCore
from p2pmsg.relay.metadata import NAME, TABLES, RelayMetadata
from p2pmsg.relay.stats import RelayStats
from p2pmsg.relay.transfer import Resumption, Transfer
from p2pmsg.security.use import curve_server
from p2pmsg.start import Start
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.relays import LOOP
from recovery import RecoveryError
from transports.own_log import own_log as _log
from transports.trouble import Rarely

if TYPE_CHECKING:
    from pathlib import Path

    from p2pmsg.security.settings import Security
    from recovery.log import LogConfig, LogStore

_MS: Final = 1_000_000
REPAIR_TIMEOUT_S: Final = 5.0
"""How long a relay waits for a repair without progress: half as long as subscribers do. What it has
after a gap it serves when the gap is repaired or given up, and they should not give up first."""
_LOG_RETRY_NS: Final = 100 * _MS
"""How long it rests when the log did not take what came."""
_HELD_UP_NS: Final = 2 * _MS
_RECEIVING_NS: Final = 1 * _MS
"""How long it receives and keeps in one turn."""
_MOVED_AT_ONCE: Final = 32


class Settings(NamedTuple):
    """What a relay is to be; see `Relay`."""

    title: str
    upstreams: list[transports.Endpoint]
    topics: list[str]
    endpoint: str
    recovery_endpoint: str | None
    config: PublisherConfig
    intake: SubscriberConfig
    log: "LogConfig | str | Path | None"
    security: "Security | None"


class RelayPeer(ServingPeer):
    """Moves what its upstreams have into what it serves.

    Attributes:
        source: the engine of its receiving side.

    """

    kind = "relay"
    thread_name = "p2pmsg-relay"
    core: RelayCore

    def __init__(self, settings: Settings, network: Network) -> None:
        super().__init__(settings.title, network, settings.security)
        self._upstreams = [str(place.without_key()) for place in settings.upstreams]
        self._loops_logged: set[int] = set()
        self._log_failure: str | None = None
        self._rests_until_ns = 0
        self._has_more = False
        self._both_fds: frozenset[int] = frozenset()
        with translated(), ExitStack() as undo:
            self._open(settings, network, undo)
            self._use_sockets()
            undo.pop_all()

    def _open(self, settings: Settings, network: Network, undo: ExitStack) -> None:
        at = transports.parse_endpoint(settings.endpoint)
        if at.is_datagram:
            limit = "tcp://…, ipc://… or inproc://… for a relay"
            raise ConfigError("endpoint", limit, settings.endpoint)
        config, security, random = settings.config, settings.security, network.random
        self.server = network.recovery_server(
            recovery_endpoint_of(at, settings.recovery_endpoint),
            queue_frames=config.queue_frames,
            curve=curve_server(security),
        )
        undo.callback(self.server.close)
        log, metadata = _open_log(settings, network, undo)
        core = self.core = RelayCore(
            name=settings.title,
            relay=random.getrandbits(64) if log is None else log.session,
            recovery=self.server.endpoint,
            config=config,
            now_ns=self.now_ns(),
            log=log,
            metadata=metadata,
            memory=network.frame_memory,
            topics=settings.topics,
        )
        self._refused_logged, self._rarely = 0, Rarely()
        self.sender = network.sender(
            at,
            queue_frames=config.queue_frames,
            welcome=core.welcome,
            curve=curve_server(security),
            allows=allowed_by(core, security),
        )
        undo.callback(self.sender.close)
        self.outgoing = Outgoing(core, self.sender, self.now_ns)
        self.source = SubscriberCore(
            topics=settings.topics,
            lines=len(settings.upstreams),
            start=Start("earliest"),
            subscriber=random.getrandbits(64),
            name=settings.title,
            config=settings.intake,
            rng=Random(random.getrandbits(64)),
            now_ns=self.now_ns(),
            cursor=Resumption(core),
            relay=core.id,
            datagram_lines=[n for n, place in enumerate(settings.upstreams) if place.is_datagram],
            counts_replies=network.keeps_replies,
        )
        self._transfer = Transfer(self.source, core)
        self._receiving = open_lines(
            self.source, settings.upstreams, settings.topics, settings.intake, network, security
        )

    # -------------------------------------------------------------------------- turns

    def turn(self, now_ns: int) -> None:
        """Serve, and receive what has come."""
        super().turn(now_ns)
        if self._is_ended or self._receiving.is_closed:
            return
        self._has_more = False
        if now_ns < self._rests_until_ns:  # the log took nothing
            self._receiving.settle()
            return
        try:
            self._relay()
        except LogFailedError as error:
            self._on_log_failure(error)
            self._rests_until_ns = now_ns + _LOG_RETRY_NS
            self._receiving.settle()
            return
        self._log_failure = None
        self._has_more = self._receiving.settle() or self._has_more
        self._log_changes()

    def _relay(self) -> None:
        """Receive, keep and send on for a while, or until its own subscribers have no space."""
        began_ns = now_ns = self.now_ns()
        while True:
            came = self._receiving.round(now_ns)
            if self._is_held_up:
                return
            moved = self._transfer.transfer(
                now_ns=now_ns, wall_ns=self._wall_ns(), count_max=_MOVED_AT_ONCE
            )
            self.outgoing.send_now()
            if not came and not moved:
                return
            now_ns = self.now_ns()
            if now_ns > began_ns + _RECEIVING_NS:
                self._has_more = True
                return

    @property
    def _is_held_up(self) -> bool:
        """Whether its own subscribers have no space: what has come waits until they have."""
        return bool(self.core.outbox) or len(self.core.unsynced) >= UNSYNCED_MAX

    def fds(self) -> Collection[int]:
        """Return the sockets of both sides; of the receiving one only while it receives."""
        own = super().fds()
        if self._is_ended or self._receiving.is_closed or self._rests:
            return own
        both = self._receiving.fds().union(own)
        if both != self._both_fds:
            self._both_fds = both
        return self._both_fds

    @property
    def _rests(self) -> bool:
        return self._is_held_up or self.now_ns() < self._rests_until_ns

    def _next_due_ns(self, now_ns: int) -> int:
        due_ns = super()._next_due_ns(now_ns)
        if self._receiving.is_closed:
            return due_ns
        if now_ns < self._rests_until_ns:
            return min(due_ns, self._rests_until_ns)
        if self._is_held_up:
            return min(due_ns, now_ns + _HELD_UP_NS)
        if self._has_more or self._receiving.has_sent:
            return now_ns
        return min(due_ns, self._receiving.next_deadline_ns())

    def resync(self) -> None:
        """Go on after an exception at any line, on both sides."""
        super().resync()
        self._receiving.resync()

    # --------------------------------------------------------------------------- said

    def _on_log_failure(self, error: LogFailedError) -> None:
        log = self.core.log
        if log is not None and log.broken is None:
            return  # it will be tried again, and the log says so itself
        if str(error) != self._log_failure:
            _log.error("the relay cannot keep what it receives, and waits: %s", error)
        self._log_failure = str(error)

    def _log_changes(self) -> None:
        """Log which upstreams lead back here, what is denied, and what had no place; each once."""
        for at, line in enumerate(self.source.lines):
            if line.refusal != LOOP:
                self._loops_logged.discard(at)
            elif at not in self._loops_logged:
                self._loops_logged.add(at)
                place = self._upstreams[at]
                _log.warning("the relay %r refuses %s: %s", self.title, place, line.refusal)
        sessions, streams = self.core.sessions_refused, self.core.streams_refused
        if sessions + streams > self._refused_logged and self._rarely.is_due():
            self._refused_logged = sessions + streams
            _log.warning(
                "the relay %r takes on at most %d sessions and %d streams; refused, so far: %d, %d",
                self.title, SESSIONS_MAX, self.core.config.streams_max, sessions, streams,
            )  # fmt: skip
        while (denial := self.source.denials.take()) is not None:
            _log.warning("the relay %r: %s", self.title, denial.as_error())

    # ------------------------------------------------------------------------- upkeep

    def _has_more_upkeep(self, now_ns: int) -> bool:
        metadata = self.core.metadata
        return metadata is not None and metadata.is_due(now_ns=now_ns)

    def _more_upkeep(self) -> Verb[None]:
        metadata = self.core.metadata
        if metadata is not None and metadata.is_due(now_ns=self.now_ns()):
            content = metadata.take(self.core.sessions.values(), now_ns=self.now_ns())
            yield Blocking(partial(self._alone, metadata.store, content))

    # ------------------------------------------------------------------ verbs, closing

    def connected(self) -> int:
        """Return how many upstreams' endpoints have somebody who was joined, and answers."""
        return sum(self._receiving.connected())

    def wait_for_streams(self, count: int, timeout_s: float | None) -> Verb[None]:
        """Wait until so many streams are served."""
        is_there = yield Wait(lambda: self._streams() >= count, self.deadline_ns(timeout_s))
        self.check_open()
        if not is_there:
            there = self._streams()
            raise LateError(f"{there} of {count} streams came within {timeout_s} s")

    def _streams(self) -> int:
        return sum(len(served.streams) for served in self.core.sessions.values())

    def stats(self) -> RelayStats:
        """Return the counters."""
        receiving = self._receiving
        answering = dict(zip(self._upstreams, receiving.connected(), strict=True))
        return relay_stats(
            self.core, self.source, self._upstreams, receiving.unanswered(), answering,
            self._counts(),
        )  # fmt: skip

    def _begin_close(self) -> None:
        self._receiving.close()
        super()._begin_close()

    def _close_log(self) -> None:
        if self.core.metadata is not None:
            self.core.metadata.close(self.core.sessions.values())
        if self.core.log is not None:
            self.core.log.close()


def _open_log(
    settings: Settings, network: Network, undo: ExitStack
) -> tuple[PublisherLog | None, RelayMetadata | None]:
    config = log_config(settings.log)
    if config is None:
        return None, None
    session = network.random.getrandbits(64)
    store = network.log_store(config)
    log = PublisherLog(config, session=session, wall_ns=network.wall_ns(), store=store)
    undo.callback(log.close)
    metadata = _open_metadata(store, undo)
    if log.topics():
        limit = "the log of a relay, or a new one; this is a publisher's"
        raise ConfigError("log", limit, str(config.directory))
    if log.copied:
        _log.warning(
            "the log %s is a relay's: what it received since the copy was made is asked for again "
            "where its sessions go on, and else it is unknown, and not reported",
            config.directory,
        )
    return log, metadata


def _open_metadata(store: "LogStore", undo: ExitStack) -> RelayMetadata:
    path = store.path(NAME)
    try:
        file = store.open_store(NAME, TABLES)
        undo.callback(file.close)
        return RelayMetadata(file)
    except RecoveryError as error:
        what = f"{error}; delete it to go on without the names and losses that it has"
        raise LogFormatError(path, 0, f"{path}: {what}") from error
    except OSError as error:
        raise LogFailedError(f"{path} cannot be read: {error}", error.errno) from error


class RelayBase(ServingBase):
    """What the faces share."""

    _peer: RelayPeer

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
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        settings = Settings(
            self._name,
            check_endpoints(upstreams),
            check_topics(topics),
            endpoint,
            recovery_endpoint,
            laid_over(
                config or PublisherConfig(),
                replay_bytes=replay_bytes,
                on_full=on_full,
                stall_timeout=stall_timeout,
            ),
            intake or SubscriberConfig(repair_timeout=REPAIR_TIMEOUT_S),
            log,
            security,
        )
        self._security = security
        self._begin(RelayPeer, settings)

    @property
    def connected(self) -> int:
        """How many of its upstreams' endpoints have somebody who was joined, and answers."""
        return self._read(self._peer.connected)

    def stats(self) -> RelayStats:
        """Return the counters as they are now; also after `close`."""
        return self._read(self._peer.stats)
