"""Counts gaps in the numbers that a sender has put into its messages."""

import re
from typing import Any, Final, Literal

from p2pmsg.errors import ConfigError

TOPICS_MAX: Final = 65_536
"""Of so many topics the last number is kept; beyond that the oldest topic's is forgotten."""
_BYTES: Final = re.compile(r"([0-9]{1,9}):([1-8])(?::(be|le))?")
_PATH: Final = re.compile(r"[^.:]+(\.[^.:]+)*")
_LIMIT: Final = (
    "OFFSET:SIZE, OFFSET:SIZE:be or OFFSET:SIZE:le (SIZE 1 to 8 bytes), or with JSON or msgpack "
    "the path of a field such as header.seq"
)


class Sequences:
    """Follows the numbers of each topic, and counts what is missing between them.

    Args:
        place: `OFFSET:SIZE[:be|le]`, in the first part of a message after its topic; or the path of
            a field of a decoded value.
        codec: `bytes`, `json` or `msgpack`.

    Attributes:
        gaps: how often numbers were missing.
        missing: how many numbers were missing in all.
        back: how often a number was not above the last one: the sender repeats itself, or was
            started again. What it lost meanwhile cannot be known.
        unnumbered: messages in which there is no number at that place.
        newest: the newest gap, as topic, first missing number, the number after it.

    Raises:
        ConfigError: `place` is not well-formed, or does not go with `codec`.

    """

    def __init__(self, place: str, codec: str) -> None:
        self._order: Literal["big", "little"] = "big"
        self._path: list[str] = []
        self._offset = self._stop = 0
        self._modulus = 0  # fields do not wrap
        match = _BYTES.fullmatch(place) if isinstance(place, str) else None
        if match is not None:
            self._offset = int(match[1])
            self._stop = self._offset + int(match[2])
            self._modulus = 2 ** (8 * int(match[2]))
            self._order = "little" if match[3] == "le" else "big"
        elif isinstance(place, str) and codec != "bytes" and _PATH.fullmatch(place):
            self._path = place.split(".")
        else:
            raise ConfigError("sequence_at", _LIMIT, place)
        self._expected: dict[str, int] = {}
        self.gaps = self.missing = self.back = self.unnumbered = 0
        self.newest: tuple[str, int, int] | None = None

    @property
    def reads_values(self) -> bool:
        """Whether `note` wants decoded values, and not the bytes as they came."""
        return bool(self._path)

    def note(self, topic: str, value: Any) -> None:
        """Look at the number of a message."""
        number = self._field(value) if self._path else self._number(value)
        if number is None:
            self.unnumbered += 1
            return
        expected = self._expected.get(topic)
        following = number + 1
        if self._modulus:
            following %= self._modulus
        if expected is None and len(self._expected) >= TOPICS_MAX:
            del self._expected[next(iter(self._expected))]
        self._expected[topic] = following
        if expected is None or number == expected:
            return
        ahead = number - expected
        if self._modulus:
            ahead %= self._modulus
        if ahead < 0 or (self._modulus and ahead >= self._modulus // 2):
            self.back += 1
            return
        self.gaps += 1
        self.missing += ahead
        self.newest = topic, expected, number

    def _number(self, value: Any) -> int | None:
        data = value[0] if type(value) is list and value else value
        if type(data) is not bytes or len(data) < self._stop:
            return None
        return int.from_bytes(data[self._offset : self._stop], self._order)

    def _field(self, value: Any) -> int | None:
        for name in self._path:
            if isinstance(value, dict):
                value = value.get(name)
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
        return value if type(value) is int else None
