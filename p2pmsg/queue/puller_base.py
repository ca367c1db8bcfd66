"""What the pullers for threads and for asyncio share: connecting, taking, settling, counting."""

import builtins
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Generic

import transports
from p2pmsg.checks import check, checked, shown
from p2pmsg.errors import ClosedError, InvalidValueError, translated
from p2pmsg.message import T_co
from p2pmsg.queue.config import LINGER_S, PREFETCH_CEILING, PREFETCH_MIN, PullerConfig
from p2pmsg.queue.job import Job, OnInvalidJob, check_on_invalid, report_invalid
from p2pmsg.queue.process_id import this_process, worker_name
from p2pmsg.queue.puller_core import PullerCore
from p2pmsg.queue.stats import PullerStats
from p2pmsg.security.use import curve_client, server_of
from p2pmsg.subscriber.typed import Misfit, value_type
from p2pmsg.sync.key_watch import EVERY_NS, KeyWatch
from p2pmsg.sync.lifecycle import INHERITED, zmq_context
from p2pmsg.sync.lock import PublishLock
from p2pmsg.sync.settings import check_endpoints, check_name
from p2pmsg.sync.unanswered import Unanswered
from p2pmsg.trouble import Rarely
from recovery.checks import to_ns
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_MS: Final = 1_000_000
_ENDS_NS: Final = 100 * _MS
_COMING_NS: Final = 2000 * _MS
"""A connection over which no byte came for so long brings nothing just now."""
"""How often connections are checked that ZeroMQ may have ended."""
_ROUNDS_MAX: Final = 16
_COUNTERS: Final = (
    "received", "acked", "rejected", "discarded", "refused", "given_back", "dropped",
)  # fmt: skip
_monotonic_ns = time.monotonic_ns


