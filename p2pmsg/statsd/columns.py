"""Splits many lines at once into columns with numpy.

A line `name:value|rest` is cut at its first colon and at the first bar after it. Name and rest are
hashed into one 64-bit code (`codes`); values of up to 16 characters become floats. Some numpy
operations on eight bytes at a time do what a loop over lines would do one byte at a time. Lines of
any other shape are marked, and left to the parser.

A decimal of at most 15 digits is an integer below 2**53 over a power of ten up to 10**22; both are
exact as floats, so that the one division rounds as `float` does (Clinger, "How to read floating
point numbers accurately", 1990).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2pmsg.statsd.codes import (
    LAST_BYTES,
    WINDOW,
    CodeKeys,
    Places,
    Words,
    see_windows,
    take_words,
)

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

PAD_BYTES = WINDOW
"""Bytes needed before and after the lines, so that windows may reach across both ends."""
PART_BYTES_MAX = 1024
"""Longest name and rest of a regular line. A longer one would take a round for every 32 bytes, and
the parser reads it sooner."""
_HALF = WINDOW // 2
_U = np.uint64
_ONES = _U(0x0101010101010101)
_TOPS = _U(0x8080808080808080)
_ZEROS = _U(0x3030303030303030)
_DOT = _U(0x1E1E1E1E1E1E1E1E)
"""A dot after xor with `_ZEROS`."""
_OVER_NINE = _U(0x7676767676767676)
_PAIRS = _U(0x000000FF000000FF)
_POWERS = 10.0 ** np.arange(16)
_FRACTIONS = np.array([0, 7, 6, 5, 4, 3, 2, 1, 0])
"""How many of eight characters follow the dot, by the dot's place from 1 on; at 0: no dot."""
_LOW_BYTES = LAST_BYTES[3]
_NEWLINE, _COLON, _BAR, _MINUS = 10, 58, 124, 45
_PLAIN = b":|\n"
_DIGITS_MAX = 15


