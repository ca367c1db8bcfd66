"""How far a multicast sender may be ahead of its receivers' buffers.

A sender puts marks between its data, and receivers report which mark they have come to. So it knows
what may still lie in the buffer of the slowest one, and waits before that overflows; and it knows
up to where everybody has everything, and waits before its own memory of the rest runs out. It is
what TCP's window is for one receiver; it does not wait for one that does not answer. Only receivers
that were admitted count: datagrams come from anybody.
"""

from dataclasses import dataclass

RECEIVERS_MAX = 64
"""More receivers than this are not listened to: their answers would cost more than repairs do."""
_MARKS_A_WINDOW = 4


@dataclass(slots=True)
class _Receiver:
    position: int
    complete: int
    space_bytes: int

    def limit(self, lag_bytes_max: int) -> int:
        """Return up to which position it can take more."""
        return min(self.position + self.space_bytes, self.complete + lag_bytes_max)


class FlowWindow:
    """Counts bytes sent, in all, and where each receiver has come to.

    Args:
        lag_bytes_max: how much may be sent beyond what the slowest receiver has without a gap.

    Attributes:
        position: bytes sent.

    """

    def __init__(self, lag_bytes_max: int) -> None:
        self._lag_bytes_max = lag_bytes_max
        self._admitted: set[int] = set()
        self._receivers: dict[int, _Receiver] = {}
        self._limit = self._space = self._marked = self.position = 0

    @property
    def receivers(self) -> int:
        """How many are waited for."""
        return len(self._receivers)

    def sent(self, size: int) -> bool:
        """Count bytes that went out; returns whether a mark is to follow them."""
        self.position += size
        step = self._space // _MARKS_A_WINDOW or 65_536
        if self.position - self._marked >= step:
            self._marked = self.position
            return True
        return False

    def admit(self, receiver: int) -> None:
        """Listen to a receiver from now on; it is waited for once it has acknowledged a mark."""
        self._admitted.add(receiver)

    def acknowledge(self, receiver: int, position: int, complete: int, space_bytes: int) -> None:
        """Take note of where a receiver has come to; nothing happens for one not admitted.

        It has read the mark at `position`, misses nothing before the one at `complete`, and its
        buffer holds `space_bytes`.
        """
        if not 0 <= complete <= position <= self.position or space_bytes < 1:
            return
        known = self._receivers.get(receiver)
        if known is None:
            if receiver not in self._admitted or len(self._receivers) >= RECEIVERS_MAX:
                return
            self._receivers[receiver] = _Receiver(position, complete, space_bytes)
        else:
            known.position = max(known.position, position)
            known.complete = max(known.complete, complete)
            known.space_bytes = space_bytes
        self._count()

    def forget(self, receiver: int) -> None:
        """Wait for a receiver no more, nor listen to it."""
        self._admitted.discard(receiver)
        if self._receivers.pop(receiver, None) is not None:
            self._count()

    def space(self) -> int:
        """Return how many bytes may go out now; at least 1 where nobody is waited for."""
        if not self._receivers:
            return 1 << 62
        return self._limit - self.position

    def shed_slowest(self) -> list[int]:
        """Wait no more for those who have no space; returns them."""
        slow = [
            receiver
            for receiver, known in self._receivers.items()
            if known.limit(self._lag_bytes_max) <= self.position
        ]
        for receiver in slow:
            del self._receivers[receiver]
        self._count()
        return slow

    def _count(self) -> None:
        receivers = self._receivers.values()
        self._limit = min((one.limit(self._lag_bytes_max) for one in receivers), default=0)
        self._space = min((one.space_bytes for one in receivers), default=0)
