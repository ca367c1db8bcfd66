"""How many messages a subscriber has room for, by what its frames were like so far."""

from typing import TYPE_CHECKING, Final

from p2pmsg.config import SubscriberConfig
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.wire import Frame
from recovery import ReceiverConfig

if TYPE_CHECKING:
    from p2pmsg.subscriber.core import SubscriberCore

_WINDOW_MIN: Final = 1024
"""Messages behind the first gap that are asked for however little room there is."""
_GROUP_WINDOW_MIN: Final = 16
"""The same in a multicast, where what has no room was sent to all for nothing."""


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


def can_take(core: "SubscriberCore", stream: Stream, frame: Frame, *, now_ns: int) -> bool:
    """Whether there is room for a repair; frames of its stream that are further on make way for it.

    There always is for what can be handed on at once. What has none is asked for later.
    """
    receiver, size = stream.receiver, len(frame.data)
    if not core.is_full or frame.sequence <= receiver.expected:
        return True
    free = core.config.receive_bytes - core.bytes_held + receiver.bytes_held
    stop = frame.sequence + frame.count
    if receiver.displace(stop, size, now_ns=now_ns, bytes_max=free):
        return True
    core.repairs_dropped += 1
    return False
