"""The pusher: its socket, its log, the jobs, and the calls that may wait."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import transports
from p2pmsg.checks import at_least, check, checked, shown
from p2pmsg.codec import SCALARS, encoder, exact_encoder
from p2pmsg.driver.faces import LoopFace
from p2pmsg.driver.lifecycle import INHERITED, zmq_context
from p2pmsg.driver.peer import Peer
from p2pmsg.driver.section import Section
from p2pmsg.driver.verbs import Blocking, LateError, Verb, Wait
from p2pmsg.errors import (
    ClosedError,
    LogFailedError,
    P2PError,
    SendQueueFullError,
    translated,
)
from p2pmsg.peers.settings import check_name
from p2pmsg.publisher.batch import PACKING_ERRORS
from p2pmsg.queue import process_id
from p2pmsg.queue.batching import Gathered
from p2pmsg.queue.config import Acknowledge, PusherConfig
from p2pmsg.queue.dead_letters import DeadLetters, letter_of
from p2pmsg.queue.each import EachJobs, ack_timeout_of
from p2pmsg.queue.journal.file import FileJournal, QueueLogConfig, log_settings
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.pipeline.pusher import BatchJobs, check_batch_config
from p2pmsg.queue.stats import PusherStats
from p2pmsg.security.use import curve_server, warn_if_open
from recovery.checks import to_ns
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.queue.rules import DeadJob, QueuedJob
    from p2pmsg.security.settings import Security

_encode_into = exact_encoder.encode_into
_encode_scalar_into = encoder.encode_into
LogChoice = str | os.PathLike[str] | QueueLogConfig | None
_RECORDS_AT_ONCE: Final = 500
"""Records of an old segment that are looked at, and copied, between two looks at other work."""
_EMPTY_AGAIN_NS: Final = 1_000_000_000
_NEVER_NS: Final = 2**63
_NOT_OPEN: Final = "it is not open yet; `async with` opens it, or `await open()`"
_CLOSED: Final = "it is closed"


class Settings(NamedTuple):
    """What a pusher was given, checked."""

    endpoint: str
    name: str
    config: PusherConfig
    by_batch: bool
    log: QueueLogConfig | None
    security: "Security | None"


class _Opened(NamedTuple):
    """What a pusher has of the operating system."""

    state: JournalState
    journal: FileJournal | None
    server: transports.ZmqQueueServer

    def close(self) -> None:
        self.server.close()
        if self.journal is not None:
            self.journal.close()


class _Opening:
    """Opens the log and binds the endpoint, in any thread; nobody may want it at the end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: _Opened | None = None
        self._is_unwanted = False

    def run(self) -> _Opened:
        self._opened = opened = _open(self._settings)
        if self._is_unwanted:
            opened.close()
        return opened

    def give_up(self) -> None:
        self._is_unwanted = True
        if self._opened is not None:
            self._opened.close()


def _open(settings: Settings) -> _Opened:
    context, state = zmq_context(), JournalState()
    journal: FileJournal | None = None
    if settings.log is not None:
        try:
            journal = FileJournal(settings.log, state, boot=process_id.boot_id())
        except P2PError:
            raise
        except OSError as error:
            what = f"the log {settings.log.directory} cannot be used: {error.strerror or error}"
            raise LogFailedError(what, error.errno) from error
    try:
        with translated():
            server = transports.ZmqQueueServer(
                settings.endpoint,
                context=context,
                curve=curve_server(settings.security),
                peer_timeout=None if settings.by_batch else ack_timeout_of(settings.config),
            )
    except BaseException:
        if journal is not None:
            journal.close()
        raise
    warn_if_open(settings.security, server.endpoint)
    return _Opened(state, journal, server)


