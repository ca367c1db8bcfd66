"""Finds out in C whether msgpack has a type for each part of a value.

The packer of the package msgpack, unlike msgspec's encoder, refuses all else. So only a value that
it refuses has to be looked at part by part, by `prepare`.
"""

from collections import deque
from typing import Any, Final

from msgpack import Packer

SCALARS: Final = frozenset((type(None), bool, int, float, str, bytes, bytearray, memoryview))
"""Types whose values need no look at them. An int of more than 64 bits fails to be packed."""
_PACKERS_MAX: Final = 8
LEVELS_MAX: Final = 500
"""How deep a value may be nested; some 950 levels cannot be read any more by a decoder."""
_HEADS: Final = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""What an array or a map begins with."""
_KEPT_BYTES: Final = 1 << 20
"""A packer keeps the memory that it has used; it begins with so much."""
_REFUSALS: Final = (TypeError, ValueError, OverflowError, BufferError, RecursionError)
_refuse: Final = ().index
"""Raises `ValueError` for everything, and runs no Python code that a signal handler could be in."""
_idle: Final[deque[Packer]] = deque(maxlen=_PACKERS_MAX)
_take, _keep = _idle.pop, _idle.append


def packed_if_plain(value: Any, levels_max: int = LEVELS_MAX) -> bytes | None:
    """Return a value packed; None where a part of it is not of msgpack's own types.

    Of these are ExtType and Timestamp of the package msgpack, too. None also where it has more than
    `levels_max` levels, or an int of more than 64 bits.
    """
    try:
        packer = _take()
    except IndexError:
        packer = Packer(strict_types=True, default=_refuse)
    try:
        packed: bytes = packer.pack(value)
    except _REFUSALS:
        packer.reset()
        _keep(packer)
        return None
    size = len(packed)
    if size <= _KEPT_BYTES:
        _keep(packer)
    return None if size > levels_max and _is_deep(value, packed, levels_max) else packed


def _is_deep(value: Any, packed: bytes, levels_max: int) -> bool:
    """Whether a value has more than `levels_max` levels; seldom has it as many arrays and maps."""
    if len(packed) - len(packed.translate(None, _HEADS)) <= levels_max:
        return False
    levels = [iter((value,))]
    while levels:
        for part in levels[-1]:
            if isinstance(part, dict):
                levels.append(iter(part.values()))
                break
            if isinstance(part, list):
                levels.append(iter(part))
                break
        else:
            levels.pop()
        if len(levels) > levels_max + 1:
            return True
    return False
