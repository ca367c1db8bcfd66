"""Totals made of deltas, each counted once in spite of repeats, cuts and restarts. Pure.

Why they are exact: deltas have sequences, per session of a client. The totals are stored together
with each session's next sequence, in one commit. After a restart the
collector reads the clients' replay buffers from the start: it has counted what is below the mark,
and skips it. What is missing at the mark is reported lost with its range.

What may be missing without a range is named too: a client that went without closing may have
counted more than is known, and nothing is known of an endpoint where no client ever answered.
"""

import json
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from p2pmsg.statsd.metric import STATISTICS, Kind, Metric, split_key
from p2pmsg.toolkit import checked

DELTAS_TOPIC = "metrics.deltas"
DELTAS_VERSION = 1
"""Of the format of deltas, as `p2pmsg.metrics` writes them."""
SESSIONS_MAX = 65_536
"""Sessions remembered; beyond it those that were silent longest are forgotten."""
LOSSES_MAX = 1_000
_KEPT = ("counters", "gauges", "statistics", "lost", "malformed", "cut", "forgotten")
"""Attributes that are in the state under their own names."""
_Delta = tuple[Kind, str, tuple[Any, ...]]
"""A change of one metric: kind, key, and numbers as they were sent, so that an integer stays one.
Of a gauge, what it was set to, or None, and what was added since."""
HERE, NOT_JOINED, VANISHED, UNREACHED = "here", "not_joined", "vanished", "unreached"


@dataclass(frozen=True, slots=True)
class LostDeltas:
    """Messages of deltas that are not in the totals.

    Attributes:
        session: 64-bit id of the client's publisher.
        start: first sequence lost.
        stop: the sequence after the last one lost.
        reason: why, as in `LossReport.reason`.

    """

    session: int
    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnfinishedClient:
    """A client that may have sent more than the totals hold.

    Attributes:
        name: of the client; the endpoint itself if it is `unreached`.
        session: of the client; None if `unreached`.
        reason: `unreached`: no client has ever answered at this endpoint. `not_joined`: the client
            announced itself, but how much it has sent is not known yet, or never will be.
            `vanished`: it went without closing (killed, cut off, or still counting when the
            collector was started again), so its last deltas may be missing; it is removed when it
            comes back in the same session.

    """

    name: str
    session: int | None
    reason: str


