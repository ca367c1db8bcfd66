"""Splits many lines at once into columns with numpy, each with a code of its name and rest.

A line `name:value|rest` is cut at its first colon and at the first bar after it. Name and rest are
hashed into one 64-bit code; values of up to 16 characters become floats. Some numpy operations on
eight bytes at a time do what a loop over lines would do one byte at a time. Lines of any other
shape are marked, and left to the parser.

A decimal of at most 15 digits is an integer below 2**53 over a power of ten up to 10**22; both are
exact as floats, so that the one division rounds as `float` does (Clinger, "How to read floating
point numbers accurately", 1990).

Lines are looked up by their codes alone, so two that differ must not share one, even if chosen. A
word of eight bytes is mixed in by xor, a factor, the upper half over the lower one, and another
factor. With one factor, a difference in a word's upper bits stays where it is, and a second
difference in the next word undoes it whatever the seed. The second factor spreads it over 32 bits
that depend on a factor nobody else knows.

What numpy takes from places that are not aligned costs the same for 8 bytes as for 32, so words are
taken four at a time.
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from p2pmsg.native import scan_lines

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.integer[Any]]
Windows = npt.NDArray[np.void]

WINDOW = 32
_WORD = 8
_U = np.uint64
_ALL = 2**64 - 1


def _last_bytes(count: int) -> int:
    """Return the mask of the last `count` bytes of a word, as they are in memory."""
    return _ALL << 8 * (_WORD - min(max(count, 0), _WORD)) & _ALL


LAST_BYTES = tuple(
    np.array([_last_bytes(kept - after) for kept in range(WINDOW + 1)], np.uint64)
    for after in (24, 16, 8, 0)
)
"""Masks by word of a window and by how many of the window's last bytes are kept."""
_FIRST_BYTES = np.array([_ALL >> 8 * (_WORD - kept) for kept in range(_WORD + 1)], np.uint64)
PAD_BYTES = WINDOW
"""Bytes needed before and after the lines, so that windows may reach across both ends."""
PART_BYTES_MAX = 1024
"""Longest name and rest of a regular line. A longer one would take a round for every 32 bytes, and
the parser reads it sooner."""
_HALF = WINDOW // 2
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


class CodeKeys:
    """Random odd factors of the codes.

    Args:
        seed: of the factors; who can choose names may not know it.

    Attributes:
        factors: as numbers: where codes start, and what is multiplied by for the length, and by
            each word twice.

    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed).getrandbits
        self.factors = [draw(64) | 1 for _ in range(4)]
        self._start, self._length, self._first, self._second = map(_U, self.factors)

    def make(
        self, windows: Windows, rests: Words, colons: Places, ends: Places, lengths: list[Places]
    ) -> Words:
        """Return a code for each line; never 0, and the same in every batch.

        Args:
            windows: 32 bytes from each place of the buffer.
            rests: the first two words of each rest.
            colons: where names end.
            ends: where rests end.
            lengths: those of the names, and those of the rests.

        """
        names, sizes = lengths
        codes = (sizes << 32 | names).astype(np.uint64)
        codes *= self._length
        codes ^= self._start
        self._mix_before(windows, colons, names, codes)
        self._mix(codes, rests[:, 0] & _FIRST_BYTES.take(np.minimum(sizes, _WORD)))
        few = np.flatnonzero(sizes > _WORD) if sizes.max() > _WORD else ()
        if len(few):
            some, left = codes[few], sizes[few] - _WORD
            self._mix(some, rests[few, 1] & _FIRST_BYTES.take(np.minimum(left, _WORD)))
            codes[few] = some
            few = few[left > _WORD]
            if len(few):
                some = codes[few]
                self._mix_before(windows, ends[few], sizes[few] - 2 * _WORD, some)
                codes[few] = some
        codes ^= codes >> _U(32)
        codes |= _U(1)
        return codes

    def _mix(self, codes: Words, words: Words) -> None:
        codes ^= words
        codes *= self._first
        codes ^= codes >> _U(32)
        codes *= self._second

    def _mix_before(self, windows: Windows, stops: Places, lengths: Places, codes: Words) -> None:
        """Mix `lengths` bytes before `stops` into `codes`, the last 32 of them first."""
        self._mix_window(windows, stops, lengths, codes)
        few = np.flatnonzero(lengths > WINDOW) if lengths.max() > WINDOW else ()
        while len(few):
            stops, lengths = stops - WINDOW, lengths - WINDOW
            some = codes[few]
            self._mix_window(windows, stops[few], lengths[few], some)
            codes[few] = some
            few = few[lengths[few] > WINDOW]

    def _mix_window(self, windows: Windows, stops: Places, lengths: Places, codes: Words) -> None:
        taken = take_words(windows, stops - WINDOW)
        kept = np.minimum(lengths, WINDOW)
        shortest = int(kept.min())
        for place, masks in enumerate(LAST_BYTES):
            words = taken[:, place]
            if shortest < WINDOW - _WORD * place:
                words = words & masks.take(kept)
            self._mix(codes, words)


def see_windows(data: bytes) -> Windows:
    """Return the 32 bytes from each place of `data` on, without copying any."""
    return np.ndarray((len(data) - WINDOW + 1,), f"V{WINDOW}", buffer=data, strides=(1,))


def take_words(windows: Windows, starts: Places) -> Words:
    """Return a row of four words for each of `starts`."""
    return windows[starts].view(np.uint64).reshape(-1, WINDOW // _WORD)


@dataclass(slots=True)
class Columns:
    """Lines of a buffer as columns; all arrays have one entry for each line that is not empty.

    Attributes:
        starts, ends: where a line is in the buffer.
        colons, bars: the first colon and the first bar after it; meaningless where not `regular`.
        regular: whether the line is `name:value|rest` with a value that was read,
            and neither part is longer than `PART_BYTES_MAX`.
        codes: of name and rest; never 0.
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


def split_by_numpy(data: bytes, keys: CodeKeys) -> Columns | None:
    """Do as `split_columns`, in Python."""
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


def split_compiled(data: bytes, keys: CodeKeys) -> Columns | None:
    """Do as `split_columns`, compiled."""
    assert scan_lines is not None
    found = scan_lines(data, *keys.factors)
    if found is None:
        return None
    count, made = found
    starts, ends, colons, bars = np.frombuffer(made, np.int64, 4 * count).reshape(4, count)
    at = 4 * _WORD * count
    codes = np.frombuffer(made, np.uint64, count, at)
    values = np.frombuffer(made, np.float64, count, at + _WORD * count)
    regular, negative = np.frombuffer(made, np.bool_, 2 * count, at + 2 * _WORD * count).reshape(
        2, count
    )
    return Columns(starts, ends, colons, bars, regular, codes, values, negative)


def split_columns(data: bytes, keys: CodeKeys) -> Columns | None:
    """Split `PAD_BYTES` of padding, lines that each end in a line feed, and padding again.

    Args:
        data: the buffer.
        keys: of the codes; random, so that nobody can choose names that collide.

    """
    return split_by_numpy(data, keys) if scan_lines is None else split_compiled(data, keys)


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
