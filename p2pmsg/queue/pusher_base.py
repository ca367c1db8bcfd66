"""What the pushers for threads and for asyncio share: opening, accepting, handing out, counting."""

import ipaddress
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import transports
from p2pmsg.checks import at_least, check, checked, shown
from p2pmsg.codec import exact_encoder
from p2pmsg.errors import (
    ClosedError,
    ConfigError,
    LogFailedError,
    MessageError,
    P2PError,
    translated,
)
from p2pmsg.publisher.batch import (
    PACKING_ERRORS,
    check_key,
    check_size,
    pack_exactly,
    pack_headers,
    packing_error,
)
from p2pmsg.queue import process_id
from p2pmsg.queue.batching import PushBatch
from p2pmsg.queue.config import (
    GATHER_WITHIN_NS,
    IN_FLIGHT_CEILING,
    IN_FLIGHT_MIN,
    LINGER_S,
    PusherConfig,
)
from p2pmsg.queue.dead_letters import DeadLetters, letter_of
from p2pmsg.queue.journal.file import FileJournal, QueueLogConfig, log_settings
from p2pmsg.queue.journal.records import JournalState, push_record
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.pusher_io import PusherIO
from p2pmsg.queue.rules import PRIORITY_MAX, JobQueue, QueuedJob
from p2pmsg.queue.stats import PusherStats, WorkerStats
from p2pmsg.security.use import curve_server, warn_if_open
from p2pmsg.sync.lifecycle import INHERITED, zmq_context
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.settings import check_name

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security
    from p2pmsg.sync.access_watch import AccessWatch

_IDLE_ROUNDS: Final = 5
_DELAY_MAX: Final = 366 * 86400.0
_MESSAGE_ID_BYTES_MAX: Final = 255
_encode_into = exact_encoder.encode_into
_get_ident = threading.get_ident
LogChoice = str | os.PathLike[str] | QueueLogConfig | None


class Wakes(Protocol):
    """What takes a pusher's turns: a thread, or an event loop."""

    def wake(self) -> None:
        """Have a turn taken soon."""


class Opened(NamedTuple):
    """What a pusher has of the operating system."""

    state: JournalState
    journal: FileJournal | None
    server: transports.ZmqQueueServer

    def close(self) -> None:
        """Give it back, where the pusher is not made after all."""
        self.server.close()
        if self.journal is not None:
            self.journal.close()


