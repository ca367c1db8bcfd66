"""Totals out of deltas: each counted once, whatever was repeated, cut or restarted. Pure.

What makes them exact: deltas have sequences, per session of a client; beside the totals stands, for
each session, the sequence that comes next, and both are written to one file by one rename. After a
restart the collector reads the clients' replay buffers from the start: what is below the mark it
has counted, and skips. What is missing at the mark is lost, and told with its range.

What may be missing without a range is named too: a client that went without closing has perhaps
counted more than anybody knows, and of an endpoint where nobody has ever been nothing is known.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from p2pmsg.statsd.metric import Kind, Metric, split_key

TOPIC = "metrics.deltas"
VERSION = 1
"""Of the deltas, as `p2pmsg.metrics` writes them."""
STATISTICS = ("ms", "h", "d")
SESSIONS_MAX = 65_536
"""Sessions remembered; of more, those that were silent longest are forgotten."""
LOSSES_MAX = 1_000
_FORMAT = 1
HERE, NOT_JOINED, VANISHED, UNREACHED = "here", "not_joined", "vanished", "unreached"


@dataclass(frozen=True, slots=True)
class LostDeltas:
    """Messages of deltas, `[start, stop)` of a session, that are not in the totals, and why."""

    session: int
    start: int
    stop: int
    reason: str


@dataclass(frozen=True, slots=True)
class UnfinishedClient:
    """A client of which there may be more than the totals have.

    Attributes:
        name: of the client; of an endpoint where nobody has been, the endpoint.
        session: its session; None of an endpoint.
        reason: `unreached`: it is to be collected from there, and nobody has ever answered.
            `not_joined`: it announced itself, and how much it has sent is not known yet, or will
            never be. `vanished`: it went without closing (killed, cut off, or still counting when
            the collector was started again), so what it sent last may be missing; when it comes
            back in the same session, it is struck off.

    """

    name: str
    session: int | None
    reason: str


class StateError(ValueError):
    """A state file that cannot be read."""


@dataclass(frozen=True, slots=True)
class _Delta:
    """A change of one metric, with numbers as they were sent: an integer stays one."""

    kind: Kind
    key: str
    values: tuple[Any, ...]
    relative: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key:
            raise TypeError("no name")

    def metric(self) -> Metric:
        """Return it as the aggregation takes it."""
        name, tags = split_key(self.key)
        values = self.values if self.kind is Kind.SET else tuple(map(float, self.values))
        return Metric(self.kind, name, values, tags, relative=self.relative)


class ExactTotals:
    """Totals by key (name and tags).

    Args:
        names_max: how many keys are kept; deltas of others are counted as cut.

    """

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
        """Messages that were no deltas."""
        self.cut = 0
        """Deltas of keys that found no room."""
        self.duplicates = 0
        """Messages that were counted already."""
        self.failed = ""
        """What has ended the collecting, where something has."""
        self.state_errors = 0
        """How often the state could not be written; that is tried again."""
        self.forgotten = 0
        """Unfinished clients beyond 65,536, which nobody can strike off any more."""
        self._next: dict[int, int] = {}
        self._clients: dict[int, tuple[str, str]] = {}
        self._endpoints: dict[str, bool] = {}

    @property
    def is_exact(self) -> bool:
        """Whether everything that clients have sent is in the totals.

        What they have gathered and not sent yet (`interval_ms`) is not meant, nor what is on its
        way from a client that is there. False as soon as anything was lost, malformed or cut, or as
        long as a client is `unfinished`.
        """
        trouble = self.lost or self.malformed or self.cut or self.forgotten or self.failed
        return not (trouble or self.unfinished)

    @property
    def unfinished(self) -> list[UnfinishedClient]:
        """Clients of which there may be more than the totals have, and why."""
        unreached = [
            UnfinishedClient(endpoint, None, UNREACHED)
            for endpoint, reached in self._endpoints.items()
            if not reached
        ]
        return unreached + [
            UnfinishedClient(name, session, standing)
            for session, (name, standing) in self._clients.items()
            if standing != HERE
        ]

    def expect(self, endpoints: Iterable[str]) -> None:
        """Say where to collect from; what was reached in a former life stays so."""
        self._endpoints = {place: self._endpoints.get(place, False) for place in endpoints}

    def note_reached(self, endpoint: str) -> None:
        """Note that a client has answered at an endpoint."""
        self._endpoints[endpoint] = True

    def note_client(self, session: int, name: str, standing: str) -> bool:
        """Note how a client stands: `here`, `not_joined` or `vanished`; True where that is new."""
        if self._clients.get(session) == (name, standing):
            return False
        self._clients[session] = name, standing
        if len(self._clients) > SESSIONS_MAX:
            del self._clients[next(iter(self._clients))]
            self.forgotten += 1
        return True

    def note_finished(self, session: int) -> bool:
        """Note that a client has closed and all of it is here; True where that is new."""
        return self._clients.pop(session, None) is not None

    def marks(self) -> dict[int, int]:
        """Return the sequence that comes next, by session."""
        return dict(self._next)

    def clients(self) -> dict[int, tuple[str, str]]:
        """Return the clients that have not closed: name and how it stands, by session."""
        return dict(self._clients)

    def next_sequence(self, session: int) -> int:
        """Return the sequence of a session that has not been counted yet."""
        return self._next.get(session, 0)

    def apply(self, session: int, sequence: int, value: Any) -> list[Metric]:
        """Count a message; return its metrics, none where it was counted already."""
        expected = self._next.get(session, 0)
        if sequence < expected:
            self.duplicates += 1
            return []
        if sequence > expected:
            self.note_lost(session, expected, sequence, "evicted")
        self._advance(session, sequence + 1)
        try:
            deltas = _read(value)
        except (TypeError, ValueError, AttributeError, KeyError):
            self.malformed += 1
            return []
        return [self._metric(delta) for delta in deltas if self._add(delta)]

    def _metric(self, delta: _Delta) -> Metric:
        """Return a delta as the aggregation takes it: of a gauge, the value that it has now."""
        if delta.kind is Kind.GAUGE:
            delta = _Delta(Kind.GAUGE, delta.key, (self.gauges[delta.key],), (False,))
        return delta.metric()

    def standing(self) -> list[Metric]:
        """Return what a flush shows before the next delta: gauges, and counters of nothing new."""
        found = [_Delta(Kind.COUNTER, key, (0,)) for key in self.counters]
        found += [_Delta(Kind.GAUGE, key, (value,), (False,)) for key, value in self.gauges.items()]
        return [delta.metric() for delta in found]

    def note_lost(self, session: int, start: int, stop: int, reason: str) -> None:
        """Note that messages will not come; what was counted before is not lost."""
        start = max(start, self._next.get(session, 0))
        if start >= stop:
            return
        self.lost += stop - start
        if len(self.losses) < LOSSES_MAX:
            self.losses.append(LostDeltas(session, start, stop, reason))
        self._advance(session, stop)

    def _advance(self, session: int, sequence: int) -> None:
        self._next.pop(session, None)  # so that the order is that of the last news
        self._next[session] = sequence
        if len(self._next) > SESSIONS_MAX:
            del self._next[next(iter(self._next))]

    def _add(self, delta: _Delta) -> bool:
        key, kind = delta.key, delta.kind
        if kind is Kind.COUNTER:
            place: dict[str, Any] = self.counters
        elif kind is Kind.GAUGE:
            place = self.gauges
        elif kind is Kind.SET:
            return True  # distinct values are counted by the interval
        else:
            place, key = self.statistics, f"{kind.value} {key}"
        if key not in place and len(place) >= self._names_max:
            self.cut += 1
            return False
        if kind is Kind.COUNTER:
            place[key] = place.get(key, 0) + delta.values[0]
        elif kind is Kind.GAUGE:
            (value,) = delta.values
            place[key] = place.get(key, 0) + value if delta.relative[0] else value
        else:
            found = place.setdefault(key, [0, 0])
            found[0] += len(delta.values)
            found[1] += sum(delta.values)
        return True

    def copy(self) -> "ExactTotals":
        """Return a copy, which later deltas do not change."""
        made = ExactTotals(self._names_max)
        made.__dict__.update(self.__dict__)
        for name in ("counters", "gauges", "losses", "_next", "_clients", "_endpoints"):
            setattr(made, name, getattr(self, name).copy())
        made.statistics = {key: found.copy() for key, found in self.statistics.items()}
        return made

    # --------------------------------------------------------------------------------- the state

    def encode(self) -> bytes:
        """Return everything, for a file."""
        state = {
            "format": _FORMAT,
            "next": [[session, sequence] for session, sequence in self._next.items()],
            "counters": {key: _pack(value) for key, value in self.counters.items()},
            "gauges": self.gauges,
            "statistics": {
                key: [_pack(count), _pack(total)] for key, (count, total) in self.statistics.items()
            },
            "lost": self.lost,
            "malformed": self.malformed,
            "cut": self.cut,
            "losses": [[loss.session, loss.start, loss.stop, loss.reason] for loss in self.losses],
            "clients": [[session, *known] for session, known in self._clients.items()],
            "reached": [endpoint for endpoint, reached in self._endpoints.items() if reached],
            "forgotten": self.forgotten,
        }
        return msgspec.msgpack.encode(state)

    @classmethod
    def decode(cls, data: bytes, names_max: int = 200_000) -> "ExactTotals":
        """Return what `encode` gave.

        Raises:
            StateError: it is something else.

        """
        try:
            state = msgspec.msgpack.decode(data)
            if state["format"] != _FORMAT:
                raise StateError(f"format {state['format']} is not known here")
            totals = cls(names_max)
            totals._next = dict(map(tuple, state["next"]))
            totals.counters = {key: _unpack(value) for key, value in state["counters"].items()}
            totals.gauges = dict(state["gauges"])
            totals.statistics = {
                key: [_unpack(number) for number in numbers]
                for key, numbers in state["statistics"].items()
            }
            totals.lost = state["lost"]
            totals.malformed, totals.cut = state["malformed"], state["cut"]
            totals.losses = [LostDeltas(*loss) for loss in state["losses"]]
            totals.forgotten = state.get("forgotten", 0)  # older files have none of these
            totals._endpoints = dict.fromkeys(state.get("reached", ()), True)
            for session, name, standing in state.get("clients", ()):
                # Until it is heard of again nobody knows what it has counted meanwhile.
                totals._clients[session] = name, VANISHED if standing == HERE else standing
        except StateError:
            raise
        except Exception as error:
            raise StateError(f"it is no state of exact metrics: {error}") from error
        return totals


def _pack(value: float) -> float | str:
    """Integers beyond 64 bits go as text."""
    return str(value) if isinstance(value, int) and abs(value) >= 2**63 else value


def _unpack(value: float | str) -> float:
    return int(value) if isinstance(value, str) else value


def _read(value: Any) -> list[_Delta]:
    """Return the metrics of a message."""
    if value["v"] != VERSION:
        raise ValueError("another version")
    found = [_Delta(Kind.COUNTER, key, (_number(n),)) for key, n in value.get("c", {}).items()]
    for key, (base, added) in value.get("g", {}).items():
        if base is None:
            found.append(_Delta(Kind.GAUGE, key, (_number(added),), (True,)))
        else:
            found.append(_Delta(Kind.GAUGE, key, (_number(base) + _number(added),), (False,)))
    for kind in STATISTICS:
        for key, values in value.get(kind, {}).items():
            found.append(_Delta(Kind(kind), key, tuple(map(_number, values))))
    for key, texts in value.get("s", {}).items():
        found += [_Delta(Kind.SET, key, (_text(text),)) for text in _texts(texts)]
    return found


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value - value != 0:
        raise ValueError("no finite number")
    return value


def _texts(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value
