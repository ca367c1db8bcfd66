"""What a sender of webhooks reports."""

from dataclasses import dataclass, field
from typing import Any, Literal

from p2pmsg.stats import Stats

EventKind = Literal["opened", "closed", "stopped", "held", "dead", "lost"]


@dataclass(frozen=True, slots=True)
class HookEvent:
    """Something about an endpoint that somebody should know.

    Attributes:
        kind: `opened`: it counts as down, and only probes are sent; `closed`: it works again;
            `stopped`: it answered 410, and nothing is sent any more; `held`: it asked for a pause
            by `Retry-After`; `dead`: a message became a dead letter; `lost`: messages of the stream
            are lost, before they came here.
        endpoint: the endpoint's name.
        reason: for people.
        detail: the `Letter` that is dead, or the `LossReport`; of `held` when it is sent to again,
            a `datetime` in UTC; None for the others.

    """

    kind: EventKind
    endpoint: str
    reason: str
    detail: Any = None


@dataclass(slots=True, kw_only=True)
class EndpointStats(Stats):
    """The delivery to one endpoint, since the sender was started.

    Attributes:
        name: the endpoint's name.
        received: messages that came from the stream.
        delivered: messages that were answered with 2xx.
        requests: requests that were sent.
        failures: requests that failed.
        statuses: answers by status.
        dead: messages that became dead letters; `dead_letters` is how many there are.
        dead_letters: dead letters on the disk.
        parked: messages that failed, and wait on the disk while others go on.
        waiting: messages that are here and not delivered, the parked ones included.
        in_flight: requests under way.
        lost: messages of the stream that are lost.
        is_open: whether the breaker is open: the endpoint counts as down.
        stopped: why nothing is sent any more; None while it is.
        held_s: for how many seconds from now nothing is sent, since the endpoint asked for that by
            `Retry-After`; 0 where it did not.
        connected: publishers and relays that answer; None while no messages are asked for, since
            enough are here.
        reason: why the last request failed; empty if none did.
        error: what keeps the endpoint's subscriber from working now; None while it works.

    """

    name: str = ""
    received: int = 0
    delivered: int = 0
    requests: int = 0
    failures: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    dead: int = 0
    dead_letters: int = 0
    parked: int = 0
    waiting: int = 0
    in_flight: int = 0
    lost: int = 0
    is_open: bool = False
    stopped: str | None = None
    held_s: float = 0.0
    connected: int | None = None
    reason: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderStats(Stats):
    """What a sender did since it was started.

    Attributes:
        endpoints: by the endpoints' names.

    """

    endpoints: dict[str, EndpointStats]

    @property
    def delivered(self) -> int:
        """How many messages were delivered, over all endpoints."""
        return sum(each.delivered for each in self.endpoints.values())
