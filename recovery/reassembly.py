"""Putting together what was cut into parts, within bounds."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from recovery.checks import to_ns

K = TypeVar("K", bound=Hashable)
WHOLE_BYTES_MAX: Final = 4 * 2**20
"""Largest whole, as a frame over TCP; parts of a larger one are dropped."""


@dataclass(slots=True)
class _Whole:
    total_parts: int
    total_bytes: int
    parts: dict[int, bytes] = field(default_factory=dict)
    bytes_held: int = 0
    seen_ns: int = 0


class Reassembler(Generic[K]):
    """Collects the parts of wholes, in any order.

    Memory is taken for what came, never for what a part claims. Where a bound is met, the whole
    that got no part for longest makes space; it is asked for again as a gap.

    Args:
        bytes_max: bound on the bytes of all parts held. Default 16 MiB, as `receive_bytes`.
        wholes_max: bound on how many are put together at a time. Default 1024.
        age_max: time after which one that got no further part is given up, in seconds. Default 10,
            as long as a gap lives.

    Attributes:
        bytes_held: bytes of all parts held.
        refused: parts dropped because they contradict others, or their whole is too large.

    """

    def __init__(
        self,
        *,
        bytes_max: int = 16 * 2**20,
        wholes_max: int = 1024,
        age_max: float = 10.0,
    ) -> None:
        self._bytes_max, self._wholes_max = bytes_max, wholes_max
        self._age_ns = to_ns(age_max)
        self._wholes: OrderedDict[K, _Whole] = OrderedDict()
        self.bytes_held = 0
        self.refused = 0

    def add(
        self,
        key: K,
        index: int,
        total_parts: int,
        total_bytes: int,
        part: bytes,
        *,
        now_ns: int,
    ) -> bytes | None:
        """Take part `index` (0-based) of a whole; returns the whole where it was the last one."""
        self._expire(now_ns)
        held = self._wholes.get(key)
        if held is None:
            if not 0 < total_parts <= total_bytes <= WHOLE_BYTES_MAX:
                self.refused += 1
                return None
            held = self._wholes[key] = _Whole(total_parts, total_bytes)
        elif (held.total_parts, held.total_bytes) != (total_parts, total_bytes):
            self.refused += 1
            return None
        if index in held.parts:
            return None
        if not 0 <= index < total_parts or held.bytes_held + len(part) > total_bytes or not part:
            self.refused += 1
            if not held.parts:
                self.discard(key)
            return None
        held.parts[index] = part
        held.bytes_held += len(part)
        held.seen_ns = now_ns
        self.bytes_held += len(part)
        self._wholes.move_to_end(key)
        if len(held.parts) == total_parts:
            self.discard(key)
            whole = b"".join(held.parts[number] for number in range(total_parts))
            if len(whole) == total_bytes:
                return whole
            self.refused += 1
            return None
        while len(self._wholes) > self._wholes_max or self.bytes_held > self._bytes_max:
            self.discard(next(iter(self._wholes)))
        return None

    def missing(self, key: K) -> list[tuple[int, int]]:
        """Return the ranges of parts that have not come, or nothing where no part has."""
        held = self._wholes.get(key)
        if held is None:
            return []
        ranges: list[tuple[int, int]] = []
        after = 0
        for index in sorted(held.parts):
            if index > after:
                ranges.append((after, index))
            after = index + 1
        if after < held.total_parts:
            ranges.append((after, held.total_parts))
        return ranges

    def discard(self, key: K) -> None:
        """Forget the parts of a whole, which came another way."""
        held = self._wholes.pop(key, None)
        if held is not None:
            self.bytes_held -= held.bytes_held

    def __contains__(self, key: K) -> bool:
        return key in self._wholes

    def __len__(self) -> int:
        return len(self._wholes)

    def _expire(self, now_ns: int) -> None:
        while self._wholes:
            oldest, held = next(iter(self._wholes.items()))
            if now_ns - held.seen_ns < self._age_ns:
                return
            self.discard(oldest)
