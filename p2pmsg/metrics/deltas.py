"""Deltas since the last message, and how they are written. Pure."""

import math
from collections.abc import Iterable
from typing import Any

from p2pmsg.errors import MessageError, MessageTooLargeError
from p2pmsg.statsd.metric import split_key
from p2pmsg.statsd.numbers import number_text
from p2pmsg.statsd.totals import VERSION

INTEGER_MAX = 2**63 - 1
"""Largest integer of one message; larger sums are sent in several."""
VALUES_MAX = 10_000
"""Values of timers and sets in one message: some 100 kB."""
KEYS_MAX = 5_000
"""Metrics in one message."""
BYTES_MAX = 2**20
"""Bytes that are gathered for one message: what a publisher sends by default."""
_FRAME_BYTES = 64
"""What the parts of a message take, and their names, at most."""
_LENGTH_BYTES = 5
"""The length of a text or a list, at most."""
_NUMBER_BYTES = 9
_GAUGE_BYTES = 1 + 2 * _NUMBER_BYTES
_NAMED = 60
"""Characters of a key in an error's text."""
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
    since. All values of timers and sets are kept. What adds something returns False where that has
    to wait for the next message, and then nothing is added.

    Args:
        bytes_max: largest message, packed, in bytes. Up to `BYTES_MAX` of it are gathered; a metric
            or a value that is larger goes alone.

    Attributes:
        is_full: whether it is time to send, before the interval ends.

    """

    __slots__ = (
        "_byte_count", "_bytes_max", "_gathered_max", "_key_count", "_value_count", "counters",
        "gauges", "is_full", "sets", "statistics",
    )  # fmt: skip

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, tuple[float | None, float]] = {}
        self.statistics: dict[str, dict[str, list[float]]] = {}
        self.sets: dict[str, set[str]] = {}
        self.is_full = False
        self._bytes_max = bytes_max
        self._gathered_max = min(bytes_max, BYTES_MAX)
        self._byte_count = _FRAME_BYTES
        self._key_count = self._value_count = 0

    def __bool__(self) -> bool:
        return bool(self.counters or self.gauges or self.statistics or self.sets)

    def increment(self, key: str, value: float) -> bool:
        """Add to a counter; False if the sum would not fit. Raises as `add_to_set`."""
        before = self.counters.get(key)
        total = value if before is None else before + value
        if not -INTEGER_MAX <= total <= INTEGER_MAX and not _can_be_sent(total):
            self.is_full = True
            return False
        if before is None and not self._take_key(key, _NUMBER_BYTES):
            return False
        self.counters[key] = total
        return True

    def gauge(self, key: str, value: float, *, delta: bool = False) -> bool:
        """Set a gauge, or add to it; False if the sum would not fit. Raises as `add_to_set`."""
        before = self.gauges.get(key)
        if before is None and not self._take_key(key, _GAUGE_BYTES):
            return False
        base, added = before or (None, 0)
        if delta:
            added += value
            if not -INTEGER_MAX <= added <= INTEGER_MAX and not (
                _can_be_sent(added) and math.isfinite((base or 0) + added)
            ):
                self.is_full = True
                return False
            self.gauges[key] = base, added
        else:
            self.gauges[key] = value, 0
        return True

    def add_value(self, kind: str, key: str, value: float) -> bool:
        """Keep a value of a timer (`ms`), histogram (`h`) or distribution (`d`).

        Raises as `add_to_set`.
        """
        by_key = self.statistics.get(kind)
        values = None if by_key is None else by_key.get(key)
        if values is None:
            if not self._take_key(key, _LENGTH_BYTES + _NUMBER_BYTES):
                return False
            if by_key is None:
                by_key = self.statistics[kind] = {}
            by_key[key] = [value]
        else:
            if not self._take(key, _NUMBER_BYTES):
                return False
            values.append(value)
        self._value_count += 1
        if self._value_count >= VALUES_MAX:
            self.is_full = True
        return True

    def add_to_set(self, key: str, value: str) -> bool:
        """Keep a value of a set.

        Raises:
            MessageTooLargeError: no message can hold it.

        """
        values = self.sets.get(key)
        if values is None:
            if not self._take_key(key, _LENGTH_BYTES + _text_bytes(value)):
                return False
            self.sets[key] = {value}
        elif value in values:
            return True
        else:
            if not self._take(key, _text_bytes(value)):
                return False
            values.add(value)
        self._value_count += 1
        if self._value_count >= VALUES_MAX:
            self.is_full = True
        return True

    def _take_key(self, key: str, size: int) -> bool:
        """Take the bytes of a new key and `size` more; False where they are not left."""
        size += _LENGTH_BYTES + (len(key) if key.isascii() else len(key.encode()))
        byte_count = self._byte_count + size
        if byte_count > self._gathered_max and not self._goes_alone(key, size):
            return False
        self._byte_count = byte_count
        self._key_count += 1
        if self._key_count >= KEYS_MAX:
            self.is_full = True
        return True

    def _take(self, key: str, size: int) -> bool:
        """Take `size` bytes; False where they are not left."""
        byte_count = self._byte_count + size
        if byte_count > self._gathered_max and not self._goes_alone(key, size):
            return False
        self._byte_count = byte_count
        return True

    def _goes_alone(self, key: str, size: int) -> bool:
        """Whether something large may be taken, since nothing else is here."""
        self.is_full = True
        if _FRAME_BYTES + size > self._bytes_max:
            what = f"the metric {key[:_NAMED]!r}"
            raise MessageTooLargeError(what, _FRAME_BYTES + size, self._bytes_max)
        return not self

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


def _can_be_sent(number: float) -> bool:
    return abs(number) <= INTEGER_MAX if isinstance(number, int) else math.isfinite(number)


def _text_bytes(text: str) -> int:
    """Return how many bytes a text takes at most, with its length."""
    return _LENGTH_BYTES + (len(text) if text.isascii() else len(text.encode()))


def _line(key: str, value: str, kind: str) -> str:
    name, tags = split_key(key)
    return f"{name}:{value}|{kind}|#{','.join(tags)}" if tags else f"{name}:{value}|{kind}"
