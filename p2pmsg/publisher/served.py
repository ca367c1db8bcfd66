"""What a publisher's parts share: interfaces, and what is known of a stream."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol

from p2pmsg import wire
from p2pmsg.codec import ExactEncoder
from recovery import HeartbeatSchedule, Kept, Loss

Packed = tuple[int, int, bytes, int]
"""(first sequence, count, frame, newest timestamp)"""


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
    """What a publisher knows of one of its streams, besides what the replay buffer keeps."""

    __slots__ = (
        "beat_ns",
        "encoder",
        "guess",
        "heartbeat",
        "is_idle",
        "logged_ns",
        "made_ns",
        "needs_exact",
        "next_ns",
        "pace",
        "plain_prefix",
        "prefix",
        "rushed_ns",
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
        # When the next message would come, were they `gather_within` apart, sending not counted.
        self.next_ns = -(2**62)
        self.rushed_ns: int | None = None  # when its last batch was sealed, filled at full rate
        self.needs_exact = False  # a value has a part of a type that msgpack does not have
        self.encoder: ExactEncoder | None = None
        self.topic_bytes = topic_bytes
        self.heartbeat = heartbeat
        self.is_idle = False  # no data for some time, so that its heartbeats are rare
        # When its last frame was made, in the program's own time: see `Gathering`.
        self.made_ns = -(2**62)
        self.beat_ns = 2**63  # where it stands in the heap of heartbeats
        self.logged_ns: int | None = None  # when its last heartbeat was sent, or was first put off


class Served(Protocol):
    """One session that is served: a publisher's own, or one at a relay.

    Attributes:
        session, name: which one, and its publisher's name.
        incarnation: of the publisher's process; 0 where it is not known.
        endpoint_hash: stands for the recovery endpoint in heartbeats.
        floor: streams that are not known may have had sequences below it.
        has_log: whether `read` may find what `frame_at` does not.
        closing: whether subscribers must ask now for what they miss.

    """

    session: int
    name: str
    incarnation: int
    endpoint_hash: int
    floor: int
    has_log: bool
    closing: bool

    def topics(self) -> Collection[str]:
        """Return a view of the topics; none is ever removed."""

    def head(self, topic: str) -> tuple[int, int]:
        """Return (earliest kept, next) of one stream; equal where nothing is kept."""

    def began(self, topic: str) -> int | None:
        """Return where a stream stood when its publisher's process began; None: not known."""

    def answered_from(self, topic: str) -> int:
        """Return from where on an answer to a NACK says more than that it is evicted.

        It is the earliest kept, or the beginning of what was lost right before that.
        """

    def frame_at(self, topic: str, start: int, stop: int) -> Kept | None:
        """Return the replay buffer's first frame with messages of `[start, stop)`, or None."""

    def read(self, requester: bytes, topic: str, start: int) -> Kept | None:
        """Return the log's frame that has `start`, or the first one after it, or None.

        Raises:
            OSError: no descriptor is left to read with.

        """

    def first_at(self, topic: str, timestamp_ns: int) -> Kept | None:
        """Return the first frame with a message as new as that, or None."""

    def lost(self, topic: str, start: int, stop: int) -> tuple[list[Loss], list[tuple[int, int]]]:
        """Return what of `[start, stop)` is known to be lost, and what may be asked for.

        What nobody knows yet whether it is lost is in neither.
        """

    def closing_frame(self, *, now_ns: int) -> bytes:
        """Return the frame that says that the session is being closed."""


class Multicast(Protocol):
    """What a core asks of the multicast that it publishes to.

    Attributes:
        frame_bytes: how much of a datagram a frame may be.
        welcome_flags: what its announcements say in addition.

    """

    frame_bytes: int
    welcome_flags: int

    def admit(self, subscriber: int, requester: bytes, user: str) -> bytes:
        """Listen to a user's subscriber from now on; returns the frame that says so.

        `FrameError` where it is another user's.
        """

    def receive_held(
        self, requester: bytes, frame: wire.Frame, *, now_ns: int, user: str
    ) -> bytes | None:
        """Answer one that says which keys it has; `FrameError` where it gets none."""

    def handle_timer(self, *, now_ns: int) -> list[tuple[bytes, bytes]]:
        """Do what is due; returns (requester, frame) that are to be sent."""

    def next_deadline_ns(self) -> int | None:
        """Return when `handle_timer` has something to do, or None."""

    def requester_gone(self, requester: bytes) -> None:
        """Note that a requester is no longer connected."""

    def dismiss(self, subscriber: int) -> None:
        """Listen no more to a subscriber."""

    def values_max(self, stream: PublisherStream) -> int:
        """Return how many values the next `pack` may take, about."""

    def pack(
        self,
        stream: PublisherStream,
        sequence: int,
        values: Sequence[Any],
        keys: Sequence[str | None] | None,
        timestamps_ns: Sequence[int] | None,
        at: int,
        *,
        wall_ns: int,
        buffer: bytearray,
    ) -> list[Packed]:
        """Return frames of values from `at` on, each of which fits a datagram if that can be."""
