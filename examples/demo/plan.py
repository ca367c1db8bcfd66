"""What the demo plays: which feed, how much of it, how fast, and which bars must result."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .bars import Bar, compute_bars
from .feed import FeedEvent, random_walk, read_feed

TOPICS = {"trade": "trades", "quote": "quotes"}
FEED_SECONDS = 6.0
MESSAGES_PER_S_MAX = 35_000
"""A feed that would have to be faster for that takes longer."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the feed comes from: a file, or a random walk."""

    path: str | None = None
    trades: int = 200_000
    seed: int = 1

    def events(self) -> Iterator[FeedEvent]:
        """Return the feed from its beginning."""
        if self.path is not None:
            return read_feed(self.path)
        return random_walk(self.trades, self.seed)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known before anything is published.

    Attributes:
        source: the feed.
        counts: how many messages each topic gets.
        seconds: how long the publisher takes for them.
        endpoint: where the publisher publishes.
        log: where the publisher keeps its log; None: it has none.

    """

    source: Source
    counts: dict[str, int]
    seconds: float
    endpoint: str
    log: str | None = None

    @property
    def total(self) -> int:
        """How many messages there are."""
        return sum(self.counts.values())


def make_plan(
    source: Source, endpoint: str, seconds: float = FEED_SECONDS, log: str | None = None
) -> tuple[Plan, list[Bar]]:
    """Read the feed once: the plan, and the bars computed straight from the input."""
    counts: Counter[str] = Counter()

    def counted() -> Iterator[FeedEvent]:
        for event in source.events():
            counts[TOPICS[event.kind]] += 1
            yield event

    bars = compute_bars(counted())
    seconds = max(seconds, counts.total() / MESSAGES_PER_S_MAX)
    plan = Plan(source=source, counts=dict(counts), seconds=seconds, endpoint=endpoint, log=log)
    return plan, bars
