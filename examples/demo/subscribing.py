"""The demo's subscriber processes: `fast`, and `slow`, which reads slowly for a while."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass

from p2pmsg import Subscriber, codec
from p2pmsg.errors import LossReport
from p2pmsg.message import MessageBatch
from p2pmsg.stats import SubscriberStats
from p2pmsg.testing import lose_datagrams

from .bars import compute_bars
from .child import emit
from .feed import FeedEvent, parse_line
from .plan import TOPICS

_SLOW_COUNT, _SLOW_PAUSE_S = 64, 0.02
"""The slow one reads so many messages and then pauses: at most 3,200 a second."""
_SLOW_RECEIVE_BYTES = 256 * 1024
_TIMEOUT_S = 0.1
_REPAIR_TIMEOUT_S = 60.0
"""Longer than the publisher takes to start again on its log, on a slow and busy machine, too; but
not as long as the demo waits for any change."""
_PROGRESS_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Role:
    """What one subscriber process does.

    Attributes:
        name: `fast` or `slow`.
        endpoint: of the publisher.
        counts: how many messages each topic will have.
        slow_seconds: how long it reads slowly, from its first message on.
        loss: part of its datagrams that the kernel drops.

    """

    name: str
    endpoint: str
    counts: dict[str, int]
    slow_seconds: float = 0.0
    loss: float = 0.0


@dataclass(kw_only=True)
class Tally:
    """A subscriber's ledger as the demo shows it: the library's figures, and its own count.

    Attributes:
        published, delivered, outstanding, lost, repaired: as `stats()` has them.
        seen: messages that this process counted.
        duplicates, missing: messages that it got twice, or not at all, by their sequences.
        kernel_drops: datagrams that the kernel dropped.
        balanced: whether published = delivered + outstanding + lost, stream by stream.

    """

    published: int = 0
    delivered: int = 0
    outstanding: int = 0
    lost: int = 0
    repaired: int = 0
    seen: int = 0
    duplicates: int = 0
    missing: int = 0
    kernel_drops: int = 0
    balanced: bool = True


class SequenceCheck:
    """Counts messages that come twice or not at all, by the sequences alone."""

    def __init__(self) -> None:
        self.next: Counter[tuple[int, str]] = Counter()
        self.seen = self.duplicates = self.missing = 0

    def note(self, batch: MessageBatch) -> None:
        """Take note of messages that were delivered."""
        stream = (batch.session, batch.topic)
        expected, start = self.next[stream], batch.sequence
        stop = start + len(batch)
        self.seen += len(batch)
        self.duplicates += max(0, min(stop, expected) - start)
        self.missing += max(0, start - expected)
        self.next[stream] = max(expected, stop)


def make_by_line(stats: SubscriberStats, check: SequenceCheck) -> Tally:
    """Return the library's figures together with the process's own."""
    return Tally(
        published=stats.published,
        delivered=stats.delivered,
        outstanding=stats.outstanding,
        lost=stats.lost,
        repaired=sum(stats.repaired.values()),
        seen=check.seen,
        duplicates=check.duplicates,
        missing=check.missing,
        kernel_drops=sum(line.kernel_drops for line in stats.lines),
        balanced=stats.balanced,
    )


def main() -> None:
    """Receive all, then report the ledger and the bars."""
    role = codec.convert(codec.json_decode(sys.argv[1]), Role)
    receive_bytes = _SLOW_RECEIVE_BYTES if role.slow_seconds else None
    check = SequenceCheck()
    lost: list[LossReport] = []
    with Subscriber(
        role.endpoint,
        topics=list(TOPICS.values()),
        name=role.name,
        on_gap=lost.append,
        receive_bytes=receive_bytes,
        repair_timeout=_REPAIR_TIMEOUT_S,
    ) as subscriber:
        if role.loss:
            lose_datagrams(subscriber, role.loss)
        emit("ready")

        def report() -> None:
            emit("progress", tally=asdict(make_by_line(subscriber.stats(), check)))

        events = receive_all(subscriber, role, check, lost, report)
        bars = [list(astuple(bar)) for bar in compute_bars(events)]
        emit("done", tally=asdict(make_by_line(subscriber.stats(), check)), bars=bars)


def receive_all(
    subscriber: Subscriber,
    role: Role,
    check: SequenceCheck,
    lost: list[LossReport],
    report: Callable[[], object],
) -> Iterator[FeedEvent]:
    """Yield the feed's events until every message was delivered or reported lost."""
    total = sum(role.counts.values())
    slow_until_s = None
    reported_s = time.monotonic()
    while check.seen + sum(loss.count for loss in lost) < total:
        is_slow = bool(role.slow_seconds) and (
            slow_until_s is None or time.monotonic() < slow_until_s
        )
        try:
            batch = subscriber.receive_many(_SLOW_COUNT if is_slow else 65_536, timeout=_TIMEOUT_S)
        except TimeoutError:
            batch = None
        if batch is not None:
            if slow_until_s is None:
                slow_until_s = time.monotonic() + role.slow_seconds
            check.note(batch)
            yield from map(parse_line, batch.values)
            if is_slow:
                time.sleep(_SLOW_PAUSE_S)
        if time.monotonic() - reported_s >= _PROGRESS_S:
            reported_s = time.monotonic()
            report()


if __name__ == "__main__":
    main()
