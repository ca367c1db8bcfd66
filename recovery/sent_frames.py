"""How many of the frames that went to a requester have come, over a channel that loses none."""

from typing import Final

REQUESTERS_MAX: Final = 8192
"""Requesters that are remembered; beyond it the one that was met first is forgotten. Twice as many
as have requests at a publisher."""


class _Sent:
    __slots__ = ("base", "count", "received")

    def __init__(self, count: int) -> None:
        self.count = count
        self.base = 0
        self.received: int | None = None


class SentFrames:
    """Numbers the frames that go to each requester.

    A requester says how many have come. It counts on where its connection was made again, and is
    another requester then; what it had when it first said so was sent to the former one.
    """

    __slots__ = ("_highest", "_requesters")

    def __init__(self) -> None:
        self._requesters: dict[bytes, _Sent] = {}
        self._highest = 0

    def note(self, requester: bytes) -> int:
        """Note that a frame was sent; returns its number, which grows."""
        sent = self._of(requester)
        sent.count += 1
        self._highest = max(self._highest, sent.count)
        return sent.count

    def take_back(self, requester: bytes) -> None:
        """Note that the last frame was not sent after all."""
        self._of(requester).count -= 1

    def arrived(self, requester: bytes, received: int | None) -> int:
        """Return the number up to which frames have come, by how many its requester received.

        All count as come where it does not say (None), and where its number has gone back.
        """
        sent = self._of(requester)
        if received is None:
            return sent.count
        if sent.received is None or received < sent.received:
            sent.base = sent.count - received
        sent.received = received
        return sent.base + received

    def _of(self, requester: bytes) -> _Sent:
        sent = self._requesters.get(requester)
        if sent is None:
            if len(self._requesters) >= REQUESTERS_MAX:
                del self._requesters[next(iter(self._requesters))]
            # Numbers that were given before, to one that was forgotten, are below it.
            sent = self._requesters[requester] = _Sent(self._highest)
        return sent
