"""What a publisher and a relay serve: sessions, and the streams of each."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from p2pmsg import control, wire
from p2pmsg.codec import ExactEncoder
from p2pmsg.publisher.log import PublisherLog
from recovery import HeartbeatSchedule, Kept, Loss, LossReason, RangeSet, ReplayBuffer
from recovery.loss import LossRanges

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
_NO_LOSSES: Final = LossRanges()
_NO_RANGES: Final = RangeSet()
"""Nothing is ever added to these two: most streams have none, and so take no memory for it."""


class ServedStream:
    """One stream, besides what the replay buffer and the log keep of it.

    Attributes:
        served: its session.
        key: its name in the replay buffer.
        number: how many streams of its session began before it.
        next: the sequence after the last one that was kept, or is known to be lost.
        end: up to where it is reported; beyond `next` where a relay's log has lost its end, and it
            is not known yet whether anybody has that.
        began: where it stood when its publisher's process began; None: not known.
        unsynced_from: the first sequence that must be on the disk before anybody gets to know it;
            None: there is none.
        losses: what is known to be lost for ever, and why: what a crash skipped, and at a relay
            what did not come there.
        acknowledged: the sequence below which some application has said that it is done.
        unreached: what all that said so have lost.
        heartbeat: when it says next where it stands.
        is_idle: whether it had no data for some time, so that its heartbeats are rare.
        beat_ns: where it stands in the heap of heartbeats.
        logged_ns: when its last heartbeat was sent, or was first put off.

    """

    __slots__ = (
        "acknowledged", "beat_ns", "began", "end", "heartbeat", "is_idle", "key", "logged_ns",
        "losses", "next", "number", "served", "topic", "topic_bytes", "unreached", "unsynced_from",
    )  # fmt: skip

    def __init__(self, served: "ServedSession", topic: str, topic_bytes: bytes, start: int) -> None:
        self.served, self.topic, self.topic_bytes = served, topic, topic_bytes
        self.key = served.prefix + topic
        self.number = len(served.streams)
        self.next = self.end = start
        self.began: int | None = None
        self.unsynced_from: int | None = None
        self.losses = _NO_LOSSES
        self.acknowledged, self.unreached = 0, _NO_RANGES
        self.heartbeat = HeartbeatSchedule()
        self.is_idle = False
        self.beat_ns = 2**63
        self.logged_ns: int | None = None


class PublisherStream(ServedStream):
    """A stream of the publisher's own, and how its messages are packed and gathered."""

    __slots__ = (
        "encoder", "guess", "made_ns", "needs_exact", "next_ns", "pace", "plain_prefix", "prefix",
        "rushed_ns",
    )  # fmt: skip

    def __init__(self, served: "ServedSession", topic: str, topic_bytes: bytes, start: int) -> None:
        super().__init__(served, topic, topic_bytes, start)
        self.began = start
        self.prefix = wire.stream_prefix(topic, served.session)
        self.plain_prefix = wire.stream_prefix(topic, served.session, wire.FLAG_PLAIN)
        self.guess = 8  # messages that fit a datagram; put right by the first ones
        self.pace = 0  # of the last batch when it was sealed
        # When the next message would come, were they `gather_within` apart, sending not counted.
        self.next_ns = -(2**62)
        self.rushed_ns: int | None = None  # when its last batch was sealed, filled at full rate
        self.needs_exact = False  # a value has a part of a type that msgpack does not have
        self.encoder: ExactEncoder | None = None
        # When its last frame was made, in the program's own time: see `Gathering`.
        self.made_ns = -(2**62)