class PusherPeer(Peer):
    """A pusher's socket, log and jobs.

    Args:
        settings: what the user gave.
        opens: whether at once; else `open` does it.

    Attributes:
        batch: what `push` gathers.

    """

    thread_name = "p2pmsg-pusher"

    def __init__(self, settings: Settings, *, opens: bool) -> None:
        self.name = f"the pusher at {settings.endpoint}"
        self.batch = Gathered(0, 0)
        self._settings = settings
        self._why: str | None = _NOT_OPEN
        """Why it cannot be used; None where it can."""
        self._jobs: Any = None
        self._journal: FileJournal | None = None
        self._server: transports.ZmqQueueServer | None = None
        self._fds: frozenset[int] = frozenset()
        self._syncs = False
        self._is_at_disk = False  # the upkeep works, and no turn is due for it
        self._is_opening = self._is_closing = self._is_shut = self._is_syncing = False
        self._refused_bytes = 0
        self._announced_ns = self._empty_ns = 0
        if opens:
            self._take(_open(settings))

    def _take(self, opened: _Opened) -> None:
        state, journal, server = opened
        try:
            self._jobs = self._made(state, journal, server)
            if journal is not None and isinstance(self._jobs, EachJobs):
                # Now, so that the first turn does not wait for the disk.
                journal.allow_deliveries(self._jobs.core.queue.next_delivery)
        except BaseException:
            opened.close()
            raise
        self.name = f"the pusher at {server.endpoint}"
        self._journal, self._server = journal, server
        self._fds = frozenset((server.fd, server.break_fd))
        self._syncs = journal is not None and journal.is_always
        self.batch = self._jobs.batch
        self._why = None

    def _made(
        self, state: JournalState, journal: FileJournal | None, server: transports.ZmqQueueServer
    ) -> EachJobs | BatchJobs:
        endpoint, name, config, by_batch, _, security = self._settings
        if by_batch:
            return BatchJobs(config, name, server, security)
        return EachJobs(config, name, endpoint, server, state, journal, security)

    # ------------------------------------------------------------------------------ for drivers

    def turn(self, now_ns: int) -> None:
        """Take what has come, hand out what can be."""
        if self._why is None:
            self._jobs.turn(now_ns)

    def fds(self) -> Collection[int]:
        """Return the socket's; none while the log cannot be written, and all stays where it is."""
        return () if self._why is not None or self._jobs.is_failing else self._fds

    def next_deadline_ns(self) -> int:
        """Return when the next turn is due."""
        if self._why is not None:
            return _NEVER_NS
        due_ns: int = self._jobs.next_deadline_ns()
        if self._journal is not None and not self._is_at_disk:
            due_ns = min(due_ns, self._journal.due_ns)
        self._announced_ns = due_ns
        return due_ns

    def wants_turn(self) -> bool:
        """Whether the next turn is due sooner than was said last, for what was pushed."""
        due_ns: int = self._jobs.pushed_due_ns
        if self._journal is not None and not self._is_at_disk:
            due_ns = min(due_ns, self._journal.due_ns)
        is_sooner = due_ns < self._announced_ns
        self._announced_ns = min(due_ns, self._announced_ns)
        return is_sooner

    def resync(self) -> None:
        """Put all right after an exception: workers are asked what they have."""
        if self._why is None:
            self._jobs.resync()

    def shut(self) -> None:
        """Close the endpoint and the log."""
        if self._is_shut:
            return
        self._is_shut = True
        self._end()
        try:
            if self._journal is not None:
                self._journal.close()
        finally:
            left = self.in_flight
            if left and self._settings.log is None:
                _log.warning("%d jobs were not done at close; what no worker has is lost", left)

    def abandon(self) -> None:
        """Leave all to the parent process."""
        self._why, self.batch.stop, self._is_shut = INHERITED, 0, True
        if self._journal is not None:
            self._journal.forget()

    def _end(self) -> None:
        """Take no job any more, and close the endpoint."""
        if self._why is None:
            self._jobs.close()
        self.batch.stop = 0
        if self._why in (None, _NOT_OPEN):
            self._why = _CLOSED

    # ------------------------------------------------------------------------------ the disk

    def upkeep(self) -> Verb[None] | None:
        """Bring to the disk what is due, and empty old segments of the log."""
        return None if self._settings.log is None else self._keep_up()

    def _keep_up(self) -> Verb[None]:
        while True:
            self._is_at_disk = False
            yield Wait(self._has_disk_work)
            journal = self._journal
            if journal is None:
                continue
            self._is_at_disk = True
            if journal.due_ns <= self.now_ns():
                yield from self._sync(journal)
                continue
            try:
                yield from self._empty_oldest(journal)
            except OSError as error:
                self._empty_ns = self.now_ns() + _EMPTY_AGAIN_NS
                _log.warning("an old segment of the log could not be emptied: %s", error)

    def _has_disk_work(self) -> bool:
        journal, now_ns = self._journal, self.now_ns()
        if journal is None or self._why is not None or journal.broken is not None:
            return False
        if self._is_syncing:
            return False
        return journal.due_ns <= now_ns or (journal.has_to_empty and now_ns >= self._empty_ns)

    def _sync(self, journal: FileJournal) -> Verb[bool]:
        """Force to the disk what was written; return whether it is there, and the log still open.

        Where that fails, `journal.broken` says so, and the next turn logs it.
        """
        pending = journal.begin_sync()
        self._is_syncing = True
        try:
            yield Blocking(pending.wait)
        finally:
            self._is_syncing = False
        if self._why is not None:
            return False  # it is being closed, by somebody else
        with suppress(LogFailedError):
            journal.end_sync(pending)
        return journal.broken is None

    def _empty_oldest(self, journal: FileJournal) -> Verb[None]:
        """Empty the oldest segment, a little at a time; jobs may be pushed in between.

        Where it is left half way, what was copied is there twice, which changes nothing.
        """
        found = yield Blocking(journal.read_oldest)
        for at in range(0, len(found), _RECORDS_AT_ONCE):
            if self._why is not None:
                return
            journal.copy(found[at : at + _RECORDS_AT_ONCE])
            yield Wait(_let_others)
        if self._why is None and (yield from self._sync(journal)):
            yield Blocking(journal.delete_oldest)

    # ------------------------------------------------------------------------------ calls

    def open(self) -> Verb[None]:
        """Open the log and bind the endpoint, where that is still to be done."""
        while self._is_opening:
            yield Wait(self._is_opened, by_io=False)
        if self._why == _NOT_OPEN:
            opening = _Opening(self._settings)
            self._is_opening = True
            try:
                opened = yield Blocking(opening.run)
                if self._why == _NOT_OPEN:
                    self._take(opened)
                self.check_usable()
            except BaseException:
                opening.give_up()
                raise
            finally:
                self._is_opening = False
        self.check_usable()

    def _is_opened(self) -> bool:
        return not self._is_opening

    def push(self, job: "QueuedJob | bytes", timeout: float | None) -> Verb[int]:
        """Accept a job, and wait for space, and for the disk where it has to be there."""
        deadline_ns = self._deadline(timeout)
        while (accepted := self._try_push(job)) is None:
            if not (yield Wait(partial(self._fits, job), deadline_ns)):
                raise LateError(f"{self._jobs.limit}, were in flight for {timeout} s")
        sequence, stop = accepted
        if self._syncs:
            yield from self._reach_disk(stop, None, None)
        return sequence

    def offer(self, job: "QueuedJob | bytes") -> int:
        """Accept a job without a wait."""
        accepted = self._try_push(job)
        if accepted is None:
            size = len(job) if isinstance(job, bytes) else job.size
            self._refused_bytes = max(self._refused_bytes, size)
            limit = self._jobs.limit
            raise SendQueueFullError(f"{limit}, are in flight; `await drain()` waits for space")
        return accepted[0]

    def drain(self, timeout: float | None) -> Verb[None]:
        """Wait until what was pushed is on the disk, where it has to be, and there is space."""
        self.check_usable()
        deadline_ns = self._deadline(timeout)
        self._jobs.check_log()
        if self._syncs and self._journal is not None:
            yield from self._reach_disk(self._journal.written, deadline_ns, timeout)
        if not self._has_space() and not (yield Wait(self._has_space, deadline_ns)):
            raise LateError(f"{self._jobs.limit}, were in flight for {timeout} s")
        self.check_usable()

    def join(self, timeout: float | None) -> Verb[None]:
        """Wait until no job is in flight."""
        self.check_usable()
        deadline_ns = self._deadline(timeout)
        self._jobs.work()
        if not (yield Wait(self._is_over, deadline_ns)):
            raise LateError(f"{self.in_flight} jobs were not done within {timeout} s")
        self.check_usable()
        self._jobs.check_log()

    def close(self, timeout: float | None) -> Verb[None]:
        """Wait until no job is in flight, as long as may be, and close."""
        if timeout is None:
            timeout = 5.0 if self._settings.log is None else 0.0
        deadline_ns = self._deadline(timeout)
        if self._is_closing:
            yield Wait(self._is_closed, deadline_ns, by_io=False)
            return
        self._is_closing = True
        if self._why is None:
            self._jobs.work()
            yield Wait(self._is_over, deadline_ns)
            self._jobs.check_log()
        self._end()
        if self._journal is not None:
            yield Blocking(self._journal.close)

    def _is_closed(self) -> bool:
        return self._why is not None

    def _reach_disk(self, stop: int, deadline_ns: int | None, timeout: float | None) -> Verb[None]:
        """Wait until the log is on the disk up to `stop`: who comes first brings it there."""
        journal = self._journal
        assert journal is not None
        while journal.synced < stop:
            self.check_usable()
            self._jobs.check_log()
            if not self._is_syncing:
                yield from self._sync(journal)
                self._jobs.work()
            elif not (yield Wait(self._has_synced, deadline_ns, by_io=False)):
                raise LateError(f"the log was not on the disk within {timeout} s")

    def _has_synced(self) -> bool:
        return not self._is_syncing

    def _deadline(self, timeout: float | None) -> int | None:
        if timeout is None:
            return None
        at_least("timeout", timeout, 0)
        return self.now_ns() + to_ns(timeout)

    def _is_over(self) -> bool:
        """Whether no job is in flight, or none will ever be done here any more."""
        is_broken = self._journal is not None and self._journal.broken is not None
        return self._why is not None or is_broken or not self.in_flight

    def _has_space(self) -> bool:
        return self._why is not None or self._jobs.space(self._refused_bytes) > 0

    def _fits(self, job: "QueuedJob | bytes") -> bool:
        is_broken = self._journal is not None and self._journal.broken is not None
        return self._why is not None or is_broken or self._jobs.fits(job)

    def _try_push(self, job: "QueuedJob | bytes") -> tuple[int, int] | None:
        self.check_usable()
        accepted: tuple[int, int] | None = self._jobs.try_push(job)
        return accepted

    # ------------------------------------------------------------------------- without a wait

    def check_usable(self) -> None:
        """Raise `ClosedError` where it is closed, or not open yet."""
        if self._why is not None:
            raise ClosedError("the pusher", self._why)

    @property
    def is_closed(self) -> bool:
        """Whether it was open, and is no more."""
        return self._why not in (None, _NOT_OPEN)

    @property
    def endpoint(self) -> str:
        """Where pullers connect to; as given where it is not open yet."""
        return self._settings.endpoint if self._server is None else self._server.endpoint

    @property
    def in_flight(self) -> int:
        """How many jobs are neither done nor dead letters."""
        return 0 if self._jobs is None else self._jobs.in_flight + len(self.batch.ends)

    @property
    def jobs(self) -> Any:
        """What keeps the jobs; `ClosedError` where it was never open."""
        if self._jobs is None:
            self.check_usable()
        return self._jobs

    def job(self, *fields: Any) -> "QueuedJob | bytes":
        """Return a job that has no sequence yet, of the fields of `push`."""
        self.check_usable()
        made: QueuedJob | bytes = self._jobs.job(*fields)
        return made

    def dead(self) -> "list[DeadJob]":
        """Return the dead letters."""
        found: list[DeadJob] = self.jobs.dead()
        return found

    def act_on_dead(self, action: str, sequences: list[int] | None) -> int:
        """Retry or purge dead letters; return how many."""
        self.check_usable()
        return int(self._jobs.act_on_dead(action, sequences))


