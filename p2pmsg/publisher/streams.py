"""What a publisher knows of one of its streams, beside the replay buffer."""

from collections.abc import Callable
from typing import NamedTuple

from p2pmsg import wire
from recovery import HeartbeatSchedule


class FrameMemory(NamedTuple):
    """Where frames are kept, and sent from.

    Attributes:
        make: copies a frame there.
        free: empties a list of frames; None where it is enough to forget them.

    """

    make: Callable[[bytes | bytearray | memoryview], bytes | memoryview]
    free: Callable[[list[bytes | memoryview]], None] | None


PYTHON_MEMORY = FrameMemory(bytes, None)


class PublisherStream:
    """What a publisher knows of one of its streams, beside the replay buffer."""

    __slots__ = (
        "beat_ns",
        "guess",
        "heartbeat",
        "pace",
        "plain_prefix",
        "prefix",
        "sealed_ns",
        "topic",
        "topic_bytes",
    )

    def __init__(
        self, topic: str, topic_bytes: bytes, session: int, heartbeat: HeartbeatSchedule
    ) -> None:
        self.topic = topic
        self.prefix = wire.stream_prefix(topic, session)
        self.plain_prefix = wire.stream_prefix(topic, session, wire.FLAG_PLAIN)
        self.guess = 8  # messages that fit a datagram; put right by the first ones
        self.pace = 0  # of the last batch when it was sealed
        self.topic_bytes = topic_bytes
        self.heartbeat = heartbeat
        self.sealed_ns = -(2**62)
        self.beat_ns = 2**63  # where it stands in the heap of heartbeats
