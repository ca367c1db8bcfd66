"""How far a query is behind its peers, from a progress report of Spark. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_bridge.offsets import Positions, from_json, ranges, start_of_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a query was behind after a batch."""

    query: str
    """The query's name, or its id."""

    batch: int
    """The batch's number."""

    streams: Mapping[tuple[str, int, str], int]
    """Messages behind, by endpoint, session and topic."""

    missing: int = 0
    """Messages of this batch's ranges that no task has read: they were gone, and skipped. It is
    right where a batch is read to its end and once: persist it for several actions."""

    away: tuple[str, ...] = ()
    """Endpoints of peers that gave no answer: how far the query is behind them is known only for
    streams that they reported before."""

    denied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By endpoint, topics that a peer gives no right to: how far the query is behind in those is
    not known."""

    heads_known: bool = True
    """False of a batch that was planned before a failure and is taken up again. Spark reports no
    heads with it, so nothing but `missing` is known: there are no `streams`."""

    @property
    def minOffsetsBehindLatest(self) -> int:
        """The smallest lag of a stream, as Spark's Kafka source calls it; 0 without streams."""
        return min(self.streams.values(), default=0)

    @property
    def maxOffsetsBehindLatest(self) -> int:
        """The largest lag of a stream; 0 without streams."""
        return max(self.streams.values(), default=0)

    @property
    def avgOffsetsBehindLatest(self) -> float:
        """The mean lag of a stream; 0 without streams."""
        return sum(self.streams.values()) / len(self.streams) if self.streams else 0.0

    def __str__(self) -> str:
        worst = max(self.streams, key=lambda each: self.streams[each], default=None)
        text = f"spark {self.query} batch {self.batch}: "
        if self.heads_known:
            text += f"{sum(self.streams.values()):,} behind in {len(self.streams)} streams"
        else:
            text += "taken up again, how far behind is not known"
        if worst is not None and self.streams[worst]:
            text += f", {self.streams[worst]:,} in {worst[2]!r} at {worst[0]}"
        if self.missing:
            text += f", {self.missing:,} missing"
        if self.away:
            text += f"; not known of {', '.join(self.away)}, no answer"
        if self.denied:
            denied = (
                f"{', '.join(map(repr, topics))} at {endpoint}"
                for endpoint, topics in self.denied.items()
            )
            text += f"; not known of {', '.join(denied)}, denied"
        return text


def lag_of(progress: Mapping[str, Any]) -> Lag | None:
    """Return the lag that a progress report (`query.lastProgress`) shows; None without our source.

    Args:
        progress: as a dict, or as the object that a listener gets (`progress.json`).

    """
    streams: dict[tuple[str, int, str], int] = {}
    missing, found, heads_known = 0, False, True
    away: dict[str, None] = {}
    denied: dict[str, tuple[str, ...]] = {}
    for source in progress.get("sources", ()):
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if end is None:
            continue
        found = True
        missing += _missing(source, end)
        if latest is None:
            heads_known = False
            continue
        away |= dict.fromkeys(latest.get("away", ()))
        for endpoint, topics in latest.get("denied", {}).items():
            denied[endpoint] = (*denied.get(endpoint, ()), *topics)
        lags = _behind(from_json(end), from_json(latest))
        streams |= {
            each: lag for each, lag in lags.items() if each[2] not in denied.get(each[0], ())
        }
    if not found:
        return None
    name = progress.get("name") or progress.get("id", "")
    return Lag(
        query=name,
        batch=progress.get("batchId", -1),
        streams=streams,
        missing=missing,
        away=tuple(away),
        denied=denied,
        heads_known=heads_known,
    )


def _offset(text: Any) -> dict[str, Any] | None:
    offset = text
    if isinstance(text, str):
        try:
            offset = json.loads(text)
        except ValueError:
            return None
    return offset if isinstance(offset, dict) and "peers" in offset else None


def _behind(end: Positions, latest: Positions) -> dict[tuple[str, int, str], int]:
    """Return by how much each stream's end is behind; one that was not read yet, by all of it."""
    return {
        (endpoint, session, topic): max(
            0, following - end.get(endpoint, {}).get(session, {}).get(topic, 0)
        )
        for endpoint, sessions in latest.items()
        for session, topics in sessions.items()
        for topic, following in topics.items()
    }


def _missing(source: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    start = start_of_batch(_offset(source.get("startOffset")), end)
    rows = source.get("numInputRows")
    if start is None or not isinstance(rows, int):
        return 0
    wanted = sum(each.count for each in ranges(start, from_json(end)))
    return max(0, wanted - rows)
