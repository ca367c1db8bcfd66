"""What of its share a pipeline's puller has, and what it misses; no clock, no socket."""

from collections import deque
from typing import Final, NamedTuple

RANGES_MAX: Final = 64
"""Ranges in one request; the rest is asked for with the next one."""
_PATIENCE_NS: Final = 50_000_000
"""How long a frame may be on its way on the data channel after the pusher said that it was sent."""
_PATIENCE_MAX_NS: Final = 1_000_000_000


class Taken(NamedTuple):
    """A frame, to be given to the application."""

    share: int
    number: int
    frame: bytes


class Intake:
    """The frames of one share, brought into order.

    Attributes:
        share: its id.
        next: the first frame that has not come. head: the next one that the pusher will send, as
            far as is known.
        ready: frames in order, not taken yet. later: frames after a gap, by number.
        bytes: of all these. duplicates: frames that came again.

    """

    def __init__(self, share: int) -> None:
        self.share = share
        self.next = self.head = 0
        self.ready: deque[Taken] = deque()
        self.later: dict[int, bytes] = {}
        self.bytes = self.duplicates = 0
        self._ask_ns = 0
        self._pause_ns = 0

    def receive(self, number: int, frame: bytes, *, now_ns: int) -> bool:
        """Take a frame; False where it was there already."""
        if number < self.next or number in self.later:
            self.duplicates += 1
            return False
        self.bytes += len(frame)
        if number > self.next:
            self.later[number] = frame
            self._miss(number, now_ns)
            return True
        self._append(frame)
        while (follower := self.later.pop(self.next, None)) is not None:
            self._append(follower)
        self.head = max(self.head, self.next)
        self._pause_ns = 0
        if self.next < self.head:
            self._ask_ns = now_ns + (0 if self.later else _PATIENCE_NS)
        return True

    def on_head(self, head: int, *, now_ns: int) -> None:
        """Note that the pusher has sent all frames below `head`."""
        if head > self.head:
            if self.next >= self.head:
                self._ask_ns = now_ns + _PATIENCE_NS
            self.head = head

    def missing(self, *, now_ns: int) -> list[tuple[int, int]]:
        """Return the ranges to ask for now, as [start, stop); empty while it is not time."""
        if self.next >= self.head or now_ns < self._ask_ns:
            return []
        self._pause_ns = min(max(2 * self._pause_ns, _PATIENCE_NS), _PATIENCE_MAX_NS)
        self._ask_ns = now_ns + self._pause_ns
        ranges: list[tuple[int, int]] = []
        start = self.next
        for number in [*sorted(self.later), self.head]:
            if start < number:
                ranges.append((start, number))
            start = number + 1
            if len(ranges) == RANGES_MAX:
                break
        return ranges

    def first(self) -> Taken | None:
        """Return the next frame; None where there is none."""
        return self.ready[0] if self.ready else None

    def take(self) -> Taken | None:
        """Take the next frame out."""
        if not self.ready:
            return None
        taken = self.ready.popleft()
        self.bytes -= len(taken.frame)
        return taken

    def resync(self) -> None:
        """Go on after an exception that came anywhere in it."""
        if self.ready:
            self.next = max(self.next, self.ready[-1].number + 1)
        while (follower := self.later.pop(self.next, None)) is not None:
            self._append(follower)
        for number in [number for number in self.later if number < self.next]:
            del self.later[number]
        self.head = max(self.head, self.next)
        self.bytes = sum(len(taken.frame) for taken in self.ready)
        self.bytes += sum(map(len, self.later.values()))

    def end(self) -> int:
        """Give up what is missing, for ever: what came after it follows; return how many frames."""
        lost = self.head - self.next - len(self.later)
        for number in sorted(self.later):
            self.ready.append(Taken(self.share, number, self.later[number]))
        self.later.clear()
        self.next = self.head
        return lost

    def _miss(self, number: int, now_ns: int) -> None:
        if number >= self.head:
            if self.next >= self.head or not self._pause_ns:
                self._ask_ns = now_ns
            self.head = number + 1

    def _append(self, frame: bytes) -> None:
        self.ready.append(Taken(self.share, self.next, frame))
        self.next += 1
