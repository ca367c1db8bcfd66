"""The puller: its sockets, and the calls that may wait."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import transports
from p2pmsg.driver.peer import CLOSED, Peer
from p2pmsg.driver.verbs import Calling, LateError, Verb, Wait
from p2pmsg.errors import InvalidValueError, translated
from p2pmsg.peers.network import Network
from p2pmsg.peers.pull_sockets import PullSockets
from p2pmsg.queue.config import LINGER_NS, PREFETCH_CEILING, PREFETCH_MIN
from p2pmsg.queue.job import Job, OnInvalidJob, report_invalid
from p2pmsg.queue.puller_core import PullerCore, PullerIdentity
from p2pmsg.queue.running import JobRun
from p2pmsg.queue.stats import PullerStats
from p2pmsg.queue.taking import Batch
from p2pmsg.security.access_watch import AccessWatch
from p2pmsg.security.key_watch import EVERY_NS, KeyWatch
from p2pmsg.security.use import server_of
from p2pmsg.subscriber.typed import Misfit, ValueType
from p2pmsg.unanswered import Unanswered

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security
    from transports.curve import CurveClient

_ENDS_NS: Final = 100_000_000
"""How often connections are checked that ZeroMQ may have ended."""
_PUSHER_TIMEOUT_NS: Final = 5_000_000_000
"""A pusher that was silent for so long is connected to again."""
_SOON_NS: Final = 5_000_000
"""How long answers wait for others while jobs are taken by the batch, or nothing else is due."""
_TAKING_NS: Final = 20_000_000
"""How often is looked what is done while jobs are taken by the batch."""
_ROUNDS_MAX: Final = 16
_FRAMES_PER_ROUND: Final = 8
"""Frames that are read between two looks at what there is to send, and at the time."""
_TURN_NS: Final = 2_000_000
"""How long a turn reads on; what is left is for the next one."""
_BATCH_PREFETCH: Final = 64, 65_536
"""How many jobs it may have by the batch, however slow and however fast it is."""
_COUNTERS: Final = (
    "received", "rejected", "discarded", "refused", "given_back", "dropped", "lost",
)  # fmt: skip


class Settings(NamedTuple):
    """What a puller was given, checked."""

    places: Sequence[transports.Endpoint]
    curves: Sequence["CurveClient | None"]
    name: str
    values: ValueType | None
    security: "Security | None"
    prefetch: int | None
    frame_bytes_max: int
    by_batch: bool
    on_invalid: OnInvalidJob


class PullerPeer(Peer):
    """A puller's sockets, and what it has of each pusher.

    Args:
        settings: what the user gave.
        answered: called when a job was acknowledged, rejected or discarded, in any thread.
        network: has its sockets, and the time.

    Attributes:
        keys: what the handshakes came to.
        batch: by the batch, what jobs are taken by.
        take_plain: begins a job that has nothing but a value; None: see whether `take` finds one.

    """

    kind = "puller"
    thread_name = "p2pmsg-puller"

    def __init__(
        self, settings: Settings, answered: Callable[[], object], network: Network
    ) -> None:
        self.now_ns = network.now_ns
        self._settings = settings
        self._places = [*map(str, settings.places)]
        self.places = ", ".join(self._places)
        self.name = f"the puller of {self.places}"
        self.keys = KeyWatch()
        self.batch = Batch() if settings.by_batch else None
        self._misfits = 0
        security = settings.security
        self._access_rules = None if security is None else security.access_rules
        self._changes = None if self._access_rules is None else AccessWatch(self._access_rules)
        self._clients: list[transports.RecoveryClient] = []
        self._cores: list[PullerCore] = []
        try:
            self._connect(network, answered)
        except BaseException:
            for client in self._clients:
                client.close()
            raise
        self._core = self._cores[0]
        self.take_plain = self._core.take_plain if self.batch is None else self.batch.take_plain
        self._pulls = (
            PullSockets(self._clients, settings.places, network) if settings.by_batch else None
        )
        self._client_fds = frozenset(client.fileno() for client in self._clients)
        self._has_more = False
        self._lost_ns = [-1] * len(self._places)
        """What `last_heard_ns` was set to when a pusher was found silent."""
        self._unanswered = Unanswered(
            "pusher", settings.places, now_ns=self.now_ns(), usual="ROUTER",
            has_keys=security is not None, in_memory=network.in_memory,
        )  # fmt: skip
        self._turns = self._flushed_ns = self._ends_due_ns = 0

    def _connect(self, network: Network, answered: Callable[[], object]) -> None:
        settings = self._settings
        first = PREFETCH_MIN if settings.prefetch is None else settings.prefetch
        ceiling = PREFETCH_CEILING if settings.prefetch is None else settings.prefetch
        if settings.by_batch:
            first, ceiling = _BATCH_PREFETCH
        self._prefetch = first
        self._flush_at = _flush_at_of(first)
        now_ns = self.now_ns()
        for place, curve in zip(settings.places, settings.curves, strict=True):
            with translated():
                client = network.queue_client(
                    place, frame_bytes_max=settings.frame_bytes_max, curve=curve
                )
                self._clients.append(client)
                client.connect()
            identity = PullerIdentity(
                network.random.getrandbits(64), settings.name, network.process(), first, ceiling,
                settings.frame_bytes_max,
            )  # fmt: skip
            core = PullerCore(
                identity, values=settings.values, answered=answered, batch=self.batch, now_ns=now_ns
            )
            if self._access_rules is not None:
                core.access.use(self._access_rules, partial(server_of, client))
            self._cores.append(core)

    # ------------------------------------------------------------------------------- the jobs

    def receive(self, timeout: float | None) -> Verb[Job]:
        """Begin the next job; see `Puller.receive`."""
        deadline_ns = self.deadline_ns(timeout)
        while True:
            self.check_open()
            job = self._take(self.now_ns())
            if job is not None:
                if not isinstance(job.value, Misfit):
                    return job
                on_invalid = self._settings.on_invalid
                yield Calling(partial(report_invalid, self._discard(job), on_invalid))
                continue
            self.keys.raise_refused()
            if not (yield Wait(self._has_job, deadline_ns)) and not self.closed_why:
                raise LateError(f"no job came within {timeout} s")

    def _take(self, now_ns: int) -> Job | None:
        """Begin the next job; None where there is none.

        Then it was said what is done, so that the pushers give more.
        """
        job = self._next_ready(now_ns)
        if job is None:
            self._report(now_ns)
            job = self._next_ready(now_ns)
        elif self.batch is not None:  # a frame was begun
            if now_ns - self._flushed_ns >= _SOON_NS:
                self._report(now_ns)
            else:
                self._work(now_ns)
        return job

    def _next_ready(self, now_ns: int) -> Job | None:
        """Begin the next job that is there; the pushers take turns."""
        if self.batch is not None and (job := self.batch.take()) is not None:
            return job
        cores = self._cores
        for _ in cores:
            self._turns += 1
            core = cores[self._turns % len(cores)]
            if core.has_ready:
                job = core.take(now_ns=now_ns)
                if job is not None:
                    self._core = core
                    if self.batch is None:
                        self.take_plain = core.take_plain
                    return job
        return None

    def _discard(self, job: Job) -> InvalidValueError:
        """Discard a job whose value does not fit its type; return what is wrong."""
        misfit: Misfit = job.value
        job.value = misfit.value
        error = InvalidValueError(f"job {job.sequence}", misfit.path, misfit.reason, job)
        self._misfits += 1
        if self.batch is None:  # by the batch it counts as done
            job.discard(str(error))
        return error

    def _has_job(self) -> bool:
        is_here = any(core.has_ready for core in self._cores)
        if self.batch is not None:
            is_here = is_here or self.batch.at < self.batch.end
        return is_here or self.keys.has_error or self.is_closed

    @property
    def is_report_due(self) -> bool:
        """Whether what was acknowledged is to be reported at once."""
        is_late = self.now_ns() - self._flushed_ns >= LINGER_NS
        return is_late or len(self._core.reports.acked) >= self._flush_at

    def commit(self) -> None:
        """Report what was acknowledged; by the batch, all jobs taken so far count as done."""
        self.check_open()
        if self.batch is not None:
            self.batch.done = self.batch.at
        self._report(self.now_ns())

    def report(self) -> None:
        """Report what was acknowledged, if it is open."""
        if not self.closed_why:
            self._report(self.now_ns())

    def _report(self, now_ns: int) -> None:
        self._flushed_ns = now_ns
        for core in self._cores:
            core.flush(now_ns=now_ns)
        self._work(now_ns)

    # -------------------------------------------------------------------------------- the turns

    def turn(self, now_ns: int) -> None:
        """Send and receive, and do what is due."""
        if self._settings.security is not None:
            self.keys.check(self._clients, now_ns)
            if self._changes is not None and self._changes.poll():
                for core in self._cores:
                    core.check_access_rules(now_ns=now_ns)
            self._on_denied()
        if any(now_ns - core.last_heard_ns > _PUSHER_TIMEOUT_NS / 2 for core in self._cores):
            self._work(now_ns)  # perhaps we were held up: what has come is taken before we judge
        looks_at_ends = now_ns >= self._ends_due_ns
        if looks_at_ends:
            self._ends_due_ns = now_ns + _ENDS_NS
        for at in range(len(self._cores)):
            self._check_connection(at, now_ns, looks_at_ends=looks_at_ends)
        if now_ns >= self._unanswered.next_ns:
            strange = [sum(core.invalid.values()) for core in self._cores]
            answered = [core.joined or core.access.denial is not None for core in self._cores]
            self._unanswered.check(answered, strange, now_ns)
            self.keys.note(self._unanswered.take_closed())
        self._work(now_ns)

    def _check_connection(self, at: int, now_ns: int, *, looks_at_ends: bool) -> None:
        """Do what is due at one pusher; connect to it again where it is silent."""
        core, client = self._cores[at], self._clients[at]
        last_heard_ns = core.last_heard_ns
        if now_ns - last_heard_ns > _PUSHER_TIMEOUT_NS / 2:
            last_heard_ns = self._last_byte_ns(at, now_ns)
        if self._pulls is not None and looks_at_ends:
            self._pulls.check(at, core, now_ns)
        core.handle_timer(now_ns=now_ns)
        if looks_at_ends and client.was_ended_here():
            client.reconnect()
        elif now_ns - max(last_heard_ns, core.last_heard_ns) > _PUSHER_TIMEOUT_NS:
            core.on_silent(now_ns=now_ns)
            self._lost_ns[at] = now_ns
            client.reconnect()

    def _last_byte_ns(self, at: int, now_ns: int) -> int:
        """Return when a pusher was last heard, or a byte of a frame that is not whole came."""
        came_ns = self._clients[at].last_byte_ns(now_ns) or 0
        if self._pulls is not None:
            came_ns = max(came_ns, self._pulls.last_byte_ns(at, now_ns))
        return max(self._cores[at].last_heard_ns, came_ns)

    def _work(self, now_ns: int) -> None:
        """Send what there is to send, take what came; `_has_more`: there may be more at once."""
        self._has_more = False
        until_ns = now_ns + _TURN_NS
        for at, core in enumerate(self._cores):
            for _ in range(_ROUNDS_MAX):
                came = self._exchange(at, core, now_ns)
                if core.access.unreported is not None:
                    self._on_denied()
                if came:
                    has = len(core.ready) + len(core.open)
                    self._flush_at = _flush_at_of(max(has, self._prefetch))
                elif not core.outbox:
                    break
                if self.now_ns() > until_ns:
                    self._has_more = True
                    break
            else:
                self._has_more = True

    def _exchange(self, at: int, core: PullerCore, now_ns: int) -> int:
        """Send to one pusher, and read some frames of it; return how many."""
        client, outbox = self._clients[at], core.outbox
        while outbox and client.send(outbox[0]):
            outbox.popleft()
        came = 0
        while came < _FRAMES_PER_ROUND and (frame := client.receive()) is not None:
            came += 1
            core.receive(frame, now_ns=now_ns)
        if self._pulls is not None:
            for frame in self._pulls.receive(at, core, _FRAMES_PER_ROUND):
                came += 1
                core.receive(frame, now_ns=now_ns)
        return came

    def _on_denied(self) -> None:
        for client, core in zip(self._clients, self._cores, strict=True):
            denied = core.access.take_unreported()
            self.keys.on_access(client.endpoint, denied, allowed=core.joined)

    def fds(self) -> Collection[int]:
        """See `Peer`."""
        return self._client_fds if self._pulls is None else self._pulls.fds(self._client_fds)

    def next_deadline_ns(self) -> int:
        """See `Peer`."""
        if self._has_more:
            return 0
        now_ns = self.now_ns()
        due_ns = min(core.next_deadline_ns() for core in self._cores)
        if any(core.reports.waiting for core in self._cores):
            due_ns = min(due_ns, now_ns + _SOON_NS)
        if self._settings.security is not None:
            due_ns = min(due_ns, now_ns + EVERY_NS)
        if self.batch is not None and self.batch.reported < self.batch.end:
            due_ns = min(due_ns, now_ns + _TAKING_NS)
        return due_ns

    def resync(self) -> None:
        """Go on after an exception that came anywhere in it."""
        if self.batch is not None:
            self.batch.resync()
        for core in self._cores:
            core.resync()

    # -------------------------------------------------------------------------------- the end

    def close(self, time_ns: int, run: JobRun | None) -> Verb[None]:
        """Wait until `run` has ended, then until pushers know what was done: each so long."""
        if run is not None:
            yield Wait(run.has_ended, self.now_ns() + time_ns, by_io=False)
        self.closed_why = self.closed_why or CLOSED
        yield Wait(self._is_confirmed, self.now_ns() + time_ns)

    def _is_confirmed(self) -> bool:
        """Report, and return whether all pushers know what became of all jobs."""
        self._report(self.now_ns())
        return all(core.reports.is_empty for core in self._cores)

    def shut(self) -> None:
        """Give back what was not begun, reject what was, and close the sockets."""
        self.closed_why = self.closed_why or CLOSED
        now_ns = self.now_ns()
        for core in self._cores:
            core.leave(now_ns=now_ns)
        if self.batch is not None:
            self.batch.drop_rest()
        self._work(now_ns)
        if self._pulls is not None:
            self._pulls.close()
        for client in self._clients:
            client.close(linger_ms=500)

    def abandon(self) -> None:
        """See `Peer`."""
        super().abandon()
        for core in self._cores:
            core.abandon()
        if self.batch is not None:
            self.batch.drop_rest()

    # -------------------------------------------------------------------------------- counters

    def stats(self) -> PullerStats:
        """Return the counters."""
        cores, batch = self._cores, self.batch
        invalid = Counter({"parts": sum(client.malformed for client in self._clients)})
        for core in cores:
            invalid.update(core.invalid)
        ready = sum(core.ready_count for core in cores)
        in_hand = ready + sum(len(core.open) for core in cores)
        counts = {name: sum(core.counts[name] for core in cores) for name in _COUNTERS}
        counts["acked"] = sum(core.acked for core in cores)
        if batch is not None:
            ready += max(0, batch.end - batch.at)
            in_hand += max(0, batch.end - batch.done)
            counts["acked"] += batch.done - batch.reported
            counts["received"] -= self._misfits
        refusals = {
            place: client.refusal
            for place, client in zip(self._places, self._clients, strict=True)
            if client.refusal
        }
        return PullerStats(
            **counts,
            in_hand=in_hand,
            ready=ready,
            invalid=self._misfits,
            pushers=sum(core.joined for core in cores),
            frames_invalid={name: count for name, count in invalid.items() if count},
            unanswered=self._unanswered.by_endpoint() | refusals,
            answering=dict(zip(self._places, self.answering(), strict=True)),
            denied={
                place: str(core.access.denial)
                for place, core in zip(self._places, cores, strict=True)
                if core.access.denial is not None
            },
        )

    def answering(self) -> list[bool]:
        """Return which pushers took this worker on, and answer."""
        return [
            core.joined and core.last_heard_ns != lost_ns
            for core, lost_ns in zip(self._cores, self._lost_ns, strict=True)
        ]


def _flush_at_of(jobs: int) -> int:
    """Return how many answers are sent together, still so soon that the next jobs come."""
    return max(1, min(jobs // 2, 1024))
