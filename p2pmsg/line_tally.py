"""Which line brought what first, where several lines carry the same streams.

A and B lines are two ways for the same frames: the first arrival is taken, the second one dropped.
So a gap on one line is filled by the other, and is asked for only when it was late for as long as a
second line may take.
"""

from collections import deque
from dataclasses import dataclass, field

from p2pmsg.subscriber_peer import Stream

_RECENT = 256
"""Frames per stream whose first arrival is remembered."""
_LAG_PART = 8
_STREAMS_MAX = 65_536


@dataclass(slots=True)
class LineCount:
    """What one line brought.

    Attributes:
        first: messages that it brought before the others.
        second: messages that another one had brought.
        missing: messages that others have brought and it has not.
        lag_ns: how much later than the first it brings what is second, smoothed.

    """

    first: int = 0
    second: int = 0
    missing: int = 0
    lag_ns: float = 0.0


@dataclass(slots=True)
class _Seen:
    heads: dict[int, int] = field(default_factory=dict)
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_RECENT))


class LineTally:
    """Counts by line; only kept where there are several.

    Args:
        lines: how many there are.
        wait_ns: how long a gap waits for a second line before it is asked for, in ns.

    Attributes:
        counts: one entry a line.

    """

    def __init__(self, lines: int, wait_ns: int) -> None:
        self.counts = [LineCount() for _ in range(lines)]
        self._wait_ns = wait_ns
        self._seen: dict[int, _Seen] = {}

    def note(self, line: int, stream: Stream, start: int, count: int, *, now_ns: int) -> None:
        """Note that `[start, start + count)` comes over a line, before it is taken or dropped."""
        seen = self._seen.get(id(stream))
        if seen is None:
            if len(self._seen) >= _STREAMS_MAX:
                self._seen.clear()
            seen = self._seen[id(stream)] = _Seen()
        stop = start + count
        tally = self.counts[line]
        head = seen.heads.get(line)
        if head is None:
            if len(seen.heads) == 1:
                stream.receiver.delay_nacks(self._wait_ns)
            seen.heads[line] = stop
        elif start >= head:
            tally.missing += start - head
            seen.heads[line] = stop
        else:  # late, by another way or again
            tally.missing = max(0, tally.missing - count)
            seen.heads[line] = max(head, stop)
        if not stream.receiver.has(start, count):
            tally.first += count
            seen.recent.append((start, stop, now_ns))
            return
        tally.second += count
        for first, last, when_ns in reversed(seen.recent):
            if first <= start < last:
                tally.lag_ns += (now_ns - when_ns - tally.lag_ns) / _LAG_PART
                break

    def forget(self, stream: Stream) -> None:
        """Forget a stream, which has ended."""
        self._seen.pop(id(stream), None)
