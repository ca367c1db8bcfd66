"""Splits many lines at once into columns with numpy.

A line `name:value|rest` is cut at its first colon and at the first bar after it. Name and rest are
hashed into one 64-bit code; values of up to 16 characters become floats. Ten numpy operations on
eight bytes at a time do what a loop over lines would do one byte at a time. Lines of any other
shape are marked, and left to the parser.

A decimal of at most 15 digits is an integer below 2**53 over a power of ten up to 10**22; both are
exact as floats, so that the one division rounds as `float` does (Clinger, "How to read floating
point numbers accurately", 1990).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

PAD_BYTES = 24
"""Bytes needed before and after the lines, so that words may be read across both ends."""
_U = np.uint64
_ALL = _U(0xFFFFFFFFFFFFFFFF)
_ONES = _U(0x0101010101010101)
_TOPS = _U(0x8080808080808080)
_ZEROS = _U(0x3030303030303030)
_DOT = _U(0x1E1E1E1E1E1E1E1E)
"""A dot after xor with `_ZEROS`."""
_OVER_NINE = _U(0x7676767676767676)
_PAIRS = _U(0x000000FF000000FF)
_PRIME, _PRIME_2 = _U(0x9E3779B97F4A7C15), _U(0xD6E8FEB86659FD93)
_POWERS = 10.0 ** np.arange(32)
_NEWLINE, _COLON, _BAR, _MINUS = 10, 58, 124, 45
_DIGITS_MAX = 15


@dataclass(slots=True)
class Columns:
    """Lines of a buffer as columns; all arrays have one entry for each line that is not empty.

    Attributes:
        starts, ends: where a line is in the buffer.
        colons, bars: the first colon and the first bar after it; meaningless where not `regular`.
        regular: whether the line is `name:value|rest` with a value that was read.
        codes: hash of name and rest; never 0.
        values: the numbers.
        negative: whether a value begins with a minus.

    """

    starts: Places
    ends: Places
    colons: Places
    bars: Places
    regular: Flags
    codes: Words
    values: Floats
    negative: Flags


def split_columns(data: bytes, seed: int) -> Columns | None:
    """Split `PAD_BYTES` of padding, lines that each end in a line feed, and padding again.

    Args:
        data: the buffer.
        seed: of `codes`; random, so that nobody can choose names that collide.

    """
    octets = np.frombuffer(data, np.uint8)
    words = np.ndarray((len(data) - 7,), np.uint64, buffer=data, strides=(1,))
    marks = np.flatnonzero((octets == _NEWLINE) | (octets == _COLON) | (octets == _BAR))
    if not len(marks):
        return None
    kinds = octets[marks]
    if marks.size % 3 == 0 and _is_plain(kinds):
        colons, bars, ends = np.ascontiguousarray(marks.reshape(-1, 3).T)
        starts = _starts(ends)
        regular = np.ones(len(ends), np.bool_)
    else:
        line_marks = np.flatnonzero(kinds == _NEWLINE)
        ends = marks[line_marks]
        starts = _starts(ends)
        firsts = np.empty_like(line_marks)
        firsts[0] = 0
        firsts[1:] = line_marks[:-1] + 1
        filled = ends > starts
        if not filled.all():
            starts, ends, firsts = starts[filled], ends[filled], firsts[filled]
        seconds = np.minimum(firsts + 1, len(marks) - 1)
        colons, bars = marks[firsts], marks[seconds]
        regular = (kinds[firsts] == _COLON) & (kinds[seconds] == _BAR) & (bars < ends)
        # For the others any place within the line will do: it is not used.
        colons = np.where(regular, colons, starts)
        bars = np.where(regular, bars, starts + 1)
    if not len(ends):
        return None
    codes = np.full(len(ends), _U(seed), np.uint64)
    _mix(words, starts, colons - starts, codes)
    codes ^= _PRIME_2  # so that swapping name and rest changes the code
    _mix(words, bars, ends - bars, codes)
    codes |= _U(1)
    values, good, negative = _numbers(words, octets, colons + 1, bars)
    regular &= good
    return Columns(starts, ends, colons, bars, regular, codes, values, negative)


def _is_plain(kinds: npt.NDArray[np.uint8]) -> bool:
    rows = kinds.reshape(-1, 3)
    return bool(
        (rows[:, 0] == _COLON).all()
        and (rows[:, 1] == _BAR).all()
        and (rows[:, 2] == _NEWLINE).all()
    )


def _starts(ends: Places) -> Places:
    starts = np.empty_like(ends)
    starts[0] = PAD_BYTES
    starts[1:] = ends[:-1] + 1
    return starts


def _mix(words: Words, starts: Places, lengths: Places, codes: Words) -> None:
    """Mix some bytes of each line into `codes`, eight bytes a round."""
    longest, shortest = int(lengths.max()), int(lengths.min())
    whole = shortest // 8
    for number in range(whole):
        _mix_words(codes, words[starts + 8 * number])
    tail = (longest - 8 * whole + 7) // 8
    if 8 * tail <= shortest:
        # The rest lies within the last words; some bytes are mixed in a second time.
        stops = starts + lengths
        for number in range(tail, 0, -1):
            _mix_words(codes, words[stops - 8 * number])
    else:
        _mix_rest(words, starts, lengths, codes, whole)
    codes ^= lengths.astype(np.uint64)  # so that a zero byte at the end counts
    codes *= _PRIME_2
    codes ^= codes >> _U(32)


def _mix_words(codes: Words, taken: Words) -> None:
    codes ^= taken
    codes *= _PRIME
    codes ^= codes >> _U(29)


def _mix_rest(words: Words, starts: Places, lengths: Places, codes: Words, first: int) -> None:
    """Mix the bytes after the first words, where some lines are shorter than others."""
    bits = lengths.astype(np.uint64) << _U(3)
    for number in range(first, (int(lengths.max()) + 7) // 8):
        left = bits - np.minimum(bits, _U(64 * number))
        alive = left > 0
        if number and np.count_nonzero(alive) * 4 < len(alive):
            _mix_few(words, starts, left, codes, number, np.flatnonzero(alive))
            continue
        # For a line that has ended any word will do: all of it is masked.
        places = starts + 8 * number if alive.all() else np.where(alive, starts + 8 * number, 0)
        taken = words[places]
        taken &= _ALL >> (_U(64) - np.minimum(left, _U(64)))
        _mix_words(codes, taken)


def _mix_few(
    words: Words, starts: Places, left: Words, codes: Words, number: int, few: Places
) -> None:
    """Do one round for the few lines that are longer than the others."""
    rest = np.minimum(left[few], _U(64))
    taken = words[starts[few] + 8 * number] & (_ALL >> (_U(64) - rest))
    some = (codes[few] ^ taken) * _PRIME
    codes[few] = some ^ (some >> _U(29))


def _numbers(
    words: Words, octets: npt.NDArray[np.uint8], starts: Places, stops: Places
) -> tuple[Floats, Flags, Flags]:
    """Return the values, whether each was read, and whether it is negative (or minus zero)."""
    negative = octets[starts] == _MINUS
    lengths = stops - starts - negative
    values, good = _short_numbers(words, stops, lengths)
    long = np.flatnonzero((lengths > 8) & (lengths <= 16))
    if len(long):
        values[long], good[long] = _long_numbers(words, stops[long], lengths[long])
    good &= (lengths > 0) & (lengths <= 16)
    np.negative(values, out=values, where=negative)
    return values, good, negative


def _short_numbers(words: Words, stops: Places, lengths: Places) -> tuple[Floats, Flags]:
    """Read numbers of up to eight characters; of longer ones, the last eight."""
    kept = np.minimum(lengths, 8).astype(np.uint64)
    eights = words[stops - 8] ^ _ZEROS
    eights &= _ALL << ((_U(8) - kept) << _U(3))
    eights, fraction, dotted = _take_dot(eights)
    good = ((eights + _OVER_NINE) | eights) & _TOPS == 0
    if dotted is None:
        return _eight_digits(eights).astype(np.float64), good
    good &= (kept > 1) | ~dotted  # a dot alone is no number
    return _eight_digits(eights) / _POWERS[fraction], good


def _long_numbers(words: Words, stops: Places, lengths: Places) -> tuple[Floats, Flags]:
    """Read numbers of 9 to 16 characters."""
    high_kept = (lengths - 8).astype(np.uint64)
    low = words[stops - 8] ^ _ZEROS
    high = (words[stops - 16] ^ _ZEROS) & (_ALL << ((_U(8) - high_kept) << _U(3)))
    low, low_fraction, low_dotted = _take_dot(low)
    high, high_fraction, high_dotted = _take_dot(high)
    good = ((low + _OVER_NINE) | low | (high + _OVER_NINE) | high) & _TOPS == 0
    scale = np.full(len(stops), 100_000_000, np.uint64)
    fraction = np.zeros(len(stops), np.int64)
    count = lengths.copy()
    if low_dotted is not None:
        # The dot takes one of the low half's places: `_take_dot` moved the digits before it up.
        scale[low_dotted] = 10_000_000
        fraction += np.where(low_dotted, low_fraction, 0)
        count -= low_dotted
    if high_dotted is not None:
        fraction += np.where(high_dotted, high_fraction + 8, 0)
        count -= high_dotted
        if low_dotted is not None:
            good &= ~(low_dotted & high_dotted)
    good &= count <= _DIGITS_MAX
    return (_eight_digits(high) * scale + _eight_digits(low)) / _POWERS[fraction], good


def _take_dot(eights: Words) -> tuple[Words, Places, Flags | None]:
    """Remove dots; return the words, the count of digits after each dot, and where dots were."""
    found = eights ^ _DOT
    found = (found - _ONES) & ~found & _TOPS
    dotted = found != 0
    if not dotted.any():
        return eights, np.zeros(0, np.int64), None
    lowest = found & (~found + _U(1))  # the first of several dots; the others are no digits
    below = (lowest >> _U(7)) - _U(1)
    moved = ((eights & below) << _U(8)) | (eights & ~(below | (below << _U(8)) | _U(0xFF)))
    position = np.bitwise_count(below) >> 3
    fraction = np.where(dotted, 7 - position.astype(np.int64), 0)
    return np.where(dotted, moved, eights), fraction, dotted


def _eight_digits(eights: Words) -> Words:
    """Return eight bytes of one digit each, the first in the lowest byte, as one number."""
    tens = eights * _U(10) + (eights >> _U(8))
    left = (tens & _PAIRS) * _U(0x000F424000000064)
    right = ((tens >> _U(16)) & _PAIRS) * _U(0x0000271000000001)
    return (left + right) >> _U(32)
