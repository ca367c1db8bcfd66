"""The pusher: its sockets, its log, the jobs, and the calls that may wait."""

import ipaddress
import os
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import transports
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import Blocking, LateError, Verb, Wait
from p2pmsg.errors import LogFailedError, SendQueueFullError, translated
from p2pmsg.peers.network import Network
from p2pmsg.peers.push_sockets import PushSockets
from p2pmsg.queue import process_id
from p2pmsg.queue.config import PusherConfig, QueueLogConfig
from p2pmsg.queue.jobs import QueueIdentity, QueueJobs, ack_timeout_of
from p2pmsg.queue.journal.records import JournalState
from p2pmsg.queue.pull_access import access_of
from p2pmsg.queue.stats import PusherStats
from p2pmsg.security.use import curve_server, warn_if_open
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.queue.journal.file import Journal
    from p2pmsg.queue.rules import DeadJob, QueuedJob
    from p2pmsg.security.access_watch import AccessWatch
    from p2pmsg.security.settings import Security

LogChoice = str | os.PathLike[str] | QueueLogConfig | None
_ROUNDS_MAX: Final = 16
_FRAMES_PER_ROUND: Final = 256
_BYTES_AT_ONCE: Final = 2**18
"""Of frames that are read in one turn: some 2 ms, whatever they say."""
_TURN_NS: Final = 2_000_000
"""How long a turn goes on where there is always more."""
_SHORTEN_AGAIN_NS: Final = 1_000_000_000
_NEVER_NS: Final = 2**63


class Settings(NamedTuple):
    """What a pusher was given, checked."""

    endpoint: str
    name: str
    config: PusherConfig
    by_batch: bool
    log: QueueLogConfig | None
    security: "Security | None"


def _open_log(
    network: Network, settings: QueueLogConfig | None, state: JournalState
) -> "Journal | None":
    if settings is None:
        return None
    from p2pmsg.queue.journal.file import Journal  # not above: most pushers have no log

    return Journal(
        settings, state, store=network.queue_store(settings.directory),
        segment_bytes=network.queue_segment_bytes, now_ns=network.now_ns, wall_ns=network.wall_ns,
    )  # fmt: skip


