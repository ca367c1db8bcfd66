"""Takes jobs that are acknowledged one by one, from several pushers."""

import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.errors import translated
from p2pmsg.queue.config import LINGER_S, PREFETCH_CEILING, PREFETCH_MIN
from p2pmsg.queue.job import Job
from p2pmsg.queue.process_id import this_process
from p2pmsg.queue.puller_core import PullerCore
from p2pmsg.queue.stats import PullerStats
from p2pmsg.security.key_watch import EVERY_NS, KeyWatch
from p2pmsg.security.use import server_of
from p2pmsg.subscriber.typed import ValueType
from p2pmsg.unanswered import Unanswered
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_MS: Final = 1_000_000
_ENDS_NS: Final = 100 * _MS
"""How often connections are checked that ZeroMQ may have ended."""
_COMING_NS: Final = 2000 * _MS
"""A connection over which no byte came for so long brings nothing just now."""
_PUSHER_TIMEOUT_NS: Final = 5_000_000_000
"""A pusher that was silent for so long is connected to again."""
_ACK_LINGER_NS: Final = to_ns(LINGER_S)
_ROUNDS_MAX: Final = 16
_FRAMES_PER_ROUND: Final = 8
"""Frames that are read between two looks at what there is to send, and at the time."""
_TURN_NS: Final = 2_000_000
"""How long a turn reads on; what is left is for the next one."""
_COUNTERS: Final = (
    "received", "acked", "rejected", "discarded", "refused", "given_back", "dropped",
)  # fmt: skip
_monotonic_ns = time.monotonic_ns