class PullerBase(ABC, Generic[T_co]):
    """Takes jobs under a lock, and does the work of one turn; who waits, and how, is left out."""

    _turn_ns_max: ClassVar[int] = 2**63
    """How long a turn reads on, in ns; what is left is for the next one."""
    _ends_due_ns = 0
    _frames_per_round: ClassVar[int] = 64
    """How many frames are read between two looks at what there is to send, and at the time."""

    @checked()
    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        prefetch: int | None = None,
        name: str | None = None,
        config: PullerConfig | None = None,
        type: builtins.type[T_co] | None = None,  # noqa: A002  # as the subscribers have it
        on_invalid: OnInvalidJob = "skip",
        mode: str = "queue",
        security: "Security | None" = None,
    ) -> None:
        check(
            "mode", mode, mode == "queue", '"queue", or "pipeline" where the class itself is called'
        )
        self._on_invalid, self._misfits = check_on_invalid(on_invalid), 0
        self._values = None if type is None else value_type("type", type)
        self._security = security
        self._curves = [curve_client(security, at) for at in check_endpoints(endpoints)]
        self._keys = KeyWatch()
        self._prepare(endpoints)
        self._open(endpoints, prefetch, name, config)
        self._begin()

    def _prepare(self, endpoints: str | Sequence[str]) -> None:  # threads need nothing
        """Do what comes before anything is opened."""

    @abstractmethod
    def _begin(self) -> None:
        """Have turns taken from now on."""

    def _open(
        self,
        endpoints: str | Sequence[str],
        prefetch: int | None,
        name: str | None,
        config: PullerConfig | None,
    ) -> None:
        config = config if config is not None else PullerConfig()
        self._config = replace(config, prefetch=prefetch) if prefetch is not None else config
        self._name = check_name(name if name is not None else worker_name())
        places = check_endpoints(endpoints)
        self._places = [*map(str, places)]
        self._lock = PublishLock(nests=True)  # what is settled may be so by itself
        self._closed = False
        self._unusable: str | None = None
        self._clients: list[transports.ZmqQueueClient] = []
        self._cores: list[PullerCore] = []
        self._flushed_ns = 0
        self._ended_logged = Rarely()
        self._ack_linger_ns = to_ns(LINGER_S)
        given = self._config.prefetch
        self._prefetch = PREFETCH_MIN if given is None else given
        self._prefetch_ceiling = PREFETCH_CEILING if given is None else given
        self._flush_at = self._flush_at_of(self._prefetch)
        try:
            self._connect(places)
        except BaseException:
            for client in self._clients:
                client.close()
            raise
        self._core = self._cores[0]
        self._lost_ns = [-1] * len(
            places
        )  # what `last_heard_ns` was set to when one was found silent
        self._unanswered = Unanswered(
            "pusher", places, now_ns=_monotonic_ns(), usual="ROUTER",
            has_keys=self._security is not None,
        )  # fmt: skip
        self._judged = [(-1, 0)] * len(places)
        """When each pusher was heard, and how many malformed frames had come by then."""
        self._turns = 0
        access_rules = None if self._security is None else self._security.access_rules
        self._changes = None if access_rules is None else access_rules.changes()

    def _connect(self, places: Sequence[transports.Endpoint]) -> None:
        context, process, now_ns = zmq_context(), this_process(), _monotonic_ns()
        for place, curve in zip(places, self._curves, strict=True):
            with translated():
                client = transports.ZmqQueueClient(
                    place,
                    context=context,
                    frame_bytes_max=self._config.frame_bytes_max,
                    curve=curve,
                )
                self._clients.append(client)
                client.watch_end()
                client.connect()
            # Not from a generator: forked children would have the same id.
            core = PullerCore(
                secrets.randbits(64), self._name, self._prefetch, process,
                ceiling=self._prefetch_ceiling, frame_bytes_max=self._config.frame_bytes_max,
                now_ns=now_ns,
            )  # fmt: skip
            self._use_access_rules(core, client)
            core.on_settled = self._settled
            core.values = self._values
            self._cores.append(core)

    def _use_access_rules(self, core: PullerCore, client: transports.ZmqQueueClient) -> None:
        access_rules = None if self._security is None else self._security.access_rules
        if access_rules is not None:
            core.access.use(access_rules, partial(server_of, client))

    # --------------------------------------------------------------------------------- public

    @property
    def name(self) -> str:
        """The worker's name."""
        return self._name

    @property
    def connected(self) -> int:
        """How many of its endpoints have a pusher that was joined, and answers."""
        return sum(self._answering())

    def __repr__(self) -> str:
        return shown(self, lambda: ", ".join(self._places))

    def stats(self) -> PullerStats:
        """Return the counters as they are now; also after `close`."""
        return self._lock.read(self._stats)

    # -------------------------------------------------------------------------------- private

    def _take(self, taken: list[Job]) -> None:
        """Begin the next job, and put it into `taken`; nothing where there is none."""
        self._check_usable()
        self._lock.favour()
        now_ns = _monotonic_ns()
        before = [core.begun for core in self._cores]
        try:
            job = self._next_ready(now_ns)
            if job is None:
                # Nothing is there: before waiting, say what is done, so that there is credit.
                self._report(now_ns)
                job = self._next_ready(now_ns)
            if job is not None:
                taken.append(job)
        except BaseException:
            taken.clear()
            for core, former in zip(self._cores, before, strict=True):
                if core.begun is not None and core.begun is not former:
                    core.requeue(core.begun)
                core.resume()
            raise

    def _next_ready(self, now_ns: int) -> Job | None:
        """Begin the next job that is there; the pushers take turns."""
        cores = self._cores
        for _ in cores:
            self._turns += 1
            core = cores[self._turns % len(cores)]
            if core.ready:
                job = core.take(now_ns=now_ns)
                if job is not None:
                    self._core = core
                    return job
        return None

    def _fits(self, job: Job) -> bool:
        """Whether a job's value fits its type; else it becomes a dead letter, and that is said."""
        misfit = job.value
        if not isinstance(misfit, Misfit):
            return True
        job.value = misfit.value
        error = InvalidValueError(f"job {job.sequence}", misfit.path, misfit.reason, job)
        self._misfits += 1
        job.discard(str(error))
        report_invalid(error, self._on_invalid)
        return False

    def _settled(self) -> None:
        """Report to the pusher what was settled, or leave that for a moment."""
        now_ns = _monotonic_ns()
        late = now_ns - self._flushed_ns >= self._ack_linger_ns
        if late or self._core.acks_waiting() >= self._flush_at:
            self._lock.run(self._flush, now_ns)

    @staticmethod
    def _flush_at_of(jobs: int) -> int:
        """Return how many answers are sent together, still so soon that the next jobs come."""
        return max(1, min(jobs // 2, 1024))

    def _flush(self, now_ns: int) -> None:
        if self._unusable is None:
            self._flushed_ns = now_ns
            try:
                self._report(now_ns)
            except BaseException:
                for core in self._cores:
                    core.resume()
                raise

    def _report(self, now_ns: int) -> None:
        for core in self._cores:
            core.flush(now_ns=now_ns)
        self._work(now_ns)

    def _work(self, now_ns: int) -> bool:
        """Send what there is to send, take what came; False where there may be more at once."""
        done = True
        frames_max, until_ns = self._frames_per_round, now_ns + self._turn_ns_max
        for core, client in zip(self._cores, self._clients, strict=True):
            for _ in range(_ROUNDS_MAX):
                outbox = core.outbox
                while outbox and client.send(outbox[0]):
                    outbox.popleft()
                came = 0
                while came < frames_max and (frame := client.receive()) is not None:
                    came += 1
                    core.receive(frame, now_ns=now_ns)
                if core.access.unreported is not None:
                    self._on_denied()
                if came:
                    has = len(core.ready) + len(core.unconfirmed) + len(core.open)
                    self._flush_at = self._flush_at_of(max(has, self._prefetch))
                if not came and not outbox:
                    break
                if _monotonic_ns() > until_ns:
                    done = False
                    break
            else:
                done = False
        return done

    def _background(self) -> float:
        """Take the background thread's turn; return how long it may sleep, in ms."""
        if self._unusable is not None:
            raise transports.ClosedError("puller")
        now_ns = _monotonic_ns()
        if self._security is not None:
            self._keys.check(self._clients, now_ns)
            self._check_access_rules(now_ns)
        silence_ns = self._config.pusher_timeout * 1e9
        if any(now_ns - core.last_heard_ns > silence_ns / 2 for core in self._cores):
            self._work(now_ns)  # perhaps we were held up: what has come is taken before we judge
        looks_at_ends = now_ns >= self._ends_due_ns
        if looks_at_ends:
            self._ends_due_ns = now_ns + _ENDS_NS
        for at, (core, client) in enumerate(zip(self._cores, self._clients, strict=True)):
            last_heard_ns = core.last_heard_ns
            if core.unconfirmed or now_ns - last_heard_ns > silence_ns / 2:
                last_heard_ns = self._last_byte_ns(at, now_ns)
                if core.unconfirmed and now_ns - last_heard_ns < _COMING_NS:
                    core.on_coming(now_ns=now_ns)
            core.handle_timer(now_ns=now_ns)
            if core.warning:
                _log.warning("%s: %s", client.endpoint, core.warning)
                core.warning = ""
            if looks_at_ends and client.was_ended_here():
                self._say_ended(client.endpoint)
                client.reconnect()
            elif now_ns - max(last_heard_ns, core.last_heard_ns) > silence_ns:
                core.last_heard_ns = self._lost_ns[at] = now_ns
                client.reconnect()
        if now_ns >= self._unanswered.next_ns:
            strange = [sum(core.invalid.values()) for core in self._cores]
            answered = [core.joined or core.access.denial is not None for core in self._cores]
            self._unanswered.check(answered, strange, now_ns)
            self._keys.note(self._unanswered.take_closed())
        if not self._work(now_ns):
            return 0.0
        return self._wait_ms()

    def _last_byte_ns(self, at: int, now_ns: int) -> int:
        """Return when a pusher was last heard, or the last byte of a frame came that is not whole.

        Where malformed frames came since, such bytes are no sign of it.
        """
        core = self._cores[at]
        malformed = sum(core.invalid.values())
        if self._judged[at][0] != core.last_heard_ns:
            self._judged[at] = core.last_heard_ns, malformed
        came_ns = self._clients[at].last_byte_ns(now_ns)
        if came_ns is None or self._judged[at][1] != malformed:
            return core.last_heard_ns
        return max(core.last_heard_ns, came_ns)

    def _say_ended(self, endpoint: str) -> None:
        """Log that a connection was ended because of what came, once a minute at most."""
        if self._ended_logged.is_due():
            _log.warning(
                "%s: the connection was ended here, since a frame above frame_bytes_max (%s bytes, "
                "PullerConfig) came, or something that is no frame; it is made again",
                endpoint, f"{self._config.frame_bytes_max:,}",
            )  # fmt: skip

    def _check_access_rules(self, now_ns: int) -> None:
        """Do what follows from rights that have changed, and note what is denied."""
        if self._changes is not None and self._changes.poll():
            for core in self._cores:
                core.check_access_rules(now_ns=now_ns)
        self._on_denied()

    def _on_denied(self) -> None:
        for client, core in zip(self._clients, self._cores, strict=True):
            denied = core.access.take_unreported()
            self._keys.on_access(client.endpoint, denied, allowed=core.joined)

    def _wait_ms(self) -> float:
        now_ns = _monotonic_ns()
        due_ns = min(core.next_deadline_ns() for core in self._cores)
        if any(core.unsent for core in self._cores):
            due_ns = min(due_ns, now_ns + 5 * _MS)
        if self._security is not None:
            due_ns = min(due_ns, now_ns + EVERY_NS)
        return max(0.0, (due_ns - now_ns) / _MS)

    def _is_unsettled(self) -> bool:
        self._report(_monotonic_ns())
        return any(core.unsettled for core in self._cores)

    def _close_all(self) -> None:
        now_ns = _monotonic_ns()
        for core in self._cores:
            core.leave(now_ns=now_ns)
        self._work(now_ns)
        for client in self._clients:
            client.close(linger_ms=500)

    def _stats(self) -> PullerStats:
        cores = self._cores
        invalid = Counter({"parts": sum(client.malformed for client in self._clients)})
        for core in cores:
            invalid.update(core.invalid)
        ready = sum(len(core.ready) + len(core.unconfirmed) for core in cores)
        return PullerStats(
            **{name: sum(getattr(core, name) for core in cores) for name in _COUNTERS},
            in_hand=ready + sum(len(core.open) for core in cores),
            ready=ready,
            pushers=sum(core.joined for core in cores),
            frames_invalid={name: count for name, count in invalid.items() if count},
            unanswered=self._unanswered.by_endpoint() | self._refusals(),
            answering=dict(zip(self._places, self._answering(), strict=True)),
            invalid=self._misfits,
            denied={
                place: str(core.access.denial)
                for place, core in zip(self._places, cores, strict=True)
                if core.access.denial is not None
            },
        )

    def _refusals(self) -> dict[str, str]:
        pairs = zip(self._places, self._clients, strict=True)
        return {place: client.refusal for place, client in pairs if client.refusal}

    def _answering(self) -> list[bool]:
        pairs = zip(self._cores, self._lost_ns, strict=True)
        return [
            core.joined and core.last_heard_ns != lost_ns and not self._closed
            for core, lost_ns in pairs
        ]

    def _check_usable(self) -> None:
        if self._unusable is not None or self._closed:
            raise ClosedError("the puller", self._unusable or "it is closed")

    def _forget(self) -> None:
        """In a forked child: nothing of this is the child's."""
        self._closed = True
        self._unusable = INHERITED
        self._lock = PublishLock(nests=True)  # a thread of the parent's may have been inside
        for core in self._cores:
            core.abandon()  # so that the fast path finds nothing, and goes by `_unusable`
