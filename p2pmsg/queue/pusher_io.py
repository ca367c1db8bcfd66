"""A pusher's socket and journal around the core; nothing here waits."""

import time
from collections import deque
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg.errors import LogFailedError
from p2pmsg.queue.journal.file import FileJournal
from p2pmsg.queue.journal.records import change_record
from p2pmsg.queue.pusher_core import PusherCore
from p2pmsg.queue.rules import BreakerState, Given, JobRun, QueuedJob
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.access_watch import AccessWatch

_MS: Final = 1_000_000
_ROUNDS_MAX: Final = 16
_FRAMES_PER_ROUND: Final = 256
_BYTES_AT_ONCE: Final = 2**18
"""Of frames that are read in one turn: some 2 ms, whatever they say."""
FRAMES_AT_ONCE: Final = 8
"""Frames of jobs, of 256 KiB each, between two looks at the time."""
_TURN_NS: Final = 2 * _MS
"""How long a turn goes on where there is always more."""
_CHANGES_PER_LOOK: Final = 16
_KEPT_BACK_MAX: Final = 4096
"""Frames that wait for the disk; nothing is read while there are more."""
_FAILING_NS: Final = 10 * _MS
"""Between two tries to write to a log that cannot be written."""
_QUIET_NS: Final = 250 * _MS
"""Workers that have jobs are probed so often, in case a connection broke unnoticed."""
_SOON_NS: Final = 2 * _MS
"""When workers are probed again after a connection broke."""