class ServedSession:
    """One session that is served: a publisher's own, or one at a relay.

    Args:
        session, name: which one, and its publisher's name.
        welcome: what says that the session is closed.
        replay, log: where its frames are; a relay's sessions share them.
        prefix: of the names of its streams in the replay buffer. Default: none.
        incarnation: of the publisher's process; 0 where it is not known.
        floor: streams that are not known may have had sequences below it.

    Attributes:
        streams: by topic; none is ever removed.
        closing: whether subscribers must ask now for what they miss.
        endpoint_hash: stands for the recovery endpoint in heartbeats.

    """

    def __init__(
        self,
        session: int,
        name: str,
        welcome: control.Welcome,
        replay: ReplayBuffer,
        log: PublisherLog | None,
        *,
        prefix: str = "",
        incarnation: int = 0,
        floor: int = 0,
    ) -> None:
        self.session, self.name, self.welcome = session, name, welcome
        self.prefix, self.incarnation, self.floor = prefix, incarnation, floor
        self.closing = False
        self.endpoint_hash = control.endpoint_hash_of(welcome.recovery)
        self.streams: dict[str, Any] = {}
        self._replay, self._log = replay, log
        self._unsent: deque[bytes | memoryview] | None = None
        # What `_waits_from` found: the first frame that waits, how many do, and by topic from where
        self._waiting: tuple[object, int, dict[str, int]] = None, 0, {}

    @property
    def has_log(self) -> bool:
        """Whether `read` may find what `frame_at` does not."""
        return self._log is not None

    def hide_unsent(self, outbox: deque[bytes | memoryview]) -> None:
        """Report nothing that is in `outbox`, as for a multicast.

        What waits there for the pace, or for receivers, would be asked for, and sent twice, the
        first time past both. While the session is closed all is said: the rest may never leave.
        """
        self._unsent = outbox

    def heads(self) -> dict[str, tuple[int, int]]:
        """Return (earliest kept, next) by topic, of what is kept."""
        return {topic: self.head(topic, all_kept=True) for topic in list(self.streams)}

    def head(self, topic: str, *, all_kept: bool = False) -> tuple[int, int]:
        """Return (earliest, next) of what of a stream may be asked for; equal: of nothing.

        With `all_kept` also of what is not sent yet: see `hide_unsent`.
        """
        stream = self.streams.get(topic)
        if stream is None:
            return self.floor, self.floor
        following: int = stream.end if stream.unsynced_from is None else stream.unsynced_from
        if self._unsent and not (all_kept or self.closing):
            following = self._waits_from(self._unsent, topic, following)
        earliest: int = stream.next if stream.next < following else following
        kept = self._replay.earliest(stream.key)
        if kept is not None and kept < earliest:
            earliest = kept
        if self._log is not None:
            kept = self._log.earliest(topic, self.session)
            if kept is not None and kept < earliest:
                earliest = kept
        return earliest, following

    def _waits_from(self, outbox: deque[bytes | memoryview], topic: str, following: int) -> int:
        """Return the first sequence of a topic that is in the outbox, or `following`."""
        first, count = outbox[0], len(outbox)
        if bytes(first).startswith(topic.encode() + b"\0"):
            return min(following, wire.position_of(first)[1])
        known, known_count, waiting = self._waiting
        if known is not first or known_count != count:
            waiting = dict(wire.position_of(frame) for frame in reversed(outbox))
            self._waiting = first, count, waiting
        return min(following, waiting.get(topic, following))

    def answered_from(self, topic: str) -> int:
        """Return from where on an answer to a NACK says more than that it is evicted."""
        return self.with_lost_before(topic, self.head(topic)[0])

    def with_lost_before(self, topic: str, start: int) -> int:
        """Return `start`, or the beginning of what was lost right before it."""
        stream = self.streams.get(topic)
        for loss in [] if stream is None else reversed(list(stream.losses)):
            if loss.start < start <= loss.stop and loss.reason is not LossReason.EVICTED:
                start = loss.start
        return start

    def frame_at(self, topic: str, start: int, stop: int) -> Kept | None:
        """Return the replay buffer's first frame with messages of `[start, stop)`, or None."""
        return self._replay.first(self.prefix + topic, start, stop)

    def read(self, requester: bytes, topic: str, start: int) -> Kept | None:
        """Return the log's frame that has `start`, or the first one after it, or None.

        Raises:
            OSError: no descriptor is left to read with.

        """
        return None if self._log is None else self._log.read(requester, topic, start, self.session)

    def first_at(self, topic: str, timestamp_ns: int) -> Kept | None:
        """Return the first frame with a message as new as that, or None."""
        key, log = self.prefix + topic, self._log
        kept = self._replay.first_at_or_after(key, timestamp_ns)
        if log is None or (kept and self._replay.first(key, kept.start - 1, kept.start)):
            return kept
        # An older frame may match that the buffer has forgotten, or was too small for.
        return log.first_at_or_after(topic, timestamp_ns, self.session) or kept

    def lost(self, topic: str, start: int, stop: int) -> tuple[list[Loss], list[tuple[int, int]]]:
        """Return what of `[start, stop)` is known to be lost, and what may be asked for.

        What nobody knows yet whether it is lost is in neither.
        """
        stream = self.streams.get(topic)
        losses: Iterable[Loss] = ()
        if stream is not None:
            losses = stream.losses
        elif self.floor:  # it may have begun, and be gone
            losses = (Loss(0, self.floor, LossReason.CRASH),)
        gone: list[Loss] = []
        rest: list[tuple[int, int]] = []
        for loss in losses:
            if loss.stop <= start or loss.start >= stop:
                continue
            if start < loss.start:
                rest.append((start, loss.start))
            first, start = max(start, loss.start), min(stop, loss.stop)
            gone.append(Loss(first, start, loss.reason))
        if start < stop:
            rest.append((start, stop))
        return gone, rest


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
        values: list[Any],
        keys: list[str | None] | None,
        times: list[int] | None,
        *,
        wall_ns: int,
        buffer: bytearray,
    ) -> list[Packed]:
        """Return frames of the first values, each of which fits a datagram if that can be."""
