"""One way to a session, to its publisher itself or over a relay, and the handshake there.

::

    PROBE ──▶ ECHO ──▶ JOINED, again and again ──the other side closes──▶ JOINED(complete)

A `Route` decides when each is due. It knows no session: its caller makes the bodies.
"""

from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Final

from p2pmsg.control import Probe
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.states import ROUTE_TRANSITIONS, RouteEvent, RouteState
from p2pmsg.wire import Kind
from recovery import Loss, LossReason, RangeSet
from recovery.retry import RetryPolicy

_MS: Final = 1_000_000
RETRY: Final = RetryPolicy(10 * _MS, 1600 * _MS)
"""When a probe is repeated. It and the subscription to its echo go over two connections, so a first
one may come too early; the echo of many streams, or of many subscribers at once, takes its time."""
REFUSED_MAX: Final = 1024
"""Refused ranges that are remembered for each stream and route. Beyond it all are forgotten, and
asked for once more."""

Refusals = dict[str, dict[LossReason, RangeSet]]


@dataclass(slots=True)
class Question:
    """What is asked of a publisher, or a relay, about its heads; see `rejoin`."""

    retry: RetryPolicy
    topics: list[str] | None = None
    """What to ask about next; empty: whether anybody is there. None: nothing."""
    body: Probe | None = None
    """What was asked and has no answer."""
    since_ns: int = 0
    """Since when; once it is answered, when it was asked."""
    due_ns: int = 0
    tries: int = 0
    """How often it was asked since an answer brought something."""
    answers: bool = False
    """Whether it was answered before."""


@dataclass(slots=True, eq=False)
class Route:
    """One way to a session."""

    key: int
    """What the shell calls the recovery channel: the session at its publisher, or a relay."""
    line: int
    """The connection over which its frames come; -1 where that is not known yet."""
    hops: int
    """How many relays are in between; 0: it is the publisher itself."""
    _: KW_ONLY
    now_ns: InitVar[int]
    state: RouteState = RouteState.ASKED
    """Where it stands; `states` has the table."""
    echo: Question = field(default_factory=lambda: Question(RETRY))
    """The probe, whose answer is an echo."""
    keep_alive_ns: int = 0
    """When to report again that this subscriber is there."""
    recovery: str = ""
    """The publisher's recovery endpoint, where it is that to the publisher itself."""
    stall_ms: float = -1.0
    """How long a full subscriber may hold up the server there; negative: it may not."""
    user: str = ""
    """Whose session it is, by the key of its publisher; "" where that is not asked."""
    asked_ns: int | None = None
    """Since when a NACK is without an answer."""
    put_off_until_ns: int = 0
    """Until when others are asked first: a relay did not know yet what it will have."""
    repaired_ns: int = -1
    """When messages last came over it, those that had come before included."""
    refused: Refusals = field(default_factory=dict)
    """What cannot be had here, by topic and reason."""
    met_ns: int = 0
    """When it was first announced."""
    announced_ns: int = 0
    """When the relay last said that it has the session, or a group's publisher that it is there."""
    urgent: Question | None = None
    """What is asked because something does not fit."""
    silent: Question | None = None
    """What is asked because nothing comes over its data path."""

    def __post_init__(self, now_ns: int) -> None:
        self.announced_ns = self.met_ns = now_ns

    def on(self, event: RouteEvent) -> None:
        """Take note of something that happens."""
        self.state = ROUTE_TRANSITIONS[self.state].get(event, self.state)

    @property
    def joined(self) -> bool:
        """Whether an echo came, or is not waited for: the other side closes."""
        return RouteState.OPEN <= self.state <= RouteState.COMPLETE

    @property
    def closing(self) -> bool:
        """Whether the other side said that it closes, or that it had closed."""
        return self.state >= RouteState.CLOSING

    @property
    def is_complete(self) -> bool:
        """Whether one that closes has heard that nothing of it is missing."""
        return self.state is RouteState.COMPLETE

    @property
    def probe(self) -> int | None:
        """The id of the echo that is awaited, or None."""
        return None if self.echo.body is None else self.echo.body.probe

    @property
    def is_asking(self) -> bool:
        """Whether a question about heads has no answer yet."""
        return any(one is not None and one.body is not None for one in (self.urgent, self.silent))

    def begin_probe(self, line: int, body: Probe, effects: Effects, now_ns: int) -> None:
        """Await the echo of a new probe over a line."""
        self.cancel(effects)
        echo = Question(RETRY, None, body, now_ns, now_ns + RETRY.wait_ns(0))
        self.line, self.echo = line, echo  # in one step: see `resync`
        effects.subscribe(line, Kind.ECHO, body.probe)

    def is_probe_due(self, now_ns: int) -> bool:
        """Whether the probe is to be sent again now; it counts as sent then."""
        echo = self.echo
        if echo.body is None or now_ns < echo.due_ns:
            return False
        echo.tries += 1
        echo.due_ns = now_ns + RETRY.wait_ns(echo.tries)
        return True

    def echoed(self, effects: Effects) -> None:
        """Note that the echo came and was taken."""
        self.cancel(effects)
        self.on(RouteEvent.ECHOED)

    def cancel(self, effects: Effects) -> None:
        """Await no echo any more."""
        if self.echo.body is not None:
            effects.unsubscribe(self.line, Kind.ECHO, self.echo.body.probe)
            self.echo.body = None

    def renew(self, *, is_same_incarnation: bool) -> None:
        """Note a new connection; what was said to one that closes stays so, and is said again."""
        if is_same_incarnation and self.is_complete:
            self.keep_alive_ns = 0  # the report may be lost
        else:
            self.on(RouteEvent.ANNOUNCED)

    def is_report_due(self, now_ns: int, *, complete: bool) -> bool:
        """Whether JOINED is to be sent: to stay known, or because nothing is missing any more."""
        return (complete and not self.is_complete) or now_ns >= self.keep_alive_ns

    def on_report(self, due_ns: int, *, complete: bool) -> None:
        """Note that JOINED was sent, and when it is due again."""
        self.keep_alive_ns = due_ns
        if complete:
            self.on(RouteEvent.REPORTED)

    def on_refused(self, topic: str, start: int, stop: int, reason: LossReason) -> None:
        """Remember that `[start, stop)` cannot be had here."""
        by_reason = self.refused.setdefault(topic, {})
        by_reason.setdefault(reason, RangeSet()).add(start, stop)
        if sum(map(len, by_reason.values())) > REFUSED_MAX:
            del self.refused[topic]

    def not_refused(self, topic: str, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the parts of `[start, stop)` that may be had here."""
        parts = [(start, stop)]
        for ranges in self.refused.get(topic, {}).values():
            parts = [part for a, b in parts for part in ranges.missing(a, b)]
        return parts

    def reasons(self, topic: str, start: int, stop: int) -> list[Loss]:
        """Return the parts of `[start, stop)` that were refused here, and why."""
        return [
            Loss(a, b, reason)
            for reason, ranges in self.refused.get(topic, {}).items()
            for a, b in ranges.overlap(start, stop)
        ]
