"""Notes which line brought what first, where several lines carry the same streams.

A and B lines carry the same frames: the first arrival is taken, the second one dropped. So a gap on
one line is filled by the other. It is asked for when no other line can bring it any more, because
all are past it, or when it is later than that line usually is::

    wait = lag + max(wait_ns, 4 * deviation of the lag), at most SECOND_LINE_MAX_NS

A line over which nothing comes any more, while others bring what it does not, is said to be silent.

The lag is estimated for each line as TCP estimates a round trip (RFC 6298).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.sessions import Stream

_RECENT: Final = 4096
"""Frames per stream whose first arrival is remembered: 40 ms of 100,000 a second."""
_SEARCHED: Final = 64
"""How many of them are searched if the other line divided the stream into other frames."""
_LAG_PART: Final = 8
_DEVIATION_PART: Final = 4
_STREAMS_MAX: Final = 65_536
SILENT_NS: Final = 2_500_000_000
"""Without anything from a line for so long, two heartbeats and a half, it is not waited for."""
SECOND_LINE_MAX_NS: Final = 100_000_000
"""How long at most another line is waited for, where it is more than `second_line_wait`; also until
it brought its first frame. More than two ways round the earth differ."""
NEW_NS: Final = 1_000_000_000
"""How long after a stream's first frame to wait for a datagram line that brought nothing of it."""


SAID_NS: Final = 5_000_000_000
"""After how long without anything, while other lines bring messages, that is said of a line."""
_SAID_AGAIN_NS: Final = 60_000_000_000
_LOOK_NS: Final = 1_000_000_000


@dataclass(slots=True)
class LineCount:
    """Counts what one line brought."""

    first: int = 0
    """Messages that it brought before the others."""
    second: int = 0
    """Messages that another one had brought."""
    missing: int = 0
    """Messages that others have brought and it has not, up to the last one that it brought."""
    lag_ns: float = 0.0
    """How much later than the first it brings what is second, smoothed."""
    deviation_ns: float = 0.0
    measured: bool = False

    def measure(self, lag_ns: int) -> None:
        """Note how much later than the first line it brought a frame."""
        if not self.measured:
            self.measured, self.lag_ns, self.deviation_ns = True, lag_ns, lag_ns / 2
            return
        error_ns = lag_ns - self.lag_ns
        self.deviation_ns += (abs(error_ns) - self.deviation_ns) / _DEVIATION_PART
        self.lag_ns += error_ns / _LAG_PART


@dataclass(slots=True)
class _Seen:
    since_ns: int
    heads: dict[int, int] = field(default_factory=dict)
    recent: dict[int, tuple[int, int]] = field(default_factory=dict)
    wait_ns: int = 0


def _behind(line: int, streams: Iterable[_Seen]) -> int:
    """Return how many messages follow a line's last one of each stream that it had any of."""
    heads = (seen.heads for seen in streams if line in seen.heads)
    return sum(max(each.values()) - each[line] for each in heads)


