"""Deltas since the last message, and how they are written. Pure."""

import math
from collections.abc import Iterable
from typing import Any

from p2pmsg.errors import MessageError, MessageTooLargeError
from p2pmsg.statsd import DELTAS_VERSION, number_text, split_key

INTEGER_MAX = 2**63 - 1
"""Largest integer of one message; larger sums are sent in several."""
BYTES_MAX = 256 * 1024
"""What is gathered for one message, in bytes: some 13,000 values of timers. A metric or a value
that is larger goes alone."""
_FRAME_BYTES = 64
"""What the parts of a message take, and their names, at most."""
_LENGTH_BYTES = 5
"""The length of a text or a list, at most."""
_NUMBER_BYTES = 9
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


def check_size(key: str, value: float | str, bytes_max: int) -> None:
    """Raise `MessageTooLargeError` if no message of `bytes_max` bytes can hold a change."""
    size = _FRAME_BYTES + _text_bytes(key)
    size += _text_bytes(value) + _LENGTH_BYTES if isinstance(value, str) else 2 * _NUMBER_BYTES + 1
    if size > bytes_max:
        raise MessageTooLargeError(f"the metric {key[:_NAMED]!r}", size, bytes_max)


class Deltas:
    """The changes since the last message.

    Counters are sums, exact for integers. A gauge is the last value set, or None, and the sum added
    since. All values of timers and sets are kept.

    Args:
        bytes_max: largest message, packed, in bytes. Up to `BYTES_MAX` of it are gathered.

    """

    __slots__ = ("_byte_count", "_bytes_max", "counters", "gauges", "sets", "statistics")

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = min(bytes_max, BYTES_MAX)
        self.counters: dict[str, float] = {}
        self.gauges: dict[str, tuple[float | None, float]] = {}
        self.statistics: dict[str, dict[str, list[float]]] = {}
        self.sets: dict[str, set[str]] = {}
        self._byte_count = _FRAME_BYTES

    def __bool__(self) -> bool:
        return bool(self.counters or self.gauges or self.statistics or self.sets)

    def copy(self) -> "Deltas":
        """Return another one that has the same changes."""
        made = Deltas(self._bytes_max)
        made.counters, made.gauges = self.counters.copy(), self.gauges.copy()
        for kind, by_key in self.statistics.items():
            made.statistics[kind] = {key: values.copy() for key, values in by_key.items()}
        made.sets = {key: values.copy() for key, values in self.sets.items()}
        made._byte_count = self._byte_count
        return made

    def add(self, kind: str, key: str, value: Any) -> bool:
        """Add a change; False, with nothing added, where it has to wait for the next message.

        Args:
            kind: `c`, `g`, `g+` (added to a gauge), `s`, or of values: `ms`, `h` or `d`.
            key: name and tags.
            value: a number, of a set a text.

        """
        if kind == "c":
            before = self.counters.get(key)
            total = value if before is None else before + value
            if not -INTEGER_MAX <= total <= INTEGER_MAX and not _can_be_sent(total):
                return False
            if before is None and not self._take(_text_bytes(key) + _NUMBER_BYTES):
                return False
            self.counters[key] = total
            return True
        if kind == "g" or kind == "g+":
            return self._add_to_gauge(key, value, is_change=kind == "g+")
        if kind == "s":
            place: dict[str, Any] = self.sets
            if value in place.get(key, ()):
                return True
            size = _text_bytes(value)
        else:
            place, size = self.statistics.get(kind, {}), _NUMBER_BYTES
        if not self._take(size if key in place else size + _text_bytes(key) + _LENGTH_BYTES):
            return False
        if kind == "s":
            place.setdefault(key, set()).add(value)
        else:
            self.statistics.setdefault(kind, place).setdefault(key, []).append(value)
        return True

    def _add_to_gauge(self, key: str, value: float, *, is_change: bool) -> bool:
        base, added = self.gauges.get(key, (None, 0))
        base, added = (base, added + value) if is_change else (value, 0)
        fits = _can_be_sent(added) and math.isfinite((base or 0) + added)
        if not fits or (
            key not in self.gauges and not self._take(_text_bytes(key) + 2 * _NUMBER_BYTES + 1)
        ):
            return False
        self.gauges[key] = base, added
        return True

    def _take(self, size: int) -> bool:
        """Take `size` bytes; False where they are not left, unless this is all that there is."""
        if self._byte_count + size > self._bytes_max and self:
            return False
        self._byte_count += size
        return True

    def message(self) -> dict[str, Any]:
        """Return the message for collectors."""
        body: dict[str, Any] = {"v": DELTAS_VERSION}
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