class PusherBase(ABC):
    """Accepts jobs under a lock, and does the work of one turn; who waits, and how, is left out."""

    _driver: Wakes

    @checked(ack_timeout=0.05, deliveries_max=(1, 1_000_000))
    def __init__(
        self,
        endpoint: str,
        *,
        log: LogChoice = None,
        ack_timeout: float | None = None,
        deliveries_max: int | None = None,
        in_flight_max: int | None = None,
        job_timeout: float | None = None,
        name: str | None = None,
        config: PusherConfig | None = None,
        mode: str = "queue",
        security: "Security | None" = None,
    ) -> None:
        check(
            "mode", mode, mode == "queue", '"queue", or "pipeline" where the class itself is called'
        )
        changed = _config_of(config, ack_timeout, deliveries_max, in_flight_max, job_timeout)
        self._security = security
        self._configure(endpoint, log, name, changed)
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Call `_open`, which may take long, then `_start`; have turns taken from then on."""

    def _configure(
        self, endpoint: str, log: LogChoice, name: str | None, config: PusherConfig
    ) -> None:
        """Check what was given, without opening anything."""
        self._config = config
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        self._lock = PublishLock()
        self._closed = False
        self._unusable: str | None = None
        self._duplicates = 0
        self._granted = 0  # how many in flight `drain` has said there is space for
        self._place = endpoint
        self._log_settings = log_settings(log)
        self._journal: FileJournal | None = None

    def _open(self) -> Opened:
        """Open the log and bind the endpoint."""
        context = zmq_context()
        settings, state = self._log_settings, JournalState()
        journal: FileJournal | None = None
        if settings is not None:
            window = self._config.queue.dedup_window
            boot = process_id.boot_id()
            try:
                journal = FileJournal(settings, state, boot=boot, dedup_window=window)
            except P2PError:
                raise
            except OSError as error:
                what = f"the log {settings.directory} cannot be used: {error.strerror or error}"
                raise LogFailedError(what, error.errno) from error
        try:
            with translated():
                server = transports.ZmqQueueServer(
                    self._place, context=context, curve=curve_server(self._security),
                    peer_timeout=self._config.queue.ack_timeout,
                )  # fmt: skip
        except BaseException:
            if journal is not None:
                journal.close()
            raise
        warn_if_open(self._security, server.endpoint)
        return Opened(state, journal, server)

    def _start(self, opened: Opened) -> None:
        state, self._journal, self._server = opened
        now_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        # Beyond any delivery number of an earlier run.
        incarnation = max(wall_ns, state.deliveries)
        queue = JobQueue(
            self._config.queue,
            wall_offset_ns=wall_ns - now_ns,
            first_delivery=incarnation,
            records=self._journal is not None,
        )
        session = state.session if state.session is not None else secrets.randbits(64)
        self._core = PusherCore(
            queue,
            name=self._name,
            session=session,
            incarnation=incarnation,
            job_timeout=self._config.job_timeout,
            is_gone=process_id.is_gone,
            admin_refusal=self._admin_refusal(),
            message_bytes_max=self._config.message_bytes_max,
        )
        if self._security is not None:
            from p2pmsg.queue.pull_access import PullAccess

            place = f"the pusher {self._name!r}"
            self._core.use_access_rules(PullAccess(self._security.grants, self._name, place))
        self._restored = self._core.restore(state, now_ns=now_ns)
        self._missing = state.missing
        self._io = self._make_io()
        self._syncs = self._journal is not None and self._journal.is_always
        self._store = queue.store
        self._batch = PushBatch(self._store, self._config, state.next_sequence)
        self._gathering = False
        self._idle_rounds = 0
        self._pushed_ns = 0

    def _admin_refusal(self) -> str | None:
        """Return why nobody administers it over the wire; None where some may."""
        security, admin = self._security, self._config.admin
        if admin != "never" and security is not None and security.access_rules is not None:
            return None  # each key is looked at: where it comes from does not matter
        return _admin_refusal(admin, self._place)

    def _access_watch(self) -> "AccessWatch | None":
        if self._security is None:
            return None
        from p2pmsg.sync.access_watch import AccessWatch

        return AccessWatch(self._security.grants, None, self._server)

    def _make_io(self) -> PusherIO:
        return PusherIO(self._core, self._server, self._journal, access_rules=self._access_watch())

    # --------------------------------------------------------------------------------- public

    @property
    def endpoint(self) -> str:
        """Where pullers connect to, with the port that was picked."""
        return self._server.endpoint

    @property
    def name(self) -> str:
        """The pusher's name."""
        return self._name

    @property
    def session(self) -> int:
        """The 64-bit id of the queue; with a log, the same after a restart."""
        return self._core.session

    def push(
        self,
        value: Any,
        key: str | None = None,
        priority: int = 0,
        delay: float = 0.0,
        message_id: str | None = None,
        headers: dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Accept one job and return its sequence; waits while `in_flight_max` are in flight.

        It is handed out at once, and shares a frame with others where jobs follow one another
        closely, for at most `linger`. What is changed in `value` afterwards changes nothing.

        Args:
            value: any msgpack value: bytes, str, int (64 bits), float, bool, None, list, dict.
            key: what it belongs to. Of one key, one job at a time is with any worker, in the order
                of pushing; a later one waits until it is done or a dead letter. Default None:
                it waits for nothing.
            priority: 0 to 9; higher ones go first among what is not yet handed out. Within a key
                the order of pushing rules. Default 0.
            delay: how long it is not handed out, in seconds, 31,622,400 (366 days) at most, also
                if the wall clock is set meanwhile. Default 0.
            message_id: by which a job that was pushed before, within the window
                (`QueueConfig.dedup_window`), is known and not accepted again; the sequence that
                it got then is returned. Default None.
            headers: further fields by name, msgpack values. Default None.
            timeout: how long to wait at `in_flight_max`, in seconds. Default None: without end.

        Raises:
            MessageError: it cannot be pushed as it is; `MessageTooLargeError` for its size.
            ConfigError: priority, delay or message_id is out of its limits.
            TimeoutError: too many were in flight all the time.
            LogFailedError: the log could not be written, or what was written could not be forced to
                the disk, which is final. The job was not accepted; after a failed fsync a later run
                on the log may find it all the same.
            ClosedError: the pusher is closed.

        """
        # Written out as in Publisher.publish, for the same reasons: the owner instead of the lock,
        # and a job is in by one append. While jobs do not follow closely, `stop` is `next`.
        lock, batch = self._lock, self._batch
        me = lock.mark
        if not me._is_owned():
            me = _get_ident()
        sequence = batch.next
        if (
            lock.owner is not None or sequence >= batch.stop or key is not None or priority or delay
            or message_id is not None or headers is not None
        ):  # fmt: skip
            return self._push_slowly(value, key, priority, delay, message_id, headers, timeout)
        lock.owner = me
        try:
            buffer = batch.buffer
            _encode_into(value, buffer, -1)
            size = len(buffer)
            if size < batch.bytes_max:
                batch.ends.append(size)
                batch.next = sequence + 1
                lock.owner = None
                return sequence
            batch.repair()
        except BaseException as error:
            batch.repair()
            lock.owner = None
            if isinstance(error, PACKING_ERRORS) and not isinstance(error, MessageError):
                raise packing_error("value", value, error) from None
            raise
        lock.owner = None
        return self._push_slowly(value, key, priority, delay, message_id, headers, timeout)

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint)

    def stats(self) -> PusherStats:
        """Return the counters as they are now; also after `close`."""
        return self._lock.read(self._stats)

    def revoke(self, who: str) -> list[str]:
        """Admit a puller no more: its connections are ended, and its jobs go to others.

        It returns at once; the rest is done in the next turn, within some ms. What that puller says
        of its jobs does not count any more. It holds for all peers that were given the same
        `Security`, while the process runs: take the peer out of the files as well.

        Args:
            who: the name of a peer that is known, or its public key as text.

        Returns:
            The public keys that were revoked, as text.

        Raises:
            ConfigError: there is no `security`, or no such peer.
            ClosedError: the pusher is closed.

        """
        from p2pmsg.sync.access_watch import revoke_here

        self._check_usable()
        users = revoke_here(self._security, who)
        self._driver.wake()
        return users

    def dead_letters(self) -> DeadLetters:
        """Return the dead letters as they are now; what it returns can retry and purge them."""
        dead = self._lock.run(self._store.dead.list)
        act = partial(self._lock.run_whole, self._act_on_dead)
        return DeadLetters([letter_of(each) for each in dead], act)

    # -------------------------------------------------------------------------------- private

    @abstractmethod
    def _push_slowly(
        self, value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any,
        timeout: float | None,
    ) -> int:  # fmt: skip
        """Accept a job as `push` does, looking at everything."""

    def _job(
        self, value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any
    ) -> QueuedJob:
        """Return a job that has no sequence yet, or raise as `push` says."""
        limit_bytes = self._config.message_bytes_max
        return _job_of(value, key, priority, delay, message_id, headers, limit_bytes)

    def _try_push(self, job: QueuedJob) -> tuple[int, int] | None:
        """Accept a job, under the lock; None while the queue is full.

        Returns its sequence, and up to where the log has to be synced before `push` may return with
        `fsync="always"`.
        """
        self._check_usable()
        now_ns = time.monotonic_ns()
        store, journal = self._store, self._journal
        if job.message_id is not None:
            known = store.dedup.find(job.message_id, now_ns=now_ns)
            if known is not None:
                self._duplicates += 1
                return known, 0 if journal is None else journal.written
        self._batch.seal()
        if not self._has_space(job.size):
            self._io.work(now_ns=now_ns)
            if not self._has_space(job.size):
                return None
        batch = self._batch
        sequence = job.sequence = batch.next
        if journal is not None:
            batch.next = sequence + 1  # first, so that after Ctrl-C no other job gets it
            try:
                journal.append(push_record(job))
            except OSError as error:
                batch.next = sequence
                what = f"the queue's log cannot be written: {error.strerror or error}"
                raise LogFailedError(what, error.errno) from error
        batch.next = sequence + 1
        self._io.accept(job, now_ns=now_ns)
        if self._syncs and journal is not None:
            return sequence, journal.written
        close = now_ns - self._pushed_ns < GATHER_WITHIN_NS
        if journal is None and close and not self._gathering:
            self._gathering = True
            self._idle_rounds = 0
            self._driver.wake()
        if self._gathering:
            self._lock.favour()
            self._batch.open(self._in_flight_max)
        self._io.work(now_ns=now_ns)
        # From here, so that what counts is the caller's pace and not how long handing out takes.
        self._pushed_ns = time.monotonic_ns()
        return sequence, 0

    def _hand_out(self) -> None:
        """Hand out what is on the disk now, under the lock."""
        if self._unusable is None:
            self._io.work(now_ns=time.monotonic_ns())

    def _has_space(self, size: int) -> bool:
        config, in_flight = self._config, self._in_flight
        if in_flight == 0:
            return True
        fits = self._store.bytes + self._io.unsynced_bytes + size <= config.in_flight_bytes_max
        return fits and (in_flight < self._granted or in_flight < self._in_flight_max)

    @property
    def _in_flight_max(self) -> int:
        """How many jobs may be in flight: what was given, or what is done within a moment."""
        most = self._config.in_flight_max
        if most is not None:
            return most
        done = self._core.queue.pace.within_span(now_ns=time.monotonic_ns())
        return max(IN_FLIGHT_MIN, min(done, IN_FLIGHT_CEILING))

    @property
    def _in_flight(self) -> int:
        return self._store.in_flight + len(self._io.unsynced)

    def _work(self) -> float:
        """Take the background thread's turn; return how long it may sleep, in ms."""
        if self._unusable is not None:
            raise transports.ClosedError(self.endpoint)
        now_ns = time.monotonic_ns()
        if self._gathering:
            self._idle_rounds = 0 if self._batch.ends else self._idle_rounds + 1
            self._batch.seal()
            if self._idle_rounds > _IDLE_ROUNDS:
                self._gathering = False
        if not self._io.work(now_ns=now_ns):
            return 0.0
        if self._gathering:
            self._batch.open(self._in_flight_max)
            return LINGER_S * 1000
        return self._io.wait_ms(now_ns=now_ns)

    def _is_empty(self) -> bool:
        self._check_usable()
        self._batch.seal()
        self._io.work(now_ns=time.monotonic_ns())
        if self._journal is not None and self._journal.broken is not None:
            raise LogFailedError(self._journal.broken)
        return self._in_flight == 0

    def _act_on_dead(self, action: str, sequences: list[int] | None) -> int:
        self._check_usable()
        now_ns = time.monotonic_ns()
        count = self._store.act_on_dead(action, sequences, now_ns=now_ns)
        self._io.work(now_ns=now_ns)
        return count

    def _stats(self) -> PusherStats:
        core, queue, store = self._core, self._core.queue, self._store
        now_ns = time.monotonic_ns()
        waiting = len(self._batch.ends) + len(self._io.unsynced)
        invalid = dict(core.invalid)
        if self._server.malformed:
            invalid["parts"] = self._server.malformed
        return PusherStats(
            endpoint=self.endpoint,
            pushed=store.pushed + waiting,
            restored=self._restored,
            retried=store.retried,
            duplicates=self._duplicates,
            done=store.done,
            dead=store.died,
            in_flight=store.in_flight + waiting,
            in_hands=queue.assigned_count,
            delayed=store.delayed,
            waiting_for_key=store.key_order.waiting,
            delivered=queue.delivered,
            failed=store.failed,
            recalled=queue.recalled,
            taken_back=queue.taken_back,
            refused=queue.refused,
            dead_letters=len(store.dead),
            dead_letters_dropped=store.dead.dropped,
            breaker=queue.breaker.state.value,
            breaker_trips=queue.breaker.trips,
            frames_invalid=invalid,
            held_back=queue.held_back,
            delays_capped=queue.delays_capped,
            extends_capped=queue.extends_capped,
            admin_refused=core.admin_refused,
            connections_refused=self._server.refused_by_key,
            denied=0 if core.access_rules is None else core.access_rules.denials.count,
            connections_revoked=self._server.revoked,
            log_missing=self._missing,
            workers=tuple(
                WorkerStats(
                    worker.name, worker.assigned.count, worker.acked, worker.failed,
                    worker.cut_ns is None, worker.breaker.state.value,
                    min(worker.limit(now_ns=now_ns), worker.allowance), worker.held_back,
                )
                for worker in queue.workers.values()
            ),
        )  # fmt: skip

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise ClosedError("the pusher", self._unusable)

    def _close_all(self) -> None:
        self._batch.seal()
        self._io.record()
        self._server.close(linger_ms=500)
        if self._journal is not None:
            self._journal.close()

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        self._closed = True
        self._unusable = INHERITED
        self._lock = PublishLock()  # a thread of the parent's may have been inside
        self._batch.stop = 0  # so that push() goes by the lock, and looks at _unusable
        if self._journal is not None:
            self._journal.forget()


def _job_of(
    value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any, bytes_max: int
) -> QueuedJob:
    """Return a job that has no sequence yet, or raise as `push` says."""
    check_key(key)
    if type(priority) is not int or not 0 <= priority <= PRIORITY_MAX:
        raise ConfigError("priority", f"an int from 0 to {PRIORITY_MAX}", priority)
    at_least("delay", delay, 0)
    if delay > _DELAY_MAX:
        raise ConfigError("delay", f"at most {_DELAY_MAX:.0f} s", delay)
    if message_id is not None:
        ok = isinstance(message_id, str) and message_id != ""
        if not ok or len(message_id.encode(errors="replace")) > _MESSAGE_ID_BYTES_MAX:
            limit = f"a str of 1 to {_MESSAGE_ID_BYTES_MAX} bytes"
            raise ConfigError("message_id", limit, message_id)
    payload = pack_exactly(value)
    raw = pack_headers(headers)
    packed_headers = None if raw is None else bytes(raw)
    check_size("job", len(payload) + len(packed_headers or b""), bytes_max)
    job = QueuedJob(0, payload, time.time_ns(), key, priority, message_id, packed_headers)
    if delay:
        delay_ns = round(delay * 1e9)
        job.due_ns, job.ready_ns = job.pushed_ns + delay_ns, time.monotonic_ns() + delay_ns
    return job


def _admin_refusal(admin: str, endpoint: str) -> str | None:
    """Return why dead letters are not administered over the wire; None where they are."""
    if admin == "always" or (admin == "local" and _is_local(endpoint)):
        return None
    if admin == "never":
        return 'the pusher administers no dead letters over the wire (admin="never")'
    return (
        f"the pusher is bound to {endpoint}, neither loopback nor a Unix socket, so anybody could "
        'do this; PusherConfig(admin="always") allows it, and a log can be read by its directory'
    )


def _is_local(endpoint: str) -> bool:
    """Whether only this machine can connect."""
    at = transports.parse_endpoint(endpoint)
    if at.scheme != "tcp":
        return at.scheme in ("ipc", "inproc")
    try:
        return ipaddress.ip_address(at.host).is_loopback
    except ValueError:
        return at.host == "localhost"


def _config_of(
    config: PusherConfig | None,
    ack_timeout: float | None,
    deliveries_max: int | None,
    in_flight_max: int | None,
    job_timeout: float | None,
) -> PusherConfig:
    """Return `config` with the keywords that were given."""
    config = config if config is not None else PusherConfig()
    queue: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    if ack_timeout is not None:
        queue["ack_timeout"] = ack_timeout
    if deliveries_max is not None:
        queue["deliveries_max"] = deliveries_max
    if job_timeout is not None:
        changes["job_timeout"] = job_timeout
    if in_flight_max is not None:
        changes["in_flight_max"] = in_flight_max
    return replace(config, queue=replace(config.queue, **queue), **changes)
