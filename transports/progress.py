"""Whether a frame is on its way over a connection, by how many bytes have come."""

from typing import Final

from transports.platform import TcpState

_MS: Final = 1_000_000
_BYTES_MIN: Final = 1024
_WITHIN_NS: Final = 2000 * _MS
"""So many bytes within so long are of a frame. A handshake has some 200 (600 with keys), and comes
again with each connection to a peer that is frozen; a ping of ZMTP has ten."""


class ByteProgress:
    """Says when bytes last came, of more than a handshake or a sign of life.

    It compares what it is given, some times a second while it matters; the first time it knows
    nothing.
    """

    __slots__ = ("_bytes", "_name", "_since_ns", "came_ns")

    def __init__(self) -> None:
        self._name: object = None
        self._bytes = self._since_ns = 0
        self.came_ns: int | None = None

    def note(self, state: TcpState | None, now_ns: int) -> int | None:
        """Take what the kernel says; return when such bytes came, over this connection."""
        if state is None or state.name != self._name:
            self._name = None if state is None else state.name
            self._bytes = 0 if state is None else state.received
            self._since_ns, self.came_ns = now_ns, None
        elif state.received - self._bytes >= _BYTES_MIN:
            self._bytes, self._since_ns = state.received, now_ns
            self.came_ns = now_ns - state.quiet_ms * _MS
        elif now_ns - self._since_ns >= _WITHIN_NS:
            self._bytes, self._since_ns = state.received, now_ns
        return self.came_ns