class PusherPeer(Peer):
    """A pusher's sockets, log and jobs.

    Args:
        settings: what the user gave.
        network: has its sockets, and the time.

    Attributes:
        jobs: what keeps them.
        batch: what `push` gathers.
        session: the queue's id.

    """

    kind = "pusher"
    thread_name = "p2pmsg-pusher"

    def __init__(self, settings: Settings, network: Network) -> None:
        self.now_ns = network.now_ns
        self._wall_ns = network.wall_ns
        self._settings = settings
        self._push_sockets: PushSockets | None = None
        self._access: AccessWatch | None = None
        self._is_at_disk = False  # the upkeep works, and no turn is due for it
        self._is_closing = self._is_shut = False
        self._refused_bytes = 0
        self._announced_ns = self._shorten_ns = self._due_ns = 0
        with ExitStack() as undo:
            self._open(network, settings, undo)
            undo.pop_all()
        self.places = self._server.endpoint
        self.name = f"the pusher at {self.places}"
        self.batch = self.jobs.batch
        self._fds = frozenset({self._server.fileno(), self._server.connections.fd} - {-1})
        self._syncs = self._journal is not None and self._journal.is_always

    def _open(self, network: Network, settings: Settings, undo: ExitStack) -> None:
        state = JournalState()
        journal = self._journal = _open_log(network, settings.log, state)
        if journal is not None:
            undo.callback(journal.close)
            journal.begin_run(max(network.wall_ns(), state.deliveries))
        security, config, by_batch = settings.security, settings.config, settings.by_batch
        with translated():
            server = self._server = network.queue_server(
                transports.parse_endpoint(settings.endpoint),
                curve=curve_server(security),
                peer_timeout=ack_timeout_of(config, by_batch=by_batch),
            )
        undo.callback(server.close)
        warn_if_open(security, server.endpoint)
        self.session = network.random.getrandbits(64) if state.session is None else state.session
        access_rules, self._access = access_of(security, settings.name, server)
        identity = QueueIdentity(
            name=settings.name,
            session=self.session,
            by_batch=by_batch,
            is_gone=process_id.is_gone,
            admin_refusal=_admin_refusal(config.admin, settings.endpoint, security),
            access_rules=access_rules,
        )
        now_ns, wall_ns = self.now_ns(), network.wall_ns()
        self.jobs = QueueJobs(config, identity, state, journal, now_ns=now_ns, wall_ns=wall_ns)
        if by_batch:
            self._push_sockets = PushSockets(self.jobs.core, server, security, network)

    # ------------------------------------------------------------------------------ for drivers

    def turn(self, now_ns: int) -> None:
        """Take what has come, hand out what can be."""
        jobs = self.jobs
        if self.closed_why:
            return
        jobs.begin_turn(now_ns)
        self._due_ns = 0 if self._work(now_ns) else jobs.end_turn(self.now_ns())

    def _work(self, now_ns: int) -> bool:
        """Take what has come, hand out what can be; whether there may be more at once."""
        jobs, server = self.jobs, self._server
        core = jobs.core
        jobs.set_time(now_ns, self._wall_ns())
        if self._access is not None and self._access.poll():
            core.check_access_rules(now_ns=now_ns)
        left_bytes, until_ns = _BYTES_AT_ONCE, now_ns + _TURN_NS
        for _ in range(_ROUNDS_MAX):
            if jobs.is_failing and not jobs.record():
                return False  # what came is left where it is
            came = 0
            while (
                came < _FRAMES_PER_ROUND
                and left_bytes > 0
                and jobs.may_receive
                and (found := server.receive_some(1))
            ):
                came += 1
                identity, frame = found[0]
                left_bytes -= len(frame)
                core.receive(identity, frame, now_ns=now_ns, user=server.user)
            if self._push_sockets is not None:
                self._push_sockets.check()
            is_ready = jobs.poll(now_ns=now_ns, has_broken=server.broke())
            sent = is_ready and self._send(now_ns)
            if jobs.is_failing:
                return False
            if left_bytes <= 0 or self.now_ns() > until_ns:
                return True
            if is_ready and not (came or sent):
                jobs.log_warnings()
                return False
        return True

    def _send(self, now_ns: int) -> bool:
        """Send what is in the outboxes; whether anything was."""
        jobs, server = self.jobs, self._server
        core, outbox = jobs.core, jobs.core.outbox
        sent = bool(outbox)
        while outbox:
            identity, frame = outbox[0]
            if not server.reply(identity, frame):
                # It is gone. Or its queue is longer than its credit: it is none of ours.
                core.unreachable(identity, now_ns=now_ns)
            outbox.popleft()
        return sent | (self._push_sockets is not None and self._push_sockets.send())

    def _work_now(self) -> None:
        """Hand out at once what was pushed or has come."""
        now_ns = self.now_ns()
        self.jobs.seal(now_ns)
        self._work(now_ns)
        self.jobs.check_log()

    def fds(self) -> Collection[int]:
        """Return the socket's; none while the log cannot be written, and all stays where it is."""
        return () if self.closed_why or self.jobs.is_failing else self._fds

    def next_deadline_ns(self) -> int:
        """Return when the next turn is due."""
        if self.closed_why:
            return _NEVER_NS
        due_ns = self._due_ns
        if due_ns == _NEVER_NS:
            due_ns = self.jobs.next_deadline_ns(now_ns=self.now_ns())
        due_ns = min(due_ns, self._disk_due_ns())
        self._announced_ns = due_ns
        return due_ns

    def wants_turn(self) -> bool:
        """Whether the next turn is due sooner than was said last, for what was pushed."""
        due_ns = self._due_ns
        due_ns = min(due_ns, self._disk_due_ns())
        is_sooner = due_ns < self._announced_ns
        self._announced_ns = min(due_ns, self._announced_ns)
        return is_sooner

    def _disk_due_ns(self) -> int:
        """Return when something is to go to the disk that is not on its way."""
        if self._journal is None or self._is_at_disk:
            return _NEVER_NS
        return self._journal.due_ns

    def resync(self) -> None:
        """Put all right after an exception: workers are asked what they have."""
        if not self.closed_why:
            self._server.resync()
            self.jobs.resync(now_ns=self.now_ns())
            self._due_ns = 0

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
        super().abandon()
        self.batch.stop, self._is_shut = 0, True
        if self._journal is not None:
            self._journal.release()

    def _end(self) -> None:
        """Take no job any more, and close the sockets."""
        if not self.closed_why:
            jobs = self.jobs
            jobs.seal(self.now_ns())
            while jobs.record() and jobs.has_to_record:
                pass
            if self._push_sockets is not None:
                self._push_sockets.close()
            self._server.close(linger_ms=500)
        self.batch.stop = 0
        self.closed_why = self.closed_why or CLOSED

    # ------------------------------------------------------------------------------ the disk

    def upkeep(self) -> Verb[None] | None:
        """Bring to the disk what is due, and shorten the log."""
        return None if self._journal is None else self._keep_up(self._journal)

    def _keep_up(self, journal: "Journal") -> Verb[None]:
        while True:
            self._is_at_disk = False
            yield Wait(self._has_disk_work)
            self._is_at_disk = True
            if journal.due_ns <= self.now_ns():
                yield from self._sync(journal)
                continue
            try:
                yield from self._shorten(journal)
            except OSError as error:
                self._put_off(error)

    def _has_disk_work(self) -> bool:
        """Whether the upkeep is to go on. Who looks has it go on, so no turn is due for that."""
        journal, now_ns = self._journal, self.now_ns()
        if journal is None or self.closed_why or journal.broken is not None:
            return False
        is_due = journal.due_ns <= now_ns
        self._is_at_disk = is_due or (journal.has_to_shorten and now_ns >= self._shorten_ns)
        return self._is_at_disk

    def _sync(self, journal: "Journal") -> Verb[None]:
        """Force to the disk what was written, and send what waited for that.

        Where that fails, `journal.broken` says so, and the next turn logs it.
        """
        pending = journal.begin_sync()
        yield Blocking(pending.wait)
        if self.closed_why:
            return  # it is being closed, by somebody else
        try:
            journal.end_sync(pending)
        except LogFailedError as error:
            if journal.broken is None:
                self._put_off(error)
        self._work(self.now_ns())

    def _put_off(self, error: OSError) -> None:
        """Say that the log cannot be shortened now, and try it again later."""
        if self.now_ns() >= self._shorten_ns:
            self._shorten_ns = self.now_ns() + _SHORTEN_AGAIN_NS
            _log.warning("the queue's log could not be shortened: %s", error)

    def _shorten(self, journal: "Journal") -> Verb[None]:
        """Delete the oldest segments; what little is of use in them is written again before.

        Where it is left half way, something is there twice, which changes nothing.
        """
        again = journal.begin_shorten()
        while again and not self.closed_why:
            del again[: self.jobs.write_again(again)]
            if self.jobs.waits_for_disk:
                yield from self._sync(journal)
            yield Wait(_let_others)
        if not self.closed_why:
            journal.keep_from(*journal.first_of_use())
            yield from self._sync(journal)

    # ------------------------------------------------------------------------------ calls

    def push(self, job: "QueuedJob", timeout: float | None) -> Verb[int]:
        """Accept a job, and wait for space, and for the disk where it has to be there."""
        deadline_ns = self.deadline_ns(timeout)
        while (accepted := self._try_push(job)) is None:
            if not (yield Wait(partial(self._fits, job), deadline_ns)):
                raise LateError(f"{self._limit()}, were in flight for {timeout} s")
        sequence, stop = accepted
        if self._syncs:
            yield from self._reach_disk(stop, None, None)
        return sequence

    def offer(self, job: "QueuedJob") -> int:
        """Accept a job without a wait."""
        accepted = self._try_push(job)
        if accepted is None:
            self._refused_bytes = max(self._refused_bytes, job.size)
            what = f"{self._limit()}, are in flight; `await drain()` waits for space"
            raise SendQueueFullError(what)
        return accepted[0]

    def drain(self, timeout: float | None) -> Verb[None]:
        """Wait until what was pushed is on the disk, where it has to be, and there is space."""
        self.check_open()
        deadline_ns = self.deadline_ns(timeout)
        self.jobs.check_log()
        if self._syncs and self._journal is not None:
            yield from self._reach_disk(self._journal.written, deadline_ns, timeout)
        if not self._has_space() and not (yield Wait(self._has_space, deadline_ns)):
            raise LateError(f"{self._limit()}, were in flight for {timeout} s")
        self.check_open()

    def join(self, timeout: float | None) -> Verb[None]:
        """Wait until no job is in flight."""
        self.check_open()
        deadline_ns = self.deadline_ns(timeout)
        self._work_now()
        if not (yield Wait(self._is_over, deadline_ns)):
            raise LateError(f"{self.in_flight} jobs were not done within {timeout} s")
        self.check_open()
        self.jobs.check_log()

    def close(self, timeout: float | None) -> Verb[None]:
        """Wait until no job is in flight, as long as may be, and close."""
        if timeout is None:
            timeout = 5.0 if self._settings.log is None else 0.0
        deadline_ns = self.deadline_ns(timeout)
        if self._is_closing:
            yield Wait(lambda: self.is_closed, deadline_ns, by_io=False)
            return
        self._is_closing = True
        if not self.closed_why:
            self._work_now()
            yield Wait(self._is_over, deadline_ns)
            self.jobs.check_log()
        self._end()
        if self._journal is not None:
            yield Blocking(self._journal.close)

    def _reach_disk(self, stop: int, deadline_ns: int | None, timeout: float | None) -> Verb[None]:
        """Wait until the upkeep has brought the log to the disk up to `stop`."""
        journal = self._journal
        assert journal is not None

        def is_there() -> bool:
            return journal.synced >= stop or self.is_closed or journal.broken is not None

        if not (yield Wait(is_there, deadline_ns, by_io=False)):
            raise LateError(f"the log was not on the disk within {timeout} s")
        self.check_open()
        self.jobs.check_log()

    def _is_over(self) -> bool:
        """Whether no job is in flight, or none will ever be done here any more."""
        is_broken = self._journal is not None and self._journal.broken is not None
        return self.is_closed or is_broken or not self.in_flight

    def _has_space(self) -> bool:
        if self.closed_why:
            return True
        return self.jobs.has_space(self._refused_bytes, now_ns=self.now_ns())

    def _fits(self, job: "QueuedJob") -> bool:
        is_broken = self._journal is not None and self._journal.broken is not None
        return self.is_closed or is_broken or self.jobs.fits(job, now_ns=self.now_ns())

    def _limit(self) -> str:
        return self.jobs.limit(self.now_ns())

    def _try_push(self, job: "QueuedJob") -> tuple[int, int] | None:
        self.check_open()
        jobs, now_ns = self.jobs, self.now_ns()
        accepted = jobs.try_push(job, now_ns=now_ns)
        if accepted is None:
            self._work(now_ns)
            accepted = jobs.try_push(job, now_ns=now_ns)
            if accepted is None:
                jobs.check_log()
                return None
        if not self._syncs:
            if jobs.is_gathering and self._due_ns == _NEVER_NS:
                self._due_ns = 0
            # By the batch what is gathered is for the next turn, which hands out more at once.
            if self._push_sockets is None or not jobs.is_gathering:
                self._work(now_ns)
            jobs.on_pushed(self.now_ns())
        return accepted

    # ------------------------------------------------------------------------- without a wait

    @property
    def in_flight(self) -> int:
        """How many jobs are neither done nor dead letters."""
        return self.jobs.in_flight + len(self.batch.ends)

    def stats(self) -> PusherStats:
        """Return the counters."""
        jobs, server = self.jobs, self._server
        invalid = dict(jobs.core.invalid)
        if server.malformed:
            invalid["parts"] = server.malformed
        return jobs.stats(
            now_ns=self.now_ns(),
            endpoint=server.endpoint,
            frames_invalid=invalid,
            connections_refused=server.refused_by_key,
            connections_revoked=server.connections.revoked,
        )

    def job(self, *fields: Any) -> "QueuedJob":
        """Return a job that has no sequence yet, of the fields of `push`."""
        self.check_open()
        return self.jobs.job(*fields, now_ns=self.now_ns())

    def dead(self) -> "list[DeadJob]":
        """Return the dead letters."""
        return self.jobs.core.queue.store.dead.list()

    def act_on_dead(self, action: str, sequences: list[int] | None) -> int:
        """Retry or purge dead letters; return how many."""
        self.check_open()
        now_ns = self.now_ns()
        store = self.jobs.core.queue.store
        count = store.act_on_dead(action, sequences, now_ns=now_ns)
        self._work(now_ns)
        return count


def _let_others() -> bool:
    """Go on, when others were there."""
    return True


def _admin_refusal(admin: str, endpoint: str, security: "Security | None") -> str | None:
    """Return why dead letters are not administered over the wire; None where they are."""
    if admin == "never":
        return 'the pusher administers no dead letters over the wire (admin="never")'
    if security is not None and security.access_rules is not None:
        return None  # each key is looked at: where it comes from does not matter
    if admin == "always" or _is_local(endpoint):
        return None
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