class EachTaker:
    """Does the work of one turn, and begins jobs.

    Args:
        places, curves: where the pushers are, and the keys of each.
        values: makes values of a type; None: they come as they are.
        prefetch: how many jobs to have at each; None: as many as are done within 20 ms.
        answered: called when a job was acknowledged, rejected or discarded, in any thread.

    Attributes:
        keys: what the handshakes came to.
        take_plain: begins a job that has nothing but a value; None: see whether `take` finds one.

    """

    def __init__(
        self,
        places: Sequence[transports.Endpoint],
        curves: Sequence["transports.CurveClient | None"],
        name: str,
        values: ValueType | None,
        security: "Security | None",
        *,
        prefetch: int | None,
        frame_bytes_max: int,
        answered: Callable[[], object],
    ) -> None:
        self.keys = KeyWatch()
        self._places = [*map(str, places)]
        self._security = security
        self._access_rules = None if security is None else security.access_rules
        self._changes = None if self._access_rules is None else self._access_rules.changes()
        self._frame_bytes_max = frame_bytes_max
        self._prefetch = PREFETCH_MIN if prefetch is None else prefetch
        self._ceiling = PREFETCH_CEILING if prefetch is None else prefetch
        self._flush_at = self._flush_at_of(self._prefetch)
        self._clients: list[transports.ZmqQueueClient] = []
        self._cores: list[PullerCore] = []
        try:
            self._connect(places, curves, name, values, answered)
        except BaseException:
            for client in self._clients:
                client.close()
            raise
        self._core = self._cores[0]
        self.take_plain = self._core.take_plain
        self._fds = frozenset(client.fd for client in self._clients)
        self._has_more = False
        self._lost_ns = [-1] * len(
            places
        )  # what `last_heard_ns` was set to when one was found silent
        self._unanswered = Unanswered(
            "pusher", places, now_ns=_monotonic_ns(), usual="ROUTER", has_keys=security is not None
        )
        self._turns = self._flushed_ns = self._ends_due_ns = 0

    def _connect(
        self,
        places: Sequence[transports.Endpoint],
        curves: Sequence["transports.CurveClient | None"],
        name: str,
        values: ValueType | None,
        answered: Callable[[], object],
    ) -> None:
        context, process, now_ns = zmq_context(), this_process(), _monotonic_ns()
        for place, curve in zip(places, curves, strict=True):
            with translated():
                client = transports.ZmqQueueClient(
                    place, context=context, frame_bytes_max=self._frame_bytes_max, curve=curve
                )
                self._clients.append(client)
                client.watch_end()
                client.connect()
            # Not from a generator: forked children would have the same id.
            core = PullerCore(
                secrets.randbits(64), name, self._prefetch, process,
                ceiling=self._ceiling, frame_bytes_max=self._frame_bytes_max, values=values,
                answered=answered, now_ns=now_ns,
            )  # fmt: skip
            if self._access_rules is not None:
                core.access.use(self._access_rules, partial(server_of, client))
            self._cores.append(core)

    def take(self, now_ns: int) -> Job | None:
        """Begin the next job; None where there is none.

        Then it was said what is done, so that the pushers give more.
        """
        job = self._next_ready(now_ns)
        if job is None:
            self._report(now_ns)
            job = self._next_ready(now_ns)
        return job

    def _next_ready(self, now_ns: int) -> Job | None:
        """Begin the next job that is there; the pushers take turns."""
        cores = self._cores
        for _ in cores:
            self._turns += 1
            core = cores[self._turns % len(cores)]
            if core.ready:
                job = core.take(now_ns=now_ns)
                if job is not None:
                    self._core, self.take_plain = core, core.take_plain
                    return job
        return None

    def has_ready(self) -> bool:
        """Whether there may be a job that was not begun."""
        return any(core.ready for core in self._cores)

    @property
    def is_report_due(self) -> bool:
        """Whether what was acknowledged is to be reported at once."""
        is_late = _monotonic_ns() - self._flushed_ns >= _ACK_LINGER_NS
        return is_late or self._core.acks_waiting() >= self._flush_at

    def commit(self) -> None:
        """Report what was acknowledged."""
        self._flushed_ns = now_ns = _monotonic_ns()
        self._report(now_ns)

    def resync(self) -> None:
        """Go on after an exception that came anywhere in it."""
        for core in self._cores:
            core.resync()

    @staticmethod
    def _flush_at_of(jobs: int) -> int:
        """Return how many answers are sent together, still so soon that the next jobs come."""
        return max(1, min(jobs // 2, 1024))

    def _report(self, now_ns: int) -> None:
        for core in self._cores:
            core.flush(now_ns=now_ns)
        self._work(now_ns)

    def _work(self, now_ns: int) -> None:
        """Send what there is to send, take what came; `_has_more`: there may be more at once."""
        self._has_more = False
        until_ns = now_ns + _TURN_NS
        for core, client in zip(self._cores, self._clients, strict=True):
            for _ in range(_ROUNDS_MAX):
                outbox = core.outbox
                while outbox and client.send(outbox[0]):
                    outbox.popleft()
                came = 0
                while came < _FRAMES_PER_ROUND and (frame := client.receive()) is not None:
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
                    self._has_more = True
                    break
            else:
                self._has_more = True

    def fds(self) -> frozenset[int]:
        """Return the descriptors that become readable when a turn is worth it."""
        return self._fds

    def turn(self, now_ns: int) -> None:
        """Send and receive, and do what is due."""
        if self._security is not None:
            self.keys.check(self._clients, now_ns)
            self._check_access_rules(now_ns)
        silence_ns = _PUSHER_TIMEOUT_NS
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
            if looks_at_ends and client.was_ended_here():
                client.reconnect()
            elif now_ns - max(last_heard_ns, core.last_heard_ns) > silence_ns:
                core.last_heard_ns = self._lost_ns[at] = now_ns
                client.reconnect()
        if now_ns >= self._unanswered.next_ns:
            strange = [sum(core.invalid.values()) for core in self._cores]
            answered = [core.joined or core.access.denial is not None for core in self._cores]
            self._unanswered.check(answered, strange, now_ns)
            self.keys.note(self._unanswered.take_closed())
        self._work(now_ns)

    def _last_byte_ns(self, at: int, now_ns: int) -> int:
        """Return when a pusher was last heard, or a byte of a frame that is not whole came."""
        came_ns = self._clients[at].last_byte_ns(now_ns)
        return max(self._cores[at].last_heard_ns, came_ns or 0)

    def _check_access_rules(self, now_ns: int) -> None:
        """Do what follows from rights that have changed, and note what is denied."""
        if self._changes is not None and self._changes.poll():
            for core in self._cores:
                core.check_access_rules(now_ns=now_ns)
        self._on_denied()

    def _on_denied(self) -> None:
        for client, core in zip(self._clients, self._cores, strict=True):
            denied = core.access.take_unreported()
            self.keys.on_access(client.endpoint, denied, allowed=core.joined)

    def next_deadline_ns(self) -> int:
        """Return when the next turn is due."""
        if self._has_more:
            return 0
        now_ns = _monotonic_ns()
        due_ns = min(core.next_deadline_ns() for core in self._cores)
        if any(core.unsent for core in self._cores):
            due_ns = min(due_ns, now_ns + 5 * _MS)
        if self._security is not None:
            due_ns = min(due_ns, now_ns + EVERY_NS)
        return due_ns

    def is_unconfirmed(self) -> bool:
        """Report, and return whether a pusher does not know yet what became of some jobs."""
        self._report(_monotonic_ns())
        return any(core.has_unconfirmed for core in self._cores)

    def close(self) -> None:
        """Give back what was not begun, reject what was, and close."""
        now_ns = _monotonic_ns()
        for core in self._cores:
            core.leave(now_ns=now_ns)
        self._work(now_ns)
        for client in self._clients:
            client.close(linger_ms=500)

    def stats(self) -> PullerStats:
        """Return the counters."""
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
            answering=dict(zip(self._places, self.answering(), strict=True)),
            denied={
                place: str(core.access.denial)
                for place, core in zip(self._places, cores, strict=True)
                if core.access.denial is not None
            },
        )

    def _refusals(self) -> dict[str, str]:
        pairs = zip(self._places, self._clients, strict=True)
        return {place: client.refusal for place, client in pairs if client.refusal}

    def answering(self) -> list[bool]:
        """Return which pushers took this worker on, and answer."""
        pairs = zip(self._cores, self._lost_ns, strict=True)
        return [
            core.joined and core.last_heard_ns != lost_ns and not core.leaving
            for core, lost_ns in pairs
        ]

    def abandon(self) -> None:
        """Drop all, in a forked child."""
        for core in self._cores:
            core.abandon()
