"""Notes whether a publisher of a multicast hears the NACKs that go to it by UDP. No I/O.

They go to where its datagrams come from: a port that the system picked. Where a firewall lets only
the documented ports through, or the publisher is behind a NAT, they are dropped, and nobody says
so: each gap is asked for by UDP in vain, and then over the recovery channel.

One gap at a time is followed, so that a publisher that pauses is not taken for one that cannot be
reached::

    asked by UDP ──attempts_max times──▶ over the recovery channel ──repaired there──▶ in vain
         └── a repair, or a hint, by UDP: it is reached
    VAIN_MAX in a row in vain ──▶ none by UDP for AGAIN_NS, then it is tried again
"""

from typing import Any, Final

from p2pmsg.wire import Frame
from recovery import StreamReceiver

VAIN_MAX: Final = 8
"""Gaps in a row in vain, with nothing that came by UDP in between. Where half of all datagrams are
lost, this happens once in 10,000 times; then it costs a minute in which repairs come over TCP."""
AGAIN_NS: Final = 60_000_000_000
"""How long nothing is asked for by UDP, and the shortest time between two warnings."""
FOLLOWED_NS: Final = 10_000_000_000
"""How long a gap is followed: its stream may have ended."""
_NEVER_NS: Final = 2**63


class NackPath:
    """Whether a session's publisher is reached by UDP."""

    __slots__ = (
        "_again_ns", "_followed", "_is_elsewhere", "_receiver", "_since_ns", "_vain", "_warn_ns",
    )  # fmt: skip

    def __init__(self) -> None:
        self._followed: tuple[str, int] | None = None
        self._receiver: StreamReceiver[Any] | None = None
        self._is_elsewhere = False
        self._vain: list[tuple[str, int]] = []
        self._since_ns = self._again_ns = self._warn_ns = 0

    @property
    def is_blocked(self) -> bool:
        """Whether it counts as not reached: what is missing is asked for elsewhere at once."""
        return len(self._vain) >= VAIN_MAX

    def may_ask(self, now_ns: int) -> bool:
        """Whether to ask by UDP."""
        return len(self._vain) < VAIN_MAX or now_ns >= self._again_ns

    def asked(self, topic: str, receiver: StreamReceiver[Any], sequence: int, now_ns: int) -> None:
        """Note the first NACK by UDP for messages from `sequence` on."""
        if self._followed is not None and self._receiver is not None:
            is_open = not self._receiver.has(self._followed[1], 1)
            if is_open and now_ns - self._since_ns < FOLLOWED_NS:
                return
        self._followed, self._receiver = (topic, sequence), receiver
        self._since_ns, self._is_elsewhere = now_ns, False

    def asked_elsewhere(self, topic: str, start: int, stop: int) -> None:
        """Note that `[start, stop)` is asked for elsewhere, after all that was asked by UDP."""
        if self._followed is not None and self._followed[0] == topic:
            self._is_elsewhere |= start <= self._followed[1] < stop

    def came_elsewhere(self, frame: Frame, now_ns: int) -> bool:
        """Take a repair that its publisher sent elsewhere; returns whether to warn now."""
        followed = self._followed
        if followed is None or followed[0] != frame.topic or not frame.covers(followed[1]):
            return False
        self._followed = self._receiver = None
        if not self._is_elsewhere:
            return False
        if not self.is_blocked:
            self._vain.append(followed)
        if not self.is_blocked:
            return False
        is_due, self._again_ns = now_ns >= self._warn_ns, now_ns + AGAIN_NS
        self._warn_ns = _NEVER_NS
        return is_due

    def came(self, frame: Frame, now_ns: int, *, is_new: bool) -> None:
        """Take a repair by UDP; one of what is not missing may be for another receiver."""
        if is_new or any(at[0] == frame.topic and frame.covers(at[1]) for at in self._vain):
            self.reached(now_ns)

    def reached(self, now_ns: int) -> None:
        """Note that a NACK by UDP was answered."""
        if self.is_blocked:
            self._warn_ns = now_ns + AGAIN_NS
        self._vain.clear()
        self._followed = self._receiver = None

    def text(self, name: str, recovery: str, address: Any) -> str:
        """Return what is said of a publisher of which no repair comes by UDP."""
        place = str(address)
        if isinstance(address, tuple):
            host, port = address[:2]
            place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return (
            f"no repair of publisher {name!r} comes by UDP: {VAIN_MAX} times in a row what was "
            f"missing was asked for at {place} in vain, and then repaired over its recovery "
            f"endpoint {recovery}. It is asked for there at once from now on, and by UDP again "
            f"after a minute. Does a firewall or a NAT drop UDP from here to {place}, where its "
            f"datagrams come from, or the network large datagrams (datagram_bytes)?"
        )
