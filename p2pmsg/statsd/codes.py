"""64-bit codes of lines' names and rests, made with numpy, all lines of a batch at a time.

Lines are looked up by these codes alone, so two that differ must not share one, even if chosen.
A word of eight bytes is mixed in by xor, a factor, the upper half over the lower one, and another
factor. With one factor, a difference in a word's upper bits stays where it is, and a second
difference in the next word undoes it whatever the seed. The second factor spreads it over 32 bits
that depend on a factor nobody else knows.

What numpy takes from places that are not aligned costs the same for 8 bytes as for 32, so words are
taken four at a time.
"""

import random
from typing import Any

import numpy as np
import numpy.typing as npt

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


class CodeKeys:
    """Random odd factors of the codes.

    Args:
        seed: of the factors; who can choose names may not know it.

    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed).getrandbits
        self._start, self._length, self._first, self._second = (_U(draw(64) | 1) for _ in range(4))

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
