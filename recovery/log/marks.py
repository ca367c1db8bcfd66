"""Marks: sequences that are reserved on the disk before any of them is used."""

from collections.abc import Callable
from typing import Final

from recovery.log.index import SegmentIndex, StreamIndex
from recovery.log.state import LogState

_UNLIMITED: Final = 2**63


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

    def set(self, stream: StreamIndex) -> None:
        """Tell a stream its mark; others' streams, and those synced before sending, have none."""
        is_ours = stream.session == self._state.session and not self._state.always
        stream.mark = self._state.mark(stream.topic) if is_ours else _UNLIMITED

    def reserve(self, stream: StreamIndex, stop: int) -> None:
        """Move a stream's mark behind `stop`."""
        self._state.marks[stream.topic] = stop + self._reserve
        self._write_state()
        self.set(stream)

    def renew(self, segment: SegmentIndex) -> None:
        """Reserve ahead for streams that have used up half, so that `append` need not."""
        half = self._reserve // 2
        low = [s for s in segment.streams.values() if s.mark - s.stop < half]
        if low:
            for stream in low:
                self._state.marks[stream.topic] = stream.stop + self._reserve
            self._write_state()
            for stream in low:
                self.set(stream)
