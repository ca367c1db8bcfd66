"""Estimates how many messages still fit into the receive buffer, by the frames so far."""

from typing import Any, Final

from p2pmsg.wire import Frame
from recovery import ReceiverConfig, StreamReceiver

_WINDOW_MIN: Final = 1024
"""Messages after the first gap that are asked for, however little fits."""
_GROUP_WINDOW_MIN: Final = 16
"""The same in a multicast, where a repair that does not fit was sent to all for nothing."""


class ReceiveWindow:
    """Limits how far after the first gap of a stream repairs are asked for, and taken.

    Args:
        bytes_max: what may wait for the application or for a repair, over all streams.
        receiver: the settings of its streams.

    Attributes:
        repairs_dropped: repairs that did not fit; they are asked for again.

    """

    def __init__(self, bytes_max: int, receiver: ReceiverConfig) -> None:
        self._bytes_max = bytes_max
        self._frames_max = receiver.reorder_frames_max
        self._frames = self._messages = self._bytes = 0
        self.repairs_dropped = 0

    def note(self, frame: Frame) -> None:
        """Take note of a frame that came."""
        self._frames += 1
        self._messages += frame.count
        self._bytes += len(frame.data)

    def window(self) -> int:
        """Return how many messages fit, twice: while they come, others are read."""
        if not self._frames:
            return _WINDOW_MIN
        return max(_WINDOW_MIN, self._fitting(2 * self._bytes_max))

    def window_in(self, bytes_free: int) -> int:
        """Return how many messages fit into so many bytes, for answers that nothing holds back."""
        return max(_GROUP_WINDOW_MIN, self._fitting(bytes_free)) if self._frames else _WINDOW_MIN

    def _fitting(self, size: int) -> int:
        by_bytes = size * self._messages // self._bytes
        return min(by_bytes, self._frames_max * self._messages // self._frames)

    def is_crowded(self, bytes_held: int) -> bool:
        """Whether most of what is asked for would have to be dropped."""
        return 4 * bytes_held >= 3 * self._bytes_max

    def admit_repair(
        self, receiver: StreamReceiver[Any], frame: Frame, *, bytes_held: int, now_ns: int
    ) -> bool:
        """Whether a repair fits; later frames of its stream are evicted for it.

        What can be delivered at once always fits. What does not is asked for again.
        """
        if bytes_held < self._bytes_max or frame.sequence <= receiver.expected:
            return True
        free = self._bytes_max - bytes_held + receiver.bytes_held
        stop, size = frame.sequence + frame.count, len(frame.data)
        if receiver.evict_beyond(stop, size, now_ns=now_ns, bytes_max=free):
            return True
        self.repairs_dropped += 1
        return False
