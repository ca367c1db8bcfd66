"""What the pushers for threads and for asyncio share: opening, accepting, counting."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import transports
from p2pmsg.checks import check, checked, shown
from p2pmsg.codec import SCALARS, encoder, exact_encoder
from p2pmsg.driver.lifecycle import INHERITED, zmq_context
from p2pmsg.errors import ClosedError, LogFailedError, MessageError, P2PError, translated
from p2pmsg.publisher.batch import PACKING_ERRORS, packing_error
from p2pmsg.queue import process_id
from p2pmsg.queue.config import Acknowledge, PusherConfig
from p2pmsg.queue.dead_letters import DeadLetters, letter_of
from p2pmsg.queue.each import EachJobs, ack_timeout_of
from p2pmsg.queue.journal.file import FileJournal, QueueLogConfig, log_settings
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.pipeline.pusher import BatchJobs, check_batch_config
from p2pmsg.queue.stats import PusherStats
from p2pmsg.security.use import curve_server, warn_if_open
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.settings import check_name

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_encode_into = exact_encoder.encode_into
_encode_scalar_into = encoder.encode_into
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
    """Accepts jobs under a lock; who waits, and how, is left out."""

    _driver: Wakes

    @checked(ack_timeout=0.05, deliveries_max=(1, 1_000_000))
    def __init__(
        self,
        endpoint: str,
        *,
        acknowledge: Acknowledge = "each",
        log: LogChoice = None,
        ack_timeout: float | None = None,
        deliveries_max: int | None = None,
        in_flight_max: int | None = None,
        job_timeout: float | None = None,
        name: str | None = None,
        config: PusherConfig | None = None,
        security: "Security | None" = None,
    ) -> None:
        given = {
            "deliveries_max": deliveries_max, "in_flight_max": in_flight_max,
            "job_timeout": job_timeout,
        }  # fmt: skip
        self._by_batch = acknowledge == "batch"
        if self._by_batch:
            for option, value in {"log": log, **given}.items():
                check(option, value, value is None, 'left out with acknowledge="batch"')
        changes: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        if ack_timeout is not None:
            changes["ack_timeout"] = ack_timeout
        config = replace(config if config is not None else PusherConfig(), **changes)
        if self._by_batch:
            check_batch_config(config)
        self._security = security
        self._configure(endpoint, log, name, config)
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
        self._place = endpoint
        self._log_settings = log_settings(log)
        self._journal: FileJournal | None = None

    def _open(self) -> Opened:
        """Open the log and bind the endpoint."""
        context = zmq_context()
        settings, state = self._log_settings, JournalState()
        journal: FileJournal | None = None
        if settings is not None:
            try:
                journal = FileJournal(settings, state, boot=process_id.boot_id())
            except P2PError:
                raise
            except OSError as error:
                what = f"the log {settings.directory} cannot be used: {error.strerror or error}"
                raise LogFailedError(what, error.errno) from error
        peer_timeout = None if self._by_batch else ack_timeout_of(self._config)
        try:
            with translated():
                server = transports.ZmqQueueServer(
                    self._place,
                    context=context,
                    curve=curve_server(self._security),
                    peer_timeout=peer_timeout,
                )
        except BaseException:
            if journal is not None:
                journal.close()
            raise
        warn_if_open(self._security, server.endpoint)
        return Opened(state, journal, server)

    def _start(self, opened: Opened, **options: Any) -> None:
        """Make what keeps the jobs; `options` of `EachJobs`."""
        state, self._journal, self._server = opened
        wake, security = self._driver.wake, self._security
        self._jobs: EachJobs | BatchJobs
        if self._by_batch:
            self._jobs = BatchJobs(
                self._config, self._name, self._server, self._lock, wake, security
            )
        else:
            self._jobs = EachJobs(
                self._config, self._name, self._place, self._server, state, self._journal,
                self._lock, wake, security, **options,
            )  # fmt: skip
        self._syncs = self._journal is not None and self._journal.is_always
        self._batch = self._jobs.batch

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
        return self._jobs.session

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
        closely, for 1 ms at most. What is changed in `value` afterwards changes nothing. With
        `acknowledge="batch"` a job has a value and nothing else.

        Args:
            value: any msgpack value: bytes, str, int (64 bits), float, bool, None, list, dict.
            key: what it belongs to. Of one key, one job at a time is with any worker, in the order
                of pushing; a later one waits until it is done or a dead letter. Default None:
                it waits for nothing.
            priority: 0 to 9; higher ones go first among what is not yet handed out. Within a key
                the order of pushing rules. Default 0.
            delay: how long it is not handed out, in seconds, 31,622,400 (366 days) at most, also
                if the wall clock is set meanwhile. Default 0.
            message_id: by which a job that was pushed before, within 10 min, is known and not
                accepted again; the sequence that it got then is returned. Default None.
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
            if type(value) in SCALARS:
                _encode_scalar_into(value, buffer, -1)
            else:
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

    def push_many(self, values: Iterable[Any]) -> list[int]:
        """Push each of `values`, as `push` does, and return their sequences.

        Args:
            values: the jobs. Where one is refused, those before it were accepted.

        Raises:
            Others: as `push`.

        """
        return [self.push(value) for value in values]

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint)

    def stats(self) -> PusherStats:
        """Return the counters as they are now; also after `close`."""
        return self._lock.read(self._jobs.stats)

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
        """Return the dead letters as they are now; what it returns can retry and purge them.

        With `acknowledge="batch"` there are none.
        """
        jobs = self._jobs
        if isinstance(jobs, BatchJobs):
            return DeadLetters([], lambda action, sequences: 0)
        dead = self._lock.run(jobs.core.queue.store.dead.list)
        act = partial(self._lock.run_whole, self._act_on_dead)
        return DeadLetters([letter_of(each) for each in dead], act)

    # -------------------------------------------------------------------------------- private

    @abstractmethod
    def _push_slowly(
        self, value: Any, key: Any, priority: Any, delay: Any, message_id: Any, headers: Any,
        timeout: float | None,
    ) -> int:  # fmt: skip
        """Accept a job as `push` does, looking at everything."""

    def _try_push(self, job: Any) -> tuple[int, int] | None:
        self._check_usable()
        return self._jobs.try_push(job)

    def _hand_out(self) -> None:
        """Hand out what is on the disk now, under the lock."""
        if self._unusable is None:
            self._jobs.work()

    def _work(self) -> float:
        """Take the background thread's turn; return how long it may sleep, in ms."""
        if self._unusable is not None:
            raise transports.ClosedError(self.endpoint)
        return self._jobs.turn()

    @property
    def _in_flight(self) -> int:
        return self._jobs.in_flight + len(self._batch.ends)

    def _is_empty(self) -> bool:
        self._check_usable()
        self._jobs.work()
        return self._in_flight == 0

    def _act_on_dead(self, action: str, sequences: list[int] | None) -> int:
        self._check_usable()
        assert isinstance(self._jobs, EachJobs)
        return self._jobs.act_on_dead(action, sequences)

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise ClosedError("the pusher", self._unusable)

    def _close_all(self) -> None:
        self._batch.stop = 0
        self._jobs.close()
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
