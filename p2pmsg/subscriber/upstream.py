"""What a subscriber knows of a relay that it is connected to, and heads that several have sent."""

from typing import Final

from p2pmsg import control

_MS: Final = 1_000_000
SETTLE_NS: Final = 1000 * _MS
"""How long after the start lines may take to say who is there."""
REFORM_NS: Final = 30_000 * _MS
"""How long a relay may be away, or be new and not know its upstreams yet, until what it may have is
given up: a process, or a machine, is started again meanwhile."""
QUIET_NS: Final = 2500 * _MS
"""How long a relay says nothing until it counts as away: two of its pulses and a half."""
HOLD_NS: Final = 250 * _MS
"""How long a first echo waits for those by other routes."""

class Upstream:
    """A relay that is at the other end of lines.

    Attributes:
        path: the relays behind it, itself included.
        version: counts its changes; what its last pulse said.
        settled: whether it says that it knows of all that its upstreams have.
        met_ns: when its welcome came.
        listed_ns: when its list last had come whole; `complete` whether it has at all.

    """

    def __init__(self, relay: int, welcome: control.Welcome, now_ns: int) -> None:
        self.id = relay
        self.name = welcome.name
        self.recovery = welcome.recovery
        self.stall_ms = welcome.stall_ms
        self.lines: list[int] = []
        self.path: list[int] = []
        self.due_ns = 0
        self.asked_ns: int | None = None
        self.page = 0
        self.version = -1
        self.answered_ns = self.listed_ns = 0
        self.met_ns = now_ns
        self.complete = False
        self.settled = True


def merge_heads(several: list[control.Heads]) -> control.Heads:
    """Return heads that reach as far as any of these."""
    if len(several) == 1:
        return several[0]
    found: dict[str, control.Head] = {}
    for head in (head for heads in several for head in heads.streams):
        known = found.get(head.topic, head)
        found[head.topic] = control.Head(
            head.topic,
            min(known.earliest, head.earliest),
            max(known.next, head.next),
            min(known.start, head.start),
        )
    name = next((heads.name for heads in several if heads.name), "")
    return control.Heads(name, list(found.values()), max(heads.floor for heads in several))
