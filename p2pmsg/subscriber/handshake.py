"""The handshake over one route: with a publisher itself, or through a relay.

::

    PROBE ──▶ ECHO ──▶ JOINED, again and again ──the other side closes──▶ JOINED(complete)

A `Handshake` decides when each is due. It knows no session: its caller makes the bodies.
"""

from random import Random
from typing import Final

from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.states import ROUTE_TRANSITIONS, RouteEvent, RouteState
from p2pmsg.wire import Kind
from recovery.retry import RetryPolicy

_MS: Final = 1_000_000
RETRY: Final = RetryPolicy(10 * _MS, 1600 * _MS)
"""When a probe is repeated. It and the subscription to its echo go over two connections, so a first
one may come too early; the echo of many streams, or of many subscribers at once, takes its time."""


class Handshake:
    """Asks for an echo until it comes, and reports when that is due.

    Attributes:
        line: the connection over which the echo comes; -1: none was asked for yet.
        state: where the route stands; `states` has the table.
        probe: the id of the echo that is awaited, or None.
        keep_alive_ns: when to report again that this subscriber is there.
        began_ns: when the last probe was begun.

    """

    __slots__ = ("_due_ns", "_tries", "began_ns", "keep_alive_ns", "line", "probe", "state")

    def __init__(self, line: int) -> None:
        self.line = line
        self.state = RouteState.ASKED
        self.probe: int | None = None
        self.keep_alive_ns = self.began_ns = self._due_ns = self._tries = 0

    def on(self, event: RouteEvent) -> None:
        """Take note of something that happens."""
        self.state = ROUTE_TRANSITIONS[self.state].get(event, self.state)

    @property
    def joined(self) -> bool:
        """Whether an echo came, or is not waited for: the other side closes."""
        return self.state is not RouteState.ASKED

    @property
    def closing(self) -> bool:
        """Whether the other side said that it closes."""
        return self.state >= RouteState.CLOSING

    @property
    def is_complete(self) -> bool:
        """Whether one that closes has heard that nothing of it is missing."""
        return self.state is RouteState.COMPLETE

    def begin(self, line: int, effects: Effects, *, rng: Random, now_ns: int) -> int:
        """Await the echo of a new probe over a line; return its id, for the caller's PROBE."""
        self.cancel(effects)
        self.line, self.probe = line, rng.getrandbits(64)
        self.began_ns, self._due_ns, self._tries = now_ns, now_ns + RETRY.wait_ns(0), 0
        effects.subscribe(line, Kind.ECHO, self.probe)
        return self.probe

    def is_probe_due(self, now_ns: int) -> bool:
        """Whether the probe is to be sent again now; it counts as sent then."""
        if self.probe is None or now_ns < self._due_ns:
            return False
        self._tries += 1
        self._due_ns = now_ns + RETRY.wait_ns(self._tries)
        return True

    def echoed(self, effects: Effects) -> None:
        """Note that the echo came and was taken."""
        self.cancel(effects)
        self.on(RouteEvent.ECHOED)

    def cancel(self, effects: Effects) -> None:
        """Await no echo any more."""
        if self.probe is not None:
            effects.unsubscribe(self.line, Kind.ECHO, self.probe)
            self.probe = None

    def renew(self, *, is_same_incarnation: bool) -> None:
        """Note a new connection; what was said to one that closes stays so, and is said again."""
        if is_same_incarnation and self.is_complete:
            self.keep_alive_ns = 0  # the report may be lost
        else:
            self.on(RouteEvent.STAYS)

    def is_report_due(self, now_ns: int, *, complete: bool) -> bool:
        """Whether JOINED is to be sent: to stay known, or because nothing is missing any more."""
        return (complete and not self.is_complete) or now_ns >= self.keep_alive_ns

    def on_report(self, due_ns: int, *, complete: bool) -> None:
        """Note that JOINED was sent, and when it is due again."""
        self.keep_alive_ns = due_ns
        if complete:
            self.on(RouteEvent.REPORTED)