def _let_others() -> bool:
    """Go on, when others were there."""
    return True


class PusherBase:
    """What both faces of a pusher share: all that never waits."""

    _driver: Any
    _peer: PusherPeer
    _open: Any
    _batch: Gathered
    _section: Section

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
        by_batch = acknowledge == "batch"
        if by_batch:
            for option, value in {"log": log, **given}.items():
                check(option, value, value is None, 'left out with acknowledge="batch"')
        changes: dict[str, Any] = {
            name: value for name, value in given.items() if value is not None
        }
        if ack_timeout is not None:
            changes["ack_timeout"] = ack_timeout
        config = replace(config if config is not None else PusherConfig(), **changes)
        if by_batch:
            check_batch_config(config)
        self._name = check_name(name if name is not None else str(endpoint)[:80])
        self._security = security
        settings = Settings(
            endpoint, self._name, config, by_batch, log_settings(log), security
        )  # fmt: skip
        opens = settings.log is None or not isinstance(self, LoopFace)
        self._open(partial(PusherPeer, settings, opens=opens))

    def _on_open(self) -> None:
        self._batch, self._section = self._peer.batch, self._driver.section

    @property
    def endpoint(self) -> str:
        """Where pullers connect to, with the port that was picked; as given until it is open."""
        return self._peer.endpoint

    @property
    def name(self) -> str:
        """The pusher's name."""
        return self._name

    @property
    def session(self) -> int:
        """The 64-bit id of the queue; with a log, the same after a restart."""
        return int(self._peer.jobs.session)

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
        """Accept one job and return its sequence.

        With threads it waits while `in_flight_max` are in flight. In an event loop it never waits:
        where there is no space it raises, and `drain` waits for space.

        It is handed out at once, and shares a frame with others where jobs follow one another
        closely, for 1 ms at most. What is changed in `value` afterwards changes nothing. With
        `acknowledge="batch"` a job has a value and nothing else.

        With a log, its record is written when this returns: a process that is killed loses nothing.
        With `fsync="always"` it is on the disk, too; in an event loop `drain` waits for that, and
        raises where it failed.

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
            timeout: how long to wait at `in_flight_max`, in seconds; only with threads. Default
                None: without end.

        Raises:
            MessageError: it cannot be pushed as it is; `MessageTooLargeError` for its size.
            ConfigError: priority, delay, message_id or timeout is out of its limits.
            TimeoutError: too many were in flight all the time.
            SendQueueFullError: in an event loop: `in_flight_max` jobs, or their bytes, are in
                flight. One push right after a `drain()` never gets it, where the job has half of
                `in_flight_bytes_max` at most, or as much as one that was refused before.
            LogFailedError: the log could not be written, or what was written could not be forced to
                the disk, which is final. The job was not accepted; after a failed fsync a later run
                on the log may find it all the same.
            ClosedError: the pusher is closed, or not open yet.
            RuntimeError: in an event loop: it was made in another one.

        """
        # Written out, since each call would be a tenth of it. A job is in by one append; while jobs
        # do not follow closely, `stop` is `next`.
        if (
            key is not None or priority or delay or message_id is not None or headers is not None
            or timeout is not None
        ):  # fmt: skip
            return self._push_slowly(value, key, priority, delay, message_id, headers, timeout)
        batch, entered = self._batch, self._section
        lock = entered.lock
        try:
            if not lock.acquire():
                entered.refuse()
            if entered.busy:
                entered.check()
            entered.busy = True
            sequence = batch.next
            if sequence < batch.stop:
                buffer = batch.buffer
                try:
                    if type(value) in SCALARS:
                        _encode_scalar_into(value, buffer, -1)
                    else:
                        _encode_into(value, buffer, -1)
                    size = len(buffer)
                except PACKING_ERRORS:  # which is said below
                    size = batch.bytes_max
                if size < batch.bytes_max:
                    batch.ends.append(size)
                    batch.next = sequence + 1
                    entered.busy = False
                    lock.release()
                    return sequence
                batch.repair()
            entered.busy = False
            lock.release()
        except BaseException as error:
            entered.leave(error)
            raise
        del entered  # by which one is known that is inside
        return self._push_slowly(value, key, priority, delay, message_id, headers, timeout)

    def _push_slowly(self, *fields: Any) -> int:
        """Accept a job as `push` does, looking at everything."""
        driver, peer = self._driver, self._peer
        job, timeout = driver.section.run(peer.job, *fields[:-1]), fields[-1]
        if driver.may_wait:
            sequence: int = driver.run(peer.push(job, timeout))
        else:
            check("timeout", timeout, timeout is None, "left out in an event loop")
            sequence = driver.section.run(peer.offer, job)
        if peer.wants_turn():
            driver.wake()
        return sequence

    def push_many(self, values: Iterable[Any]) -> list[int]:
        """Push each of `values`, as `push` does, and return their sequences.

        Args:
            values: the jobs. Where one is refused, those before it were accepted.

        Raises:
            Others: as `push`.

        """
        return [self.push(value) for value in values]

    def stats(self) -> PusherStats:
        """Return the counters as they are now; also after `close`."""
        found: PusherStats = self._driver.section.read(self._peer.jobs.stats)
        return found

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
        from p2pmsg.security.access_watch import revoke_here

        self._peer.check_usable()
        users = revoke_here(self._security, who)
        self._driver.wake()
        return users

    def dead_letters(self) -> DeadLetters:
        """Return the dead letters as they are now; what it returns can retry and purge them.

        With `acknowledge="batch"` there are none.
        """
        section = self._driver.section
        dead = section.run(self._peer.dead)
        act = partial(section.run, self._peer.act_on_dead)
        return DeadLetters([letter_of(each) for each in dead], act)

    def __repr__(self) -> str:
        return shown(self, lambda: self.endpoint, lambda: self._peer.is_closed)
