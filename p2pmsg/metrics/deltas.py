"""What a metrics client gathers, how it is written, and what of it is on its way. Pure."""

import math
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

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
_PLAIN = ("c", "g")
"""Kinds with an entry that is not changed, but replaced."""
_SIZES = {"c": _NUMBER_BYTES, "g": 2 * _NUMBER_BYTES + 1}
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

    Args:
        bytes_max: largest message, packed, in bytes. Up to `BYTES_MAX` of it are gathered.

    Attributes:
        parts: by kind and key. Counters (`c`) are sums, exact for integers. A gauge (`g`) is the
            last value set, or None, and the sum added since. All values of timers (`ms`, `h`, `d`)
            and sets (`s`) are kept.

    """

    __slots__ = ("_byte_count", "_bytes_max", "parts")

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = min(bytes_max, BYTES_MAX)
        self._byte_count = _FRAME_BYTES
        self.parts: dict[str, dict[str, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self.parts)

    def copy(self) -> "Deltas":
        """Return another one that has the same changes."""
        made = Deltas(self._bytes_max)
        made._byte_count = self._byte_count
        for kind, entries in self.parts.items():
            is_plain = kind in _PLAIN
            copied = entries if is_plain else {key: one.copy() for key, one in entries.items()}
            made.parts[kind] = copied.copy() if is_plain else copied
        return made

    def add(self, kind: str, key: str, value: Any) -> bool:
        """Add a change; False, with nothing added, where it has to wait for the next message.

        Args:
            kind: `c`, `g`, `g+` (added to a gauge), `s`, or of values: `ms`, `h` or `d`.
            key: name and tags.
            value: a number, of a set a text.

        """
        if kind == "c" and "c" in self.parts and key in (counters := self.parts["c"]):
            total = counters[key] + value
            fits = -INTEGER_MAX <= total <= INTEGER_MAX or _can_be_sent(total)
            if fits:
                counters[key] = total
            return fits
        part, fits, entry = "g" if kind == "g+" else kind, True, value
        entries = self.parts.get(part)
        before = None if entries is None else entries.get(key)
        size = 0 if before is not None else _text_bytes(key) + _SIZES.get(part, _LENGTH_BYTES)
        if part == "c":
            fits = _can_be_sent(value)
        elif part == "g":
            base, added = before or (None, 0)
            entry = base, added = (base, added + value) if kind == "g+" else (value, 0)
            fits = _can_be_sent(added) and math.isfinite((base or 0) + added)
        elif part == "s":
            if before is not None and value in before:
                return True
            size += _text_bytes(value)
        else:
            size += _NUMBER_BYTES
        if not fits or (self._byte_count + size > self._bytes_max and self.parts):
            return False
        self._byte_count += size
        if entries is None:
            entries = self.parts[part] = {}
        if part == "c" or part == "g":
            entries[key] = entry
        elif part == "s":
            entries.setdefault(key, set()).add(value)
        elif before is None:
            entries[key] = [value]
        else:
            before.append(value)
        return True

    def message(self) -> dict[str, Any]:
        """Return the message for collectors."""
        body: dict[str, Any] = {"v": DELTAS_VERSION, **self.parts}
        for kind in self.parts.keys() & {"g", "s"}:
            body[kind] = {key: list(entry) for key, entry in self.parts[kind].items()}
        return body

    def lines(self) -> list[str]:
        """Return the lines for a plain StatsD server."""
        return [
            _line(key, text, kind)
            for kind, entries in self.parts.items()
            for key, entry in entries.items()
            for text in _texts(kind, entry)
        ]


def _texts(kind: str, entry: Any) -> list[str]:
    """Return what lines say of an entry."""
    if kind == "c":
        return [number_text(entry)]
    if kind == "s":
        return sorted(entry)
    if kind != "g":
        return [number_text(value) for value in entry]
    base, added = entry
    if base is not None:  # a plain negative number would be a change
        return [*(["0"] if base + added < 0 else []), number_text(base + added)]
    return [f"{'+' if added > 0 else ''}{number_text(added)}"] if added else []


def _can_be_sent(number: float) -> bool:
    return abs(number) <= INTEGER_MAX if isinstance(number, int) else math.isfinite(number)


def _text_bytes(text: str) -> int:
    """Return how many bytes a text takes at most, with its length."""
    return _LENGTH_BYTES + (len(text) if text.isascii() else len(text.encode()))


def _line(key: str, value: str, kind: str) -> str:
    name, tags = split_key(key)
    return f"{name}:{value}|{kind}|#{','.join(tags)}" if tags else f"{name}:{value}|{kind}"


Change = tuple[str, str, Any]
"""Kind, key and value; see `Deltas.add`."""


class _State(NamedTuple):
    """Replaced as a whole, so that an exception leaves the one before or the one after."""

    leaving: Deltas | None
    """What is being sent; the sink may have accepted it."""

    deltas: Deltas
    """What leaves next."""

    waiting: list[Change]
    """Changes that are not added up yet."""

    counted: int
    """The sink's next sequence when the last message had been sent."""

    sent: int = 0
    lost: int = 0


class Gathering:
    """Adds changes up to messages, and says which of them was accepted.

    Args:
        bytes_max: how large a message may be, in bytes.
        following: the sink's next sequence.

    Attributes:
        changes: what programs append to, from any thread; it is taken from here.

    """

    def __init__(self, bytes_max: int, following: int) -> None:
        self.changes: deque[Change] = deque()
        self._bytes_max = bytes_max
        self._state = _State(None, Deltas(bytes_max), [], following)

    @property
    def sent(self) -> int:
        """How many messages were accepted."""
        return self._state.sent

    @property
    def lost(self) -> int:
        """How many could not be sent."""
        return self._state.lost

    def take(self) -> None:
        """Take the changes that there are now; it is one step, which no signal's handler breaks."""
        changes = self.changes
        self._state.waiting.extend(islice(iter(changes.popleft, None), len(changes)))

    def add_up(self) -> bool:
        """Add up what was taken; return whether not all of it fits into the next message."""
        state = self._state
        if not state.waiting:
            return False
        deltas, rest = state.deltas.copy(), []
        for at, change in enumerate(state.waiting):
            if not deltas.add(*change):
                rest = state.waiting[at:]
                break
        self._state = state._replace(deltas=deltas, waiting=rest)
        return bool(rest)

    def begin(self) -> Deltas | None:
        """Return the message to send now, the same one until `settle` says what became of it."""
        state = self._state
        if state.leaving is None and state.deltas:
            fresh = Deltas(self._bytes_max)
            self._state = state._replace(leaving=state.deltas, deltas=fresh)
        return self._state.leaving

    def settle(self, following: int, *, has_failed: bool = False) -> None:
        """Take the sink's next sequence: where it is another one, the message was accepted.

        Where it is not, and sending `has_failed`, the message is lost.
        """
        state = self._state
        accepted = following > state.counted
        if state.leaving is not None and (accepted or has_failed):
            self._state = state._replace(
                leaving=None,
                counted=following,
                sent=state.sent + accepted,
                lost=state.lost + (not accepted),
            )
