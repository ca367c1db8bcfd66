"""One session at a relay: the relay answers for its publisher."""

from typing import Final

from p2pmsg import control
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.served import ServedSession, ServedStream
from recovery import Loss, ReplayBuffer
from recovery.loss import LossRanges

LOSSES_MAX: Final = 1024
"""Ranges whose loss a relay passes on with its reason, for each stream; others are `evicted`."""


class RelayedStream(ServedStream):
    """One stream at a relay.

    Attributes:
        received, lost: messages.

    """

    __slots__ = ("lost", "received")

    def __init__(self, served: "ServedSession", topic: str, topic_bytes: bytes, start: int) -> None:
        super().__init__(served, topic, topic_bytes, start)
        self.losses = LossRanges()
        self.received = self.lost = 0


class RelayedSession(ServedSession):
    """A publisher's session, served by a relay in its stead.

    Attributes:
        hops: how many relays are between the publisher and its subscribers here, this one included.
        is_live: whether any upstream carries it now.

    """

    streams: dict[str, RelayedStream]

    def __init__(
        self,
        session: int,
        name: str,
        hops: int,
        welcome: control.Welcome,
        replay: ReplayBuffer,
        log: PublisherLog | None,
    ) -> None:
        super().__init__(session, name, welcome, replay, log, prefix=f"{session:016x}:")
        self.hops, self.is_live = hops, True

    def lost(self, topic: str, start: int, stop: int) -> tuple[list[Loss], list[tuple[int, int]]]:
        """Do as `ServedSession.lost`, of what was lost on the way here.

        What is not here yet may still come, or turn out to be lost: it is in neither list, and who
        asks for nothing else is answered so.
        """
        stream = self.streams.get(topic)
        return ([], []) if stream is None else super().lost(topic, start, min(stop, stream.next))