class ExactTotals:
    """Totals by key (name and tags).

    In its methods `session` is the 64-bit id of a client's publisher, and `sequence` the number of
    a message of it.

    Args:
        names_max: how many keys are kept; deltas of others are counted as cut.

    """

    @checked(names_max=1)
    def __init__(self, names_max: int = 200_000) -> None:
        self._names_max = names_max
        self.counters: dict[str, float] = {}
        """Sums; integers where only integers were added."""
        self.gauges: dict[str, float] = {}
        """Last values."""
        self.statistics: dict[str, list[float]] = {}
        """`[count, sum]` of timers, histograms and distributions, by kind, a space, and key."""
        self.losses: list[LostDeltas] = []
        """The first 1,000."""
        self.lost = 0
        """Messages lost in all; 0 means that the totals are exact."""
        self.malformed = 0
        """Messages that were no deltas, or could not be counted; and entries of messages that were
        no change of a metric, or whose sum is beyond what a float holds."""
        self.cut = 0
        """Deltas of keys beyond `names_max`."""
        self.failed = ""
        """The error that ended the collecting, or empty."""
        self.forgotten = 0
        """Unfinished clients beyond 65,536: they stay a reason for `is_exact` to be false."""
        self._next: dict[int, int] = {}
        self._clients: dict[int, tuple[str, str]] = {}
        self._endpoints: dict[str, bool] = {}

    @property
    def is_exact(self) -> bool:
        """Whether everything that clients have sent is in the totals.

        Deltas that a connected client has not sent yet (`interval`), or that are on their way,
        do not count. False forever once anything was lost, malformed or cut; and as long as a
        client is `unfinished`.
        """
        trouble = self.lost or self.malformed or self.cut or self.forgotten or self.failed
        return not (trouble or self.unfinished)

    @property
    def unfinished(self) -> list[UnfinishedClient]:
        """Clients that may have sent more than the totals hold, and why."""
        unreached = [
            UnfinishedClient(endpoint, None, UNREACHED)
            for endpoint, reached in self._endpoints.items()
            if not reached
        ]
        return unreached + [
            UnfinishedClient(name, session, status)
            for session, (name, status) in self._clients.items()
            if status != HERE
        ]

    def expect(self, endpoints: Iterable[str]) -> None:
        """Set the `endpoints` to collect from; those reached before a restart stay reached."""
        self._endpoints = {place: self._endpoints.get(place, False) for place in endpoints}

    def on_reachable(self, endpoint: str) -> None:
        """Note that a client has answered at `endpoint`."""
        self._endpoints[endpoint] = True

    def on_client(self, session: int, name: str, status: str) -> bool:
        """Note the `status` of client `name`: `here`, `not_joined` or `vanished`; True if new."""
        if self._clients.get(session) == (name, status):
            return False
        self._clients[session] = name, status
        if len(self._clients) > SESSIONS_MAX:
            del self._clients[next(iter(self._clients))]
            self.forgotten += 1
        return True

    def on_finished(self, session: int) -> bool:
        """Note that a client has closed and all its deltas are here; True where that is new."""
        return self._clients.pop(session, None) is not None

    def marks(self) -> dict[int, int]:
        """Return the next sequence by session."""
        return dict(self._next)

    def clients(self) -> dict[int, tuple[str, str]]:
        """Return name and status of the clients that have not closed, by session."""
        return dict(self._clients)

    def next_sequence(self, session: int) -> int:
        """Return the first sequence of a session that is not counted yet."""
        return self._next.get(session, 0)

    def apply(self, session: int, sequence: int, value: Any) -> list[Metric]:
        """Count the deltas in `value`; return its metrics, none if it was counted before."""
        expected = self._next.get(session, 0)
        if sequence < expected:
            return []
        if sequence > expected:
            self.on_lost(session, expected, sequence, "evicted")
        self._advance(session, sequence + 1)
        try:
            deltas, malformed = _read(value)
        except (TypeError, ValueError, AttributeError, KeyError):
            self.malformed += 1
            return []
        self.malformed += malformed
        return [self._metric(*delta) for delta in deltas if self._add(*delta)]

    def _metric(self, kind: Kind, key: str, values: tuple[Any, ...]) -> Metric:
        """Return a change as the aggregator takes it; for a gauge, its value now."""
        name, tags = split_key(key)
        if kind is Kind.GAUGE:
            return Metric(kind, name, (float(self.gauges[key]),), tags, relative=(False,))
        return Metric(kind, name, values if kind is Kind.SET else tuple(map(float, values)), tags)

    def initial_metrics(self) -> list[Metric]:
        """Return what a flush shows before the first new delta: gauges, and counters with 0."""
        found = [self._metric(Kind.COUNTER, key, (0,)) for key in self.counters]
        return found + [self._metric(Kind.GAUGE, key, ()) for key in self.gauges]

    def on_lost(self, session: int, start: int, stop: int, reason: str) -> None:
        """Note that messages from `start` up to `stop` will not come, and the `reason`.

        Those that were counted before are not lost.
        """
        start = max(start, self._next.get(session, 0))
        if start >= stop:
            return
        self.lost += stop - start
        if len(self.losses) < LOSSES_MAX:
            self.losses.append(LostDeltas(session, start, stop, reason))
        self._advance(session, stop)

    def _advance(self, session: int, sequence: int) -> None:
        self._next.pop(session, None)  # so that the order is that of the last change
        self._next[session] = sequence
        if len(self._next) > SESSIONS_MAX:
            del self._next[next(iter(self._next))]

    def _add(self, kind: Kind, key: str, values: tuple[Any, ...]) -> bool:
        if kind is Kind.SET:
            return True  # distinct values are counted by the interval
        place: dict[str, Any] = self.statistics
        if kind is Kind.COUNTER:
            place, entry = self.counters, self.counters.get(key, 0) + values[0]
            total = entry
        elif kind is Kind.GAUGE:
            place, (base, added) = self.gauges, values
            total = entry = (place.get(key, 0) if base is None else base) + added
        else:
            key = f"{kind.value} {key}"
            count, total = place.get(key, (0, 0))
            entry = count, total = [count + len(values), total + sum(values)]
        if key not in place and len(place) >= self._names_max:
            self.cut += 1
            return False
        if total - total != 0:  # more than a float holds
            self.malformed += 1
            return False
        place[key] = entry
        return True

    def copy(self) -> "ExactTotals":
        """Return a copy that later deltas do not change."""
        made = ExactTotals(self._names_max)
        for name, value in vars(self).items():
            setattr(made, name, value.copy() if isinstance(value, dict | list) else value)
        made.statistics = {key: found.copy() for key, found in self.statistics.items()}
        return made

    def encode(self) -> dict[str, str]:
        """Return the state, by name; JSON, since its integers are of any size."""
        kept = {name: getattr(self, name) for name in _KEPT}
        state = kept | {
            "next": list(self._next.items()),
            "losses": list(map(astuple, self.losses)),
            "clients": [[session, *known] for session, known in self._clients.items()],
            "reached": [endpoint for endpoint, reached in self._endpoints.items() if reached],
        }
        return {name: json.dumps(value) for name, value in state.items()}

    @classmethod
    def decode(cls, rows: dict[str, str], names_max: int = 200_000) -> "ExactTotals":
        """Return the totals of what `encode` returned; raises `ValueError`."""
        try:
            state = {name: json.loads(value) for name, value in rows.items()}
            totals = cls(names_max)
            for name in _KEPT:
                setattr(totals, name, state[name])
            totals._next = dict(map(tuple, state["next"]))
            totals.losses = [LostDeltas(*loss) for loss in state["losses"]]
            totals._endpoints = dict.fromkeys(state["reached"], True)
            for session, name, status in state["clients"]:
                # Until it is heard of again, what it has counted meanwhile is unknown.
                totals._clients[session] = name, VANISHED if status == HERE else status
        except Exception as error:
            raise ValueError(f"it is no state of exact metrics: {error}") from error
        return totals


