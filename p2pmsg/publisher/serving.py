"""What the engines of publishers and relays share: frames are kept, let go, and served again.

::

    a frame ──▶ log ──▶ replay buffer ──▶ (the disk) ──▶ outbox ──▶ the data path
                               ▲
    PROBE, NACK ──▶ requests ──┘──▶ control queue, replies
"""

from collections import deque
from collections.abc import Collection, Iterable
from itertools import chain
from typing import Generic, TypeVar

from p2pmsg import wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.access import AccessRules
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.heartbeats import HeartbeatSender
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.requests import RequestHandler
from p2pmsg.publisher.served import FrameMemory, ServedSession, ServedStream
from p2pmsg.wire import Kind
from recovery import PartedFrame, ReplayBuffer

V = TypeVar("V", bound=ServedSession)


class ServingCore(Generic[V]):
    """Keeps frames of sessions, and serves them. Not thread-safe: the shell holds a lock.

    Attributes:
        sessions: the sessions that are served, by their ids.
        outbox: frames for the data path, oldest first; the shell sends and removes them.
        control: control frames for the data path, which no message waits for.
        unsynced: frames that go there once they are on the disk (`fsync="always"`).
        replay: the replay buffer.
        log: the local log, or None.
        requests: who asks for what.
        heartbeats: sends heartbeats.
        sealed_ns: when the last frame was kept.
        closing: whether subscribers must ask now for what they miss.
        access_rules: who may what; None: everybody may everything.

    """

    def __init__(
        self,
        name: str,
        config: PublisherConfig,
        log: PublisherLog | None,
        memory: FrameMemory,
        heartbeats_per_s: float,
    ) -> None:
        self.name, self.config, self.log, self.memory = name, config, log, memory
        self.sessions: dict[int, V] = {}
        self.outbox: deque[bytes | memoryview] = deque()
        self.control = ControlQueue()
        self.unsynced: deque[tuple[ServedStream, int, bytes | memoryview]] = deque()
        self.replay = ReplayBuffer(
            config.replay_bytes, age_max=config.replay_age, streams_max=config.streams_max,
            free=memory.free,
        )  # fmt: skip
        self.requests = self._make_requests()
        self.heartbeats = HeartbeatSender(self.control, heartbeats_per_s)
        self.sealed_ns = 0
        self.closing = False
        self.access_rules: AccessRules | None = None
        self._syncs_first = log is not None and log.syncs_first
        # Below 0 where nothing is waited for, as `Welcome` says it.
        self.stall_ms = config.stall_timeout * 1000 if config.on_full != "drop" else -1.0

    def _make_requests(self) -> RequestHandler:
        return RequestHandler(self.sessions, self.control, self.config)

    def _all_streams(self) -> Iterable[ServedStream]:
        return chain.from_iterable(served.streams.values() for served in self.sessions.values())

    def resync(self) -> None:
        """Go on after an exception at any line; what is lost of requests is asked for again."""
        for stream in self._all_streams():
            stream.unsynced_from = None
        self._find_unsynced()
        self.requests.resync()
        self.control.resync()
        self.heartbeats.resync(self._all_streams())

    def abandon(self) -> None:
        """Forget what waits: in a forked child it is the parent's."""
        self.closing = True
        self.outbox.clear()
        self.unsynced.clear()

    def use_access_rules(self, access_rules: AccessRules) -> None:
        """Answer each requester what it may have, and nothing else; called before anything else."""
        self.access_rules = access_rules
        self.requests.use_access_rules(access_rules)

    def revoke(self, users: Collection[str]) -> None:
        """Forget those whose keys were revoked: nobody waits for them, and nothing is sent again.

        What a sealed multicast has to do for them is done from here, too: its `dismiss` is called
        for each that had joined.
        """
        self.requests.revoke(users)

    @property
    def joined(self) -> int:
        """How many subscribers have joined: the data path to them is known to work."""
        return len(self.requests.known.by_id())

    @property
    def is_sent(self) -> bool:
        """Whether everything that was kept was sent."""
        return not (self.outbox or self.unsynced or self.control)

    @property
    def is_complete(self) -> bool:
        """Whether everything was sent, and all who joined have said that they have everything."""
        return self.is_sent and not self.requests.known.incomplete()

    def _keep(
        self,
        stream: ServedStream,
        sequence: int,
        count: int,
        frame: bytes | memoryview,
        kept: bytes | memoryview | PartedFrame,
        latest_ns: int,
        now_ns: int,
        wall_ns: int,
    ) -> None:
        """Keep a frame, and let it go; where that was interrupted, the rest of it is done.

        `LogFailedError` where the log did not take it: then it was not kept.
        """
        replay, log, session = self.replay, self.log, stream.served.session
        if replay.next(stream.key) <= sequence:
            if log is not None and log.next(stream.topic, session) <= sequence:
                log.append(stream.topic, sequence, count, frame, latest_ns, wall_ns, session)
            replay.append(
                stream.key, sequence, count, kept, now_ns=now_ns, timestamp_ns_max=latest_ns
            )
        if self._syncs_first:
            self.unsynced.append((stream, sequence, frame))
            if stream.unsynced_from is None:
                stream.unsynced_from = sequence
        else:
            self.outbox.append(frame)
        stream.next = sequence + count
        if stream.end < stream.next:
            stream.end = stream.next
        self.sealed_ns = now_ns
        self.heartbeats.put_off(stream, now_ns)

    def frames_synced(self, count: int) -> None:
        """Let the first `count` of `unsynced` go: they are on the disk."""
        for _ in range(count):
            stream, _, frame = self.unsynced[0]
            self.outbox.append(frame)
            stream.unsynced_from = None
            self.unsynced.popleft()
        self._find_unsynced()

    def _find_unsynced(self) -> None:
        for stream, sequence, _ in reversed(self.unsynced):
            stream.unsynced_from = sequence

    def begin_close(self, *, now_ns: int) -> None:
        """Announce to subscribers that what they lack they must ask for now."""
        self.closing = True
        for served in self.sessions.values():
            served.closing = True
        self.requests.known.begin_close()
        self.heartbeats.begin_close(now_ns=now_ns)

    def _say_heads(self, now_ns: int) -> None:
        """Send heartbeats that are due, and closings after the last ones."""
        if self.heartbeats.handle_timer(self._all_streams(), now_ns=now_ns):
            for served in self.sessions.values():
                self.control.notices.append(self.closing_frame(served, now_ns=now_ns))

    def closing_frame(self, served: V, *, now_ns: int) -> bytes:
        """Return the frame that says that a session is being closed."""
        flags = wire.FLAG_CLOSING
        return wire.control_frame(Kind.WELCOME, served.session, served.welcome, flags=flags)

    def on_sent(self, began_ns: int, ended_ns: int) -> None:
        """Note when frames were sent."""
