"""How many messages a subscriber has room for, by what its frames were like so far."""

from typing import Final

from p2pmsg.config import SubscriberConfig
from p2pmsg.wire import Frame
from recovery import ReceiverConfig

_WINDOW_MIN: Final = 1024
"""Messages behind the first gap that are asked for however little room there is."""


class Room:
    """Tells how far behind the first gap of a stream it is worth while to ask for repairs.

    Args:
        config: the subscriber's.
        receiver: that of its streams.

    """

    __slots__ = ("_bytes", "_bytes_max", "_frames", "_frames_max", "_messages")

    def __init__(self, config: SubscriberConfig, receiver: ReceiverConfig) -> None:
        self._bytes_max = config.receive_bytes
        self._frames_max = receiver.reorder_frames_max
        self._frames = self._messages = self._bytes = 0

    def note(self, frame: Frame) -> None:
        """Take note of a frame that came."""
        self._frames += 1
        self._messages += frame.count
        self._bytes += len(frame.data)

    def window(self) -> int:
        """Return how many messages fit, twice: while they come, others are read."""
        if not self._frames:
            return _WINDOW_MIN
        by_bytes = 2 * self._bytes_max * self._messages // self._bytes
        by_frames = self._frames_max * self._messages // self._frames
        return max(_WINDOW_MIN, min(by_bytes, by_frames))

    def is_crowded(self, bytes_held: int) -> bool:
        """Whether most of what is asked for would have to be dropped."""
        return 4 * bytes_held >= 3 * self._bytes_max
