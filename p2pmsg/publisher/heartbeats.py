"""What a publisher says by itself: heartbeats, announcements to a group, farewells.

Heartbeats have one schedule a stream, and stand in the order in which they are due.
"""

import heapq
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from p2pmsg import control, wire
from p2pmsg.publisher.streams import PublisherStream
from p2pmsg.wire import Kind

if TYPE_CHECKING:
    from p2pmsg.publisher.core import PublisherCore
    from p2pmsg.relay.session import RelayedSession

_CLOSING_NS = 50_000_000


class HeartbeatSender:
    """Sends heartbeats when they are due; part of `PublisherCore`, or of a session at a relay.

    Attributes:
        sent: how many went out.
        sooner: called when the next heartbeat is due sooner than it was: data has ended a silence.

    """

    def __init__(self, core: "PublisherCore | RelayedSession") -> None:
        self._core = core
        self._heap: list[tuple[int, str, PublisherStream]] = []
        self._closing_due_ns = 0
        self.sent = 0
        self.sooner: Callable[[], None] | None = None

    def put_off(self, stream: PublisherStream, now_ns: int) -> None:
        """Note that data of `stream` went out: its heartbeat is due a while after."""
        heartbeat = stream.heartbeat
        heartbeat.data_sent(now_ns=now_ns)
        if stream.beat_ns > heartbeat.next_deadline_ns():
            self._schedule(stream)
            if self.sooner is not None:
                self.sooner()

    def handle_timer(self, streams: Iterable[PublisherStream], *, now_ns: int) -> None:
        """Send what is due; while the publisher closes, all heads again and again."""
        heap, control = self._heap, self._core.control
        while heap and heap[0][0] <= now_ns and not control.is_full:
            deadline_ns, _, stream = heapq.heappop(heap)
            if deadline_ns != stream.beat_ns:
                continue  # an entry that an earlier one took the place of
            if stream.heartbeat.due(now_ns=now_ns):
                self._send(stream, now_ns)
            self._schedule(stream)
        if self._core.closing and now_ns >= self._closing_due_ns and not control.is_full:
            self._closing_due_ns = now_ns + _CLOSING_NS
            for stream in streams:
                self._send(stream, now_ns)
            self._send_farewell(now_ns)
        elif self._core.group is not None and not self._core.closing:
            self._core.group.handle_timer(now_ns=now_ns)

    def begin_close(self, *, now_ns: int) -> None:
        """Say at once, and then every 50 ms, what there is."""
        self._closing_due_ns = now_ns

    def next_deadline_ns(self) -> int | None:
        """Return when `handle_timer` has something to do, or None."""
        deadlines = [self._heap[0][0]] if self._heap else []
        if self._core.closing:
            deadlines.append(self._closing_due_ns)
        elif self._core.group is not None:
            deadlines.append(self._core.group.announce_due_ns)
        return min(deadlines, default=None)

    def _schedule(self, stream: PublisherStream) -> None:
        stream.beat_ns = stream.heartbeat.next_deadline_ns()
        heapq.heappush(self._heap, (stream.beat_ns, stream.topic, stream))

    def _send_farewell(self, now_ns: int) -> None:
        core, flags = self._core, wire.FLAG_CLOSING
        if core.group is not None:
            frame = core.group.announcement(flags=flags, now_ns=now_ns)
        else:
            frame = wire.control_frame(Kind.WELCOME, core.session, core.greeting, flags=flags)
        core.control.notices.append(frame)

    def _send(self, stream: PublisherStream, now_ns: int) -> None:
        earliest = self._core.answered_from(stream.topic)
        following = self._core.head(stream.topic)[1]
        frame = wire.control_frame(
            Kind.HEARTBEAT,
            self._core.session,
            control.Heartbeat(earliest, self._core.place, self._core.life),
            sequence=following,
            topic=stream.topic_bytes,
        )
        self._core.control.notices.append(frame)
        self.sent += 1
        stream.heartbeat.sent(now_ns=now_ns)
