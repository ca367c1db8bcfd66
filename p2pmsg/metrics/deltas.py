"""Deltas since the last message, and how they are written. Pure."""

import math
from collections.abc import Iterable
from typing import Any

from p2pmsg.errors import MessageError
from p2pmsg.statsd.metric import split_key
from p2pmsg.statsd.numbers import number_text
from p2pmsg.statsd.totals import VERSION

INTEGER_MAX = 2**63 - 1
"""Largest integer of one message; larger sums are sent in several."""
VALUES_MAX = 10_000
"""Values of timers and sets in one message: some 100 kB."""
KEYS_MAX = 5_000
"""Metrics in one message."""
_FORBIDDEN = frozenset(":|@\n\r")


def check_name(name: str) -> str:
    """Return a name that every StatsD server accepts.

    `MessageError` if it is empty, or has a colon, a bar, an at sign or a control character.
    """
    if not isinstance(name, str) or not name:
        raise MessageError("name", f"must be a text that is not empty, not {name!r}")
    if _FORBIDDEN.intersection(name) or not name.isprintable():
        raise MessageError("name", f"must have no : | @ and no control character: {name!r}")
    return name


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return tags; `MessageError` if one is empty, or has a comma, a bar or a control character."""
    if isinstance(tags, str):
        raise MessageError("tags", f"must be several texts, not one: {tags!r}")
    found = tuple(tags)
    for tag in found:
        if not isinstance(tag, str) or not tag or not tag.isprintable() or {",", "|"} & set(tag):
            raise MessageError("tags", f"must be texts without comma and bar, not {tag!r}")
    return found


def check_number(field: str, value: float) -> float:
    """Return a number; `MessageError` if it is none, not finite, or an integer beyond 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MessageError(field, f"must be a number, not {value!r}")
    if isinstance(value, int):
        if abs(value) > INTEGER_MAX:
            raise MessageError(field, f"must be within 64 bits, not {value}")
    elif not math.isfinite(value):
        raise MessageError(field, f"must be finite, not {value}")
    return value


class Deltas:
    """The changes since the last message.

    Counters are sums, exact for integers. A gauge is the last value set, or None, and the sum added
    since. All values of timers and sets are kept.
    """

    __slots__ = ("counters", "gauges", "has_refused", "sets", "statistics", "value_count")

    def __init__(self) -> None:
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, tuple[float | None, float]] = {}
        self.statistics: dict[str, dict[str, list[float]]] = {}
        self.sets: dict[str, set[str]] = {}
        self.value_count = 0
        self.has_refused = False
        """Whether something did not fit."""

    @property
    def is_full(self) -> bool:
        """Whether it is time to send, before the interval ends."""
        return (
            self.value_count >= VALUES_MAX
            or len(self.counters) + len(self.gauges) >= KEYS_MAX
            or self.has_refused
        )

    def __bool__(self) -> bool:
        return bool(self.counters or self.gauges or self.statistics or self.sets)

    def increment(self, key: str, value: float) -> bool:
        """Add to a counter; False, and nothing added, if the sum would not fit."""
        total = self.counters.get(key, 0) + value
        if not _fits(total):
            self.has_refused = True
            return False
        self.counters[key] = total
        return True

    def gauge(self, key: str, value: float, *, delta: bool = False) -> None:
        """Set a gauge, or add to it."""
        base, added = self.gauges.get(key, (None, 0))
        self.gauges[key] = (base, added + value) if delta else (value, 0)

    def add_value(self, kind: str, key: str, value: float) -> None:
        """Keep a value of a timer (`ms`), histogram (`h`) or distribution (`d`)."""
        self.statistics.setdefault(kind, {}).setdefault(key, []).append(value)
        self.value_count += 1

    def add_to_set(self, key: str, value: str) -> None:
        """Keep a value of a set."""
        values = self.sets.setdefault(key, set())
        if value not in values:
            values.add(value)
            self.value_count += 1

    def message(self) -> dict[str, Any]:
        """Return the message for collectors."""
        body: dict[str, Any] = {"v": VERSION}
        if self.counters:
            body["c"] = self.counters
        if self.gauges:
            body["g"] = {key: list(change) for key, change in self.gauges.items()}
        body.update(self.statistics)
        if self.sets:
            body["s"] = {key: sorted(values) for key, values in self.sets.items()}
        return body

    def lines(self) -> list[str]:
        """Return the lines for a plain StatsD server."""
        lines = [_line(key, number_text(value), "c") for key, value in self.counters.items()]
        for key, (base, added) in self.gauges.items():
            if base is not None:
                value = base + added
                if value < 0:  # a plain negative number would be a change
                    lines.append(_line(key, "0", "g"))
                lines.append(_line(key, number_text(value), "g"))
            elif added:
                sign = "+" if added > 0 else ""
                lines.append(_line(key, f"{sign}{number_text(added)}", "g"))
        for kind, by_key in self.statistics.items():
            for key, values in by_key.items():
                lines += [_line(key, number_text(value), kind) for value in values]
        for key, texts in self.sets.items():
            lines += [_line(key, text, "s") for text in sorted(texts)]
        return lines


def _fits(number: float) -> bool:
    """Whether a number can be sent."""
    return abs(number) <= INTEGER_MAX if isinstance(number, int) else math.isfinite(number)


def _line(key: str, value: str, kind: str) -> str:
    name, tags = split_key(key)
    return f"{name}:{value}|{kind}|#{','.join(tags)}" if tags else f"{name}:{value}|{kind}"