@dataclass(slots=True)
class Columns:
    """Lines of a buffer as columns; all arrays have one entry for each line that is not empty.

    Attributes:
        starts, ends: where a line is in the buffer.
        colons, bars: the first colon and the first bar after it; meaningless where not `regular`.
        regular: whether the line is `name:value|rest` with a value that was read,
            and neither part is longer than `PART_BYTES_MAX`.
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


def split_columns(data: bytes, keys: CodeKeys) -> Columns | None:
    """Split `PAD_BYTES` of padding, lines that each end in a line feed, and padding again.

    Args:
        data: the buffer.
        keys: of `codes`; random, so that nobody can choose names that collide.

    """
    octets = np.frombuffer(data, np.uint8)
    found = octets == _NEWLINE
    found |= octets == _COLON
    found |= octets == _BAR
    marks = np.flatnonzero(found)
    if not len(marks):
        return None
    kinds = octets[marks]
    if kinds.tobytes() == _PLAIN * (len(kinds) // 3):
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
    if not len(ends):
        return None
    names, rests = colons - starts, ends - bars
    regular &= (names <= PART_BYTES_MAX) & (rests <= PART_BYTES_MAX)
    if not regular.all():
        # For the others any place within the line will do: it is not used.
        colons = np.where(regular, colons, starts)
        bars = np.where(regular, bars, starts + 1)
        names, rests = np.where(regular, names, 0), np.where(regular, rests, 0)
    windows = see_windows(data)
    around = take_words(windows, bars - _HALF)
    codes = keys.make(windows, around[:, 2:], colons, ends, [names, rests])
    negative = octets[colons + 1] == _MINUS
    values, good = _numbers(around, bars - colons - 1, negative)
    regular &= good
    return Columns(starts, ends, colons, bars, regular, codes, values, negative)


def _starts(ends: Places) -> Places:
    starts = np.empty_like(ends)
    starts[0] = PAD_BYTES
    starts[1:] = ends[:-1] + 1
    return starts


def _numbers(around: Words, lengths: Places, negative: Flags) -> tuple[Floats, Flags]:
    """Return the values, and whether each was read.

    Args:
        around: four words of each line, of which the first two end with the value.
        lengths: how many characters the values have.
        negative: whether the first of them is a minus.

    """
    signed = negative.any()
    if signed:
        lengths = lengths - negative
    values, good = _short_numbers(around[:, 1], lengths)
    good &= lengths > 0
    if lengths.max() > 8:
        long = np.flatnonzero(lengths > 8)
        values[long], good[long] = _long_numbers(around[long, 0], around[long, 1], lengths[long])
    if signed:
        np.negative(values, out=values, where=negative)
    return values, good


def _short_numbers(low: Words, lengths: Places) -> tuple[Floats, Flags]:
    """Read numbers of up to eight characters; of longer ones, the last eight."""
    kept = np.minimum(lengths, 8)
    eights, dots = _take_dot((low ^ _ZEROS) & _LOW_BYTES.take(kept))
    good = ((eights + _OVER_NINE) | eights) & _TOPS == 0
    values = _eight_digits(eights).astype(np.float64)
    if dots is not None:
        values /= _POWERS.take(_FRACTIONS.take(dots))
        good &= (kept > 1) | (dots == 0)  # a dot alone is no number
    return values, good


def _long_numbers(high: Words, low: Words, lengths: Places) -> tuple[Floats, Flags]:
    """Read numbers of 9 to 16 characters."""
    high, high_dots = _take_dot((high ^ _ZEROS) & _LOW_BYTES.take(np.minimum(lengths - 8, 8)))
    low, low_dots = _take_dot(low ^ _ZEROS)
    good = ((low + _OVER_NINE) | low | (high + _OVER_NINE) | high) & _TOPS == 0
    scale = np.full(len(low), 100_000_000, np.uint64)
    fraction = np.zeros(len(low), np.int64)
    digits = lengths.copy()
    if low_dots is not None:
        # The dot takes one of the low half's places: `_take_dot` moved the digits before it up.
        scale[low_dots > 0] = 10_000_000
        fraction += _FRACTIONS.take(low_dots)
        digits -= low_dots > 0
    if high_dots is not None:
        fraction += np.where(high_dots > 0, _FRACTIONS.take(high_dots) + 8, 0)
        digits -= high_dots > 0
        if low_dots is not None:
            good &= (low_dots == 0) | (high_dots == 0)
    good &= (digits <= _DIGITS_MAX) & (lengths <= _HALF)
    fraction = np.minimum(fraction, _DIGITS_MAX)  # more only where there are two dots
    return (_eight_digits(high) * scale + _eight_digits(low)) / _POWERS.take(fraction), good


def _take_dot(eights: Words) -> tuple[Words, Places | None]:
    """Remove dots; return the words, and each dot's place from 1 on, 0 for none; None: no dots.

    Of several dots in a word the first is removed; the others are no digits.
    """
    found = eights ^ _DOT
    found = (found - _ONES) & ~found & _TOPS
    dotted = found != 0
    if not dotted.any():
        return eights, None
    found &= np.negative(found)  # the top bit of the first dot
    found <<= _U(1)
    found -= dotted  # all bytes up to the dot; none where there is none
    dots = (np.bitwise_count(found) >> 3).astype(np.int64)
    above = eights & ~found
    eights &= found >> _U(8)  # those before the dot
    eights <<= _U(8)
    eights |= above
    return eights, dots


def _eight_digits(eights: Words) -> Words:
    """Return eight bytes of one digit each, the first in the lowest byte, as one number."""
    tens = eights * _U(10) + (eights >> _U(8))
    left = (tens & _PAIRS) * _U(0x000F424000000064)
    right = ((tens >> _U(16)) & _PAIRS) * _U(0x0000271000000001)
    return (left + right) >> _U(32)
