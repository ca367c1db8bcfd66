"""One session at a relay: the relay answers for its publisher."""

from collections.abc import Collection
from typing import Final

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.heartbeats import HeartbeatSender
from p2pmsg.publisher.log import PublisherLog, first_kept
from p2pmsg.publisher.requests import RequestHandler
from p2pmsg.publisher.served import PublisherStream
from p2pmsg.wire import Kind
from recovery import HeartbeatSchedule, Kept, Loss, LossReason, ReplayBuffer, SentFrames
from recovery.loss import LossRanges

LOSSES_MAX: Final = 1024
"""Ranges whose loss a relay passes on with its reason, for each stream; others are `evicted`."""


class RelayedStream(PublisherStream):
    """One stream at a relay.

    Attributes:
        start: where it began here.
        next: the sequence after the last one that was received, or is known to be lost.
        end: up to where it is reported; beyond `next` where the log has lost its end, and it is not
            known yet whether anybody has that.
        unsynced_from: the first sequence that must be on the disk before anybody gets to know it;
            None: there is none.
        losses: what was lost on the way here.
        received, lost: messages.

    """

    __slots__ = ("end", "losses", "lost", "next", "received", "start", "unsynced_from")

    def __init__(
        self, topic: str, topic_bytes: bytes, session: int, heartbeat: HeartbeatSchedule, start: int
    ) -> None:
        super().__init__(topic, topic_bytes, session, heartbeat)
        self.start = self.next = self.end = start
        self.unsynced_from: int | None = None
        self.losses = LossRanges()
        self.received = self.lost = 0


class RelayedSession:
    """A publisher's session, served by a relay in its stead; a `Served`.

    Args:
        session, name: of the publisher.
        hops: see below.
        welcome: what its closing says.
        config: bounds on what is asked for.
        queue: takes what goes over the data path.
        replay, log: the relay's, which all its sessions share.

    Attributes:
        hops: how many relays are between the publisher and its subscribers here, this one included.
        is_live: whether any upstream carries it now.
        streams: by topic.
        requests, heartbeats: answers its requests, and sends its heartbeats.

    """

    incarnation = 0
    floor = 0

    def __init__(
        self,
        session: int,
        name: str,
        hops: int,
        welcome: control.Welcome,
        *,
        config: PublisherConfig,
        queue: ControlQueue,
        replay: ReplayBuffer,
        log: PublisherLog | None,
        frames: SentFrames,
    ) -> None:
        self.session = session
        self.name = name
        self.hops = hops
        self.is_live = True
        self.closing = False
        self.has_log = log is not None
        self.endpoint_hash = control.endpoint_hash_of(welcome.recovery)
        self.streams: dict[str, RelayedStream] = {}
        self._welcome = welcome
        self._prefix = f"{session:016x}:"
        self._replay = replay
        self._log = log
        self.requests = RequestHandler(self, queue, config, frames)
        self.heartbeats = HeartbeatSender(self, queue)

    def key(self, topic: str) -> str:
        """Return the name of a stream in the shared replay buffer."""
        return self._prefix + topic

    def topics(self) -> Collection[str]:
        """Do as `Served.topics`."""
        return self.streams

    def frame_at(self, topic: str, start: int, stop: int) -> Kept | None:
        """Do as `Served.frame_at`."""
        return self._replay.first(self.key(topic), start, stop)

    def read(self, requester: bytes, topic: str, start: int) -> Kept | None:
        """Do as `Served.read`."""
        return None if self._log is None else self._log.read(requester, topic, start, self.session)

    def first_at(self, topic: str, timestamp_ns: int) -> Kept | None:
        """Do as `Served.first_at`."""
        return first_kept(
            self._replay, self.key(topic), self._log, topic, timestamp_ns, self.session
        )

    def closing_frame(self, *, now_ns: int) -> bytes:
        """Do as `Served.closing_frame`."""
        flags = wire.FLAG_CLOSING
        return wire.control_frame(Kind.WELCOME, self.session, self._welcome, flags=flags)

    def heads(self) -> dict[str, tuple[int, int]]:
        """Return (earliest kept, next) by topic."""
        return {topic: self.head(topic) for topic in list(self.streams)}

    def head(self, topic: str) -> tuple[int, int]:
        """Do as `Served.head`; (0, 0) of a stream that is unknown."""
        stream = self.streams.get(topic)
        if stream is None:
            return 0, 0
        following = stream.end if stream.unsynced_from is None else stream.unsynced_from
        buffered = self._replay.earliest(self.key(topic))
        logged = None if self._log is None else self._log.earliest(topic, self.session)
        kept = [earliest for earliest in (buffered, logged) if earliest is not None]
        return min([following, stream.next, *kept]), following

    def began(self, topic: str) -> None:
        """Return None: what a relay has says nothing of how its publisher goes on."""
        return None

    def answered_from(self, topic: str) -> int:
        """Do as `Served.answered_from`."""
        earliest = self.head(topic)[0]
        stream = self.streams.get(topic)
        for loss in [] if stream is None else reversed(list(stream.losses)):
            if loss.start < earliest <= loss.stop and loss.reason is not LossReason.EVICTED:
                earliest = loss.start
        return earliest

    def lost(self, topic: str, start: int, stop: int) -> tuple[list[Loss], list[tuple[int, int]]]:
        """Do as `Served.lost`, of what was lost on the way here.

        What is not here yet may still come, or turn out to be lost: it is in neither list, and who
        asks for nothing else is answered so.
        """
        stream = self.streams.get(topic)
        if stream is None:
            return [], []
        gone, rest = _split(stream, start, min(stop, stream.next))
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
