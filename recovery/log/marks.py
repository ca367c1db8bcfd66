"""Marks: sequences that are reserved on the disk before any of them is used."""

from collections.abc import Callable
from typing import Final

from recovery.log.index import SegmentIndex, StreamIndex
from recovery.log.state import LogState

_UNLIMITED: Final = 2**63
_SOON: Final = 20
"""Syncs; a stream that needs a new mark within so many, 2 s, gets twice as much each time."""
_RESERVE_MAX: Final = 64
"""Times `reserve`. A stream of 30 million messages a second then needs a mark every second."""


class Marks:
    """Keeps every stream of the log's own session below its mark.

    Args:
        state: where the marks are.
        reserve: how many sequences are reserved at a time.
        write_state: brings the state to the disk.

    """

    def __init__(self, state: LogState, reserve: int, write_state: Callable[[], None]) -> None:
        self._state = state
        self._reserve = reserve
        self._write_state = write_state
        self._syncs = 0
        self._given: dict[str, tuple[int, int]] = {}  # when, in syncs, and how much

    def set(self, stream: StreamIndex) -> None:
        """Tell a stream its mark; others' streams, and those synced before sending, have none."""
        is_ours = stream.session == self._state.session and not self._state.always
        stream.mark = self._state.mark(stream.topic) if is_ours else _UNLIMITED

    def reserve(self, stream: StreamIndex, stop: int) -> None:
        """Move a stream's mark behind `stop`."""
        amount = self._amount(stream)
        self._state.marks[stream.topic] = stop + amount
        self._write_state()
        self._note(stream, amount)

    def _amount(self, stream: StreamIndex) -> int:
        """Return how many sequences a stream gets now: renewing costs two fsyncs."""
        last, amount = self._given.get(stream.topic, (-_SOON, 0))
        if self._syncs - last < _SOON:
            return min(2 * amount, _RESERVE_MAX * self._reserve)
        return self._reserve

    def _note(self, stream: StreamIndex, amount: int) -> None:
        """Tell a stream what it got, which is on the disk."""
        self._given[stream.topic] = (self._syncs, amount)
        self.set(stream)

    def renew(self, segment: SegmentIndex) -> None:
        """Reserve ahead for streams that have used up half, so that `append` need not."""
        self._syncs += 1
        half = self._reserve // 2
        low = [s for s in segment.streams.values() if s.mark - s.stop < half]
        if low:
            amounts = [self._amount(stream) for stream in low]
            for stream, amount in zip(low, amounts, strict=True):
                self._state.marks[stream.topic] = stream.stop + amount
            self._write_state()
            for stream, amount in zip(low, amounts, strict=True):
                self._note(stream, amount)