class PusherIO:
    """Takes what comes in, has the core work, writes down what became of it, sends.

    Args:
        core: decides.
        server: from where and to where.
        journal: where what becomes of jobs is written; None without a log. Frames that need it are
            kept back until that is on the disk.
        access_rules: whose changes are to be followed. Default None: there are no keys.

    Attributes:
        is_failing: whether the journal could not be written the last time.
        journal: where to; None without a log.
        unsynced: jobs that are in the log and not yet on the disk, where they have to be before a
            worker gets them; each with up to where the log has to be there.
        unsynced_bytes: of those.

    """

    def __init__(
        self,
        core: PusherCore,
        server: transports.ZmqQueueServer,
        journal: FileJournal | None,
        *,
        access_rules: "AccessWatch | None" = None,
    ) -> None:
        self.core = core
        self._access_rules = access_rules
        self.journal = journal
        self._server = server
        self._needed = 0
        """Up to where the journal has to be on the disk before the next frames are sent."""
        self._kept_back: deque[tuple[int, bytes, bytes]] = deque()
        self.unsynced: deque[tuple[int, QueuedJob]] = deque()
        self.unsynced_bytes = 0
        self._has_changes = False
        self._logged_admin = 0
        self.is_failing = False
        self._logged_open = False
        self._check_due_ns_ = 0
        self._pause_ns = _QUIET_NS

    def accept(self, job: QueuedJob, *, now_ns: int) -> None:
        """Put a job that was written into the queue, or where it waits for the disk."""
        journal = self.journal
        if journal is None or not journal.is_always:
            self._put(job, now_ns)
            return
        self.unsynced.append((journal.written, job))
        self.unsynced_bytes += job.size
        if job.message_id is not None:
            self.core.queue.store.dedup.add(job.message_id, job.sequence, now_ns=now_ns)

    def _put_synced(self, synced: int, now_ns: int) -> None:
        unsynced = self.unsynced
        while unsynced and unsynced[0][0] <= synced:
            job = unsynced[0][1]
            self._put(job, now_ns)
            unsynced.popleft()
            self.unsynced_bytes -= job.size

    def _put(self, job: QueuedJob, now_ns: int) -> None:
        store = self.core.queue.store
        plain = job.key is None and job.message_id is None and job.headers is None
        if plain and not job.due_ns and not job.priority:
            store.push_run(JobRun(job.sequence, job.payload, [len(job.payload)], job.pushed_ns))
        else:
            store.push(job, now_ns=now_ns)

    def work(self, *, now_ns: int) -> bool:
        """Do all there is to do; False where there may be more at once."""
        core, server = self.core, self._server
        core.queue.store.wall_offset_ns = time.time_ns() - now_ns
        if self._access_rules is not None and self._access_rules.poll():
            self._access_rules.end_revoked()
            core.check_access_rules(now_ns=now_ns)
        left_bytes, until_ns = _BYTES_AT_ONCE, now_ns + _TURN_NS
        for _ in range(_ROUNDS_MAX):
            if self.is_failing and not self.record():
                return True  # what came is left where it is
            came = 0
            while (
                came < _FRAMES_PER_ROUND
                and len(self._kept_back) < _KEPT_BACK_MAX
                and left_bytes > 0
                and (found := server.receive()) is not None
            ):
                came += 1
                left_bytes -= len(found[1])
                core.receive(*found, now_ns=now_ns, user=server.user)
            if server.broke():
                self._pause_ns = _SOON_NS
                self._check_workers(now_ns)
            elif now_ns >= self._check_due_ns_:
                self._check_workers(now_ns)
            if self.unsynced and self.journal is not None:
                self._put_synced(self.journal.synced, now_ns)
            core.handle_timer(now_ns=now_ns)
            if not self.record(until_ns):
                return True
            if core.queue.store.changes:
                return False  # there was no time to write them all; nothing may be sent before
            sent = self._send(now_ns)
            if left_bytes <= 0 or time.monotonic_ns() > until_ns:
                return False
            if not came and not sent:
                self._say_whether_open()
                if core.queue.warnings or self._logged_admin < core.admin_refused:
                    self._say_warnings()
                return True
        return False

    def next_deadline_ns(self, *, now_ns: int) -> int:
        """Return when `work` has something to do."""
        if self.is_failing:
            return now_ns + _FAILING_NS
        if self.core.outbox or self.core.queue.store.changes:
            return now_ns + 2 * _MS
        due_ns = self.core.next_deadline_ns(now_ns=now_ns)
        return self._check_due_ns_ if due_ns is None else min(due_ns, self._check_due_ns_)

    def resync(self, *, now_ns: int) -> None:
        """Put all right after an exception: what was to be sent is not, and workers are asked."""
        self.core.resync(now_ns=now_ns)
        self._kept_back.clear()
        self.unsynced = deque(
            each for each in self.unsynced if not self.core.queue.store.knows(each[1].sequence)
        )
        self.unsynced_bytes = sum(job.size for _, job in self.unsynced)
        if self.journal is not None:
            self.journal.resync(
                [*self.core.queue.store.open_jobs(), *(job for _, job in self.unsynced)],
                self.core.queue.store.dead.list(),
            )
            self._needed = self.journal.written

    def record(self, until_ns: int = 2**63) -> bool:
        """Write what became of jobs to the log, before frames say so; False where that fails.

        What could not be written by `until_ns` is left in the store's `changes`.
        """
        journal = self.journal
        if journal is None:
            return True
        changes = self.core.queue.store.changes
        written = 0
        try:
            for change in changes:
                process = None
                if isinstance(change, Given):
                    process = self.core.process_of(change.worker)
                journal.append(change_record(change, process))
                written += 1
                self._has_changes = True
                if written % _CHANGES_PER_LOOK == 0 and time.monotonic_ns() > until_ns:
                    break
            journal.allow_deliveries(self.core.queue.next_delivery)
            if self._has_changes:
                self._needed = journal.written
            self._has_changes = False
            if journal.broken is not None:
                raise LogFailedError(journal.broken)
        except OSError as error:
            if not self.is_failing:
                until = "it can" if journal.broken is None else "the pusher is started again"
                _log.error(
                    "the queue's log cannot be written, and nothing is handed out until %s: %s",
                    until, error,
                )  # fmt: skip
            if journal.broken is not None:
                self.unsynced.clear()  # their `push` raises
                self.unsynced_bytes = 0
            self.is_failing = True
        else:
            if self.is_failing:
                _log.warning("the queue's log can be written again")
            self.is_failing = False
        finally:
            del changes[:written]
        return not self.is_failing

    def _send(self, now_ns: int) -> bool:
        """Send what is in the outbox; whether anything was."""
        outbox, core = self.core.outbox, self.core
        if self.journal is not None and self.journal.is_always:
            self._keep_back(self.journal.synced)
        sent = False
        while outbox:
            identity, frame = outbox[0]
            if not self._server.reply(identity, frame):
                # It is gone. Or its queue is longer than its credit: it is none of ours.
                core.unreachable(identity, now_ns=now_ns)
            outbox.popleft()
            sent = True
        return sent

    def _keep_back(self, synced: int) -> None:
        """Take frames out of the outbox that say what is not yet on the disk; put back others."""
        outbox, kept_back, needed = self.core.outbox, self._kept_back, self._needed
        if kept_back or needed > synced:
            kept_back.extend((needed, *frame) for frame in outbox)
            outbox.clear()
            while kept_back and kept_back[0][0] <= synced:
                _, identity, frame = kept_back.popleft()
                outbox.append((identity, frame))

    def _check_workers(self, now_ns: int) -> None:
        """Send a frame to workers that may be gone, which a broken connection refuses.

        The monitor reports a break before the socket itself knows of it, so probe again, soon and
        then less often.
        """
        self._check_due_ns_ = now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, _QUIET_NS)
        self.core.probe()

    def _say_warnings(self) -> None:
        """Log warnings about workers that ask for more than they get."""
        warnings, core = self.core.queue.warnings, self.core
        if core.admin_refused and not self._logged_admin:
            _log.warning("a request for dead letters over the wire was refused: see `admin`")
        self._logged_admin = core.admin_refused
        while warnings:
            _log.warning("worker %r %s", *warnings.popleft())

    def _say_whether_open(self) -> None:
        is_open = self.core.queue.breaker.state is not BreakerState.CLOSED
        if is_open and not self._logged_open:
            failures = self.core.queue.breaker.failures
            _log.warning(
                "%d jobs in a row failed, and none was done: jobs are handed out one at a time, "
                "with pauses, until one is done",
                failures,
            )
        elif self._logged_open and not is_open:
            _log.warning("a job was done again: jobs are handed out as before")
        self._logged_open = is_open
