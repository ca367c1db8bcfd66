"""Publishing many messages in one call: a frame at a time, and all in one range."""

import threading
import time
from typing import Any, Final

from p2pmsg.publisher.core import PublisherCore
from p2pmsg.sync.sending import Outgoing

_COUNT_MAX: Final = 65_536
_LAST_FRAMES: Final = 4


class Bulk:
    """Takes values by the frame, while others wait who publish to the same topic.

    Attributes:
        reserved: the topics that a call is not through with, and its thread. The lock is left while
            a call waits for room, and its sequences are to be one range all the same.

    """

    def __init__(self, core: PublisherCore, outgoing: Outgoing) -> None:
        self._core = core
        self._outgoing = outgoing
        self._frame_bytes = core.config.bulk_bytes
        self._counts: dict[str, int] = {}
        self.reserved: dict[str, int] = {}

    def take(
        self, topic: str, values: Any, keys: Any, timestamps_ns: Any, at: int
    ) -> tuple[int, int, bool]:
        """Accept a frame of `values` from `at` on: how many, the last sequence, whether it left.

        None, where the topic is reserved by another thread. It is called under the lock.
        """
        reserved, thread = self.reserved, threading.get_ident()
        if reserved and reserved.get(topic, thread) != thread:
            return 0, -1, False
        core = self._core
        self._outgoing.make_room()
        taken = core.publish_many(
            topic, values, keys, timestamps_ns, at,
            now_ns=time.monotonic_ns(), wall_ns=time.time_ns(),
            count=_share(len(values) - at, self._counts.get(topic, 64)),
        )  # fmt: skip
        if at + taken < len(values):
            reserved[topic] = thread
            core.hold(topic)
        elif reserved:
            reserved.pop(topic, None)
        last = core.replay.next(topic) - 1
        size = len(core.outbox[-1]) if core.outbox else self._frame_bytes
        self._counts[topic] = max(1, min(_COUNT_MAX, taken * self._frame_bytes // size))
        return taken, last, self._outgoing.send()

    def end(self, topic: str) -> None:
        """Let others publish to `topic`, where an exception ended the call."""
        if self.reserved.get(topic) == threading.get_ident():
            self.reserved.pop(topic, None)


def _share(left: int, count: int) -> int:
    """Return how many of the values that are left make the next frame, where `count` fill one.

    The last few frames share them evenly: a small one at the end would cost as much as a full one.
    """
    if left >= _LAST_FRAMES * count:
        return count
    return -(-left // max(1, round(left / count)))
