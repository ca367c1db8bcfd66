"""One session at a relay: what a publisher's core is to those who serve its requests."""

from typing import TYPE_CHECKING, Final

from p2pmsg import control
from p2pmsg.publisher.heartbeats import HeartbeatSender
from p2pmsg.publisher.requests import RequestHandler
from p2pmsg.publisher.streams import PublisherStream
from recovery import HeartbeatSchedule, Kept, Loss, LossReason, RangeSet, ReplayBuffer
from recovery.loss import LossRanges

if TYPE_CHECKING:
    from p2pmsg.publisher.log import PublisherLog
    from p2pmsg.relay.core import RelayCore

LOSSES_MAX: Final = 1024
"""Ranges whose loss a relay tells on with its reason, for each stream; others are `evicted`."""


class RelayedStream(PublisherStream):
    """One stream at a relay.

    Attributes:
        start: where it began here.
        next: the sequence behind the last one that was received, or is known to be lost.
        end: up to where it is told of; beyond `next` where the log has lost its end, and it is not
            known yet whether anybody has that.
        noted: where `end` is stored, at 0, to outlive the process.
        losses: what was lost on the way here.
        received, lost: messages.

    """

    __slots__ = ("end", "losses", "lost", "next", "noted", "received", "start")

    def __init__(
        self, topic: str, topic_bytes: bytes, session: int, heartbeat: HeartbeatSchedule, start: int
    ) -> None:
        super().__init__(topic, topic_bytes, session, heartbeat)
        self.start = self.next = self.end = start
        self.noted: memoryview | list[int] = [0]
        self.losses = LossRanges()
        self.received = self.lost = 0

    def advance(self, following: int) -> None:
        """Note that everything before `following` came, or is lost."""
        self.next = following
        if following > self.end:
            self.end = self.noted[0] = following


class SessionBuffer:
    """One session's part of the replay buffer that all sessions of a relay share."""

    def __init__(self, shared: ReplayBuffer, session: int) -> None:
        self._shared = shared
        self._prefix = f"{session:016x}:"

    def key(self, topic: str) -> str:
        """Return what a stream is called in the shared buffer."""
        return self._prefix + topic

    def frames(self, topic: str, start: int, stop: int, bytes_max: int) -> list[Kept]:
        """As `ReplayBuffer.frames`."""
        return self._shared.frames(self._prefix + topic, start, stop, bytes_max)

    def earliest(self, topic: str) -> int | None:
        """As `ReplayBuffer.earliest`."""
        return self._shared.earliest(self._prefix + topic)

    def first_at_or_after(self, topic: str, timestamp_ns: int) -> Kept | None:
        """As `ReplayBuffer.first_at_or_after`."""
        return self._shared.first_at_or_after(self._prefix + topic, timestamp_ns)


class SessionLog:
    """One session's part of a relay's log."""

    floor = 0

    def __init__(self, shared: "PublisherLog", session: int) -> None:
        self._shared = shared
        self._session = session

    def next(self, topic: str) -> int:
        """As `PublisherLog.next`."""
        return self._shared.next(topic, self._session)

    def earliest(self, topic: str) -> int | None:
        """As `PublisherLog.earliest`."""
        return self._shared.earliest(topic, self._session)

    def read(self, requester: bytes, topic: str, start: int) -> Kept | None:
        """As `PublisherLog.read`."""
        return self._shared.read(requester, topic, start, self._session)

    def first_at_or_after(self, topic: str, timestamp_ns: int) -> Kept | None:
        """As `PublisherLog.first_at_or_after`."""
        return self._shared.first_at_or_after(topic, timestamp_ns, self._session)


class RelayedSession:
    """A publisher's session, served by a relay in its stead.

    Attributes:
        session, name: of the publisher.
        hops: how many relays are between the publisher and who asks here, this one included.
        is_live: whether any upstream carries it now.
        was_cut: whether the end of a stream is lost that the log once had: those who come are told.
        streams: by topic.
        requests, heartbeats: answers its requests, and sends its heartbeats.

    """

    def __init__(self, relay: "RelayCore", session: int, name: str, hops: int) -> None:
        self.session = session
        self.name = name
        self.hops = hops
        self.is_live = True
        self.was_cut = False
        self.config = relay.config
        self.memory = relay.memory
        self.control = relay.control
        self.place = relay.place
        self.replay = SessionBuffer(relay.replay, session)
        self.log = None if relay.log is None else SessionLog(relay.log, session)
        self.streams: dict[str, RelayedStream] = {}
        self._relay = relay
        self.life = 0
        self.losses = self
        self.group = None
        self.greeting = control.Welcome(name, relay.recovery, relay.stall_ms)
        self.requests = RequestHandler(self)
        self.heartbeats = HeartbeatSender(self)

    @property
    def closing(self) -> bool:
        """Whether the relay is closing."""
        return self._relay.closing

    def heads(self) -> dict[str, tuple[int, int]]:
        """Return (earliest kept, next) by topic."""
        return {topic: self.head(topic) for topic in list(self.streams)}

    def head(self, topic: str) -> tuple[int, int]:
        """Return (earliest kept, next) of one stream; (0, 0) of one that is unknown."""
        stream = self.streams.get(topic)
        if stream is None:
            return 0, 0
        following = self._relay.synced(self.session, topic, stream.end)
        buffered = self.replay.earliest(topic)
        logged = None if self.log is None else self.log.earliest(topic)
        kept = [earliest for earliest in (buffered, logged) if earliest is not None]
        return min([following, stream.next, *kept]), following

    def began(self, topic: str) -> None:
        """Return None: what a relay has says nothing of how its publisher goes on."""
        return None

    def answered_from(self, topic: str) -> int:
        """Return from where on an answer to a NACK says more than that it is evicted.

        It is the earliest kept, or the beginning of what was lost right before that.
        """
        earliest = self.head(topic)[0]
        stream = self.streams.get(topic)
        for loss in [] if stream is None else reversed(list(stream.losses)):
            if loss.start < earliest <= loss.stop and loss.reason is not LossReason.EVICTED:
                earliest = loss.start
        return earliest

    def split_lost(
        self, topic: str, start: int, stop: int
    ) -> tuple[list[Loss], list[tuple[int, int]]]:
        """Return what of `[start, stop)` was lost on the way here, and the rest.

        What nobody knows yet whether it is lost is in neither.
        """
        stream = self.streams.get(topic)
        if stream is None:
            return [], [(start, stop)]
        gone, rest = _split(stream, start, stop)
        if stream.next < stream.end:
            known = RangeSet(rest)
            known.remove(stream.next, stream.end)
            rest = list(known)
        return gone, rest


def _split(
    stream: RelayedStream, start: int, stop: int
) -> tuple[list[Loss], list[tuple[int, int]]]:
    gone: list[Loss] = []
    rest: list[tuple[int, int]] = []
    for loss in stream.losses:
        if loss.stop <= start or loss.start >= stop:
            continue
        if start < loss.start:
            rest.append((start, loss.start))
        first, start = max(start, loss.start), min(stop, loss.stop)
        gone.append(Loss(first, start, loss.reason))
    if start < stop:
        rest.append((start, stop))
    return gone, rest