class Redundancy:
    """Counts what each of several lines brought, and sets how long gaps wait for the later ones.

    Args:
        lines: are read, not changed.
        wait_ns: how long a gap waits for another line at least, and `SECOND_LINE_MAX_NS` at most.

    Attributes:
        counts: one entry a line.
        silent: for people, what was said of lines over which nothing comes any more, by index.

    """

    def __init__(self, lines: Sequence[Connection], wait_ns: int) -> None:
        self.counts = [LineCount() for _ in lines]
        self._lines = lines
        self._datagrams = sum(line.shared for line in lines)
        self._wait_ns = wait_ns
        self._wait_max_ns = max(wait_ns, SECOND_LINE_MAX_NS)
        self._seen: dict[int, _Seen] = {}
        self.silent: dict[int, str] = {}
        self._since: dict[int, tuple[int, int]] = {}  # frames received, and since when
        self._checked_ns = 0
        self._due_ns = [0] * len(lines)

    def note(self, line: int, stream: Stream, start: int, count: int, *, now_ns: int) -> None:
        """Note that `[start, start + count)` came over a line, before it is taken or dropped."""
        seen = self._seen.get(id(stream))
        if seen is None:
            if len(self._seen) >= _STREAMS_MAX:
                self._keep(self._seen.values())
                self._seen.clear()
            seen = self._seen[id(stream)] = _Seen(now_ns)
        stop = start + count
        counted = self.counts[line]
        head = seen.heads.get(line)
        if head is None:
            seen.heads[line] = stop
        elif start >= head:
            counted.missing += start - head
            seen.heads[line] = stop
        else:  # late, by another way or again
            counted.missing = max(0, counted.missing - count)
            seen.heads[line] = max(head, stop)
        lacking = stream.receiver.lacks(start, count)
        if lacking:
            counted.first += lacking
            counted.second += count - lacking
            if len(seen.recent) >= _RECENT:
                del seen.recent[next(iter(seen.recent))]
            seen.recent[start] = stop, now_ns
        else:
            counted.second += count
            self._measure(counted, seen, start, now_ns)
        self._wait(stream, seen, now_ns)

    def forget(self, stream: Stream) -> None:
        """Forget a stream, which has ended."""
        seen = self._seen.pop(id(stream), None)
        if seen is not None:
            self._keep([seen])

    def missing(self) -> list[int]:
        """Return how many messages each line has not brought and others have.

        Of a line that is heard, those after its last one are on their way.
        """
        found = [counted.missing for counted in self.counts]
        for line in self._quiet() | set(self.silent):
            found[line] += _behind(line, self._seen.values())
        return found

    def check(self, now_ns: int) -> Iterator[tuple[int, str]]:
        """Yield warnings, with their lines: over which nothing comes, or comes again."""
        if now_ns < self._checked_ns:
            return
        self._checked_ns = now_ns + _LOOK_NS
        quiet = self._quiet()
        for line, (received, _) in list(self._since.items()):
            if self._lines[line].received == received and (line in quiet or line in self.silent):
                continue
            del self._since[line]
            if self.silent.pop(line, None):
                yield line, "something comes over this line again"
        for line in sorted(quiet - set(self.silent)):
            count = _behind(line, self._seen.values())
            if not count:
                continue
            heard = self._lines[line]
            # All were silent, perhaps, and it is only later than the others.
            _, since_ns = self._since.setdefault(line, (heard.received, now_ns))
            if now_ns - since_ns >= SAID_NS - SILENT_NS and now_ns >= self._due_ns[line]:
                self._due_ns[line] = now_ns + _SAID_AGAIN_NS
                silent_s = (now_ns - heard.last_heard_ns) / 1e9
                self.silent[line] = (
                    f"nothing has come over this line for {silent_s:.0f} s, while others brought "
                    f"messages that it did not: {count}"
                )
                yield line, self.silent[line]

    def _quiet(self) -> set[int]:
        """Return those over which nothing has come for `SILENT_NS` before another one's last."""
        heard_ns = [line.silent_from_ns for line in self._lines]
        return {index for index, at_ns in enumerate(heard_ns) if max(heard_ns) - at_ns > SILENT_NS}

    def _keep(self, left: Iterable[_Seen]) -> None:
        """Count what silent lines have not brought of streams that are forgotten."""
        for line in self._quiet() | set(self.silent):
            self.counts[line].missing += _behind(line, left)

    def _measure(self, counted: LineCount, seen: _Seen, start: int, now_ns: int) -> None:
        found = seen.recent.get(start)
        if found is not None:
            counted.measure(now_ns - found[1])
            return
        for first, (stop, when_ns) in islice(reversed(seen.recent.items()), _SEARCHED):
            if first <= start < stop:
                counted.measure(now_ns - when_ns)
                break

    def _wait(self, stream: Stream, seen: _Seen, now_ns: int) -> None:
        """Set how long a stream's gaps wait, and end the wait where all lines are past them."""
        lines, counts = self._lines, self.counts
        alive = [index for index in seen.heads if now_ns - lines[index].silent_from_ns < SILENT_NS]
        wait_ns = 0
        if len(alive) > 1:
            late_ns = max(
                counts[line].lag_ns + max(self._wait_ns, 4 * counts[line].deviation_ns)
                for line in alive
            )
            wait_ns = min(int(late_ns), self._wait_max_ns)
        is_new = now_ns - seen.since_ns < NEW_NS
        if is_new and len(seen.heads) < self._datagrams:
            wait_ns = self._wait_max_ns
        if wait_ns != seen.wait_ns:
            seen.wait_ns = wait_ns
            stream.receiver.nacks.wait_for_line(wait_ns)
        if len(alive) > 1 and stream.receiver.missing:
            stream.receiver.nacks.hurry(min(seen.heads[index] for index in alive), now_ns=now_ns)