def _read(value: Any) -> tuple[list[_Delta], int]:
    """Return the changes of a message, and how many of its entries are malformed."""
    if value["v"] != DELTAS_VERSION:
        raise ValueError("another version")
    found: list[_Delta] = []
    malformed = 0
    for part in _PARTS:
        entries = value.get(part, {})
        if not isinstance(entries, dict):
            malformed += 1
            continue
        for key, entry in entries.items():
            try:
                found += _read_entry(part, key, entry)
            except (TypeError, ValueError, OverflowError):
                malformed += 1
    return found, malformed


def _read_entry(kind: Kind, key: Any, entry: Any) -> list[_Delta]:
    if not isinstance(key, str) or not key:
        raise TypeError("no name")
    if kind is Kind.COUNTER:
        return [(kind, key, (_number(entry),))]
    if kind is Kind.GAUGE:
        base, added = entry
        return [(kind, key, (None if base is None else _number(base), _number(added)))]
    if kind is not Kind.SET:
        return [(kind, key, tuple(map(_number, entry)))]
    if not isinstance(entry, list) or not all(isinstance(text, str) for text in entry):
        raise TypeError("no list of texts")
    return [(kind, key, (text,)) for text in entry]


_PARTS = (Kind.COUNTER, Kind.GAUGE, *STATISTICS, Kind.SET)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
        raise ValueError("no finite number")
    return value
