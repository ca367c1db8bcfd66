"""What a publisher says by itself: heartbeats and closings.

Heartbeats have one schedule a stream, and stand in the order in which they are due. What they cost
is bounded: idle streams share `per_second_max`, and each waits the longer the more they are. Nobody
takes a publisher for gone because of that: a subscriber that has heard nothing for half of
`publisher_timeout` asks where its streams stand, and the answer is a sign of life.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable
from functools import partial

from p2pmsg import control, wire
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.served import ServedStream
from p2pmsg.wire import Kind

_CLOSING_NS = 50_000_000
_EACH_NS = 100_000
"""So long after data for each connection is a stream's first heartbeat due at least. A heartbeat
costs as much as a small message, once for each subscriber: with 10 ms for a thousand of them, a
stream of 20 messages a second had 40 heartbeats a second, two thirds of all frames."""
_EARLY, _GOLDEN = 0.5, 0.6180339887498949
"""By how much long waits are shortened at most, and how that is distributed: evenly."""


class HeartbeatSender:
    """Sends heartbeats when they are due; while all is closed, all of them again and again.

    Args:
        queue: takes what is sent.
        per_second_max: how many heartbeats a second idle streams have together. Default: any
            number, for who is only heard by them: groups, and sessions at a relay.

    Attributes:
        sent: how many went out.
        idle: how many streams have had no data for some time.
        busy_ns: how often a stream has a heartbeat of which there is data all the time, too.
            Default: never; data shows as well where the stream stands, unless all of it gets lost.
        is_sooner: whether one is due sooner than the last `handle_timer` left it: data has ended a
            silence.

    """

    def __init__(self, queue: ControlQueue, per_second_max: float = math.inf) -> None:
        self._queue = queue
        self._is_closing = False
        self._heap: list[tuple[int, str, ServedStream]] = []
        self._closing_due_ns = self._saying_ns = 0
        self._unsaid: deque[ServedStream] = deque()
        self.sent = self.idle = 0
        self.per_second_max = per_second_max
        self.busy_ns = 2**63
        self.is_sooner = False

    def put_off(self, stream: ServedStream, now_ns: int) -> None:
        """Note that data of `stream` went out: its heartbeat is due a while after."""
        heartbeat = stream.heartbeat
        heartbeat.data_sent(now_ns=now_ns, least_ns=self._queue.connections * _EACH_NS)
        if stream.is_idle:
            stream.is_idle = False
            self.idle -= 1
        if stream.beat_ns > heartbeat.next_deadline_ns():
            self._schedule(stream)
            self.is_sooner = True

    def handle_timer(self, streams: Iterable[ServedStream], *, now_ns: int) -> bool:
        """Send what is due; whether a closing is to follow, since all heads were said."""
        self.is_sooner = False
        if self._is_closing:
            is_due = bool(self._unsaid) or now_ns >= self._closing_due_ns
            return is_due and self._say_heads(streams, now_ns)
        heap, queue = self._heap, self._queue
        while heap and heap[0][0] <= now_ns and not queue.is_full:
            deadline_ns, _, stream = heapq.heappop(heap)
            if deadline_ns != stream.beat_ns:
                continue  # an entry that an earlier one took the place of
            if stream.logged_ns is None:
                stream.logged_ns = now_ns
            is_owed = now_ns - stream.logged_ns >= self.busy_ns
            if is_owed or stream.heartbeat.due(now_ns=now_ns):
                self._send(stream, now_ns)
            self._schedule(stream)
        return False

    def _say_heads(self, streams: Iterable[ServedStream], now_ns: int) -> bool:
        """Add heads as far as there is space; whether it was the last one.

        All are said again a while after that, so that who has everything can say so in between.
        """
        queue = self._queue
        if not self._unsaid:
            self._unsaid.extend(streams)
            self._saying_ns = now_ns
        while self._unsaid and not queue.is_full:
            self._send(self._unsaid.popleft(), now_ns)
        if not self._unsaid:
            self._closing_due_ns = now_ns + max(_CLOSING_NS, now_ns - self._saying_ns)
        return not self._unsaid

    def forget(self, stream: ServedStream) -> None:
        """Send no heartbeat of a stream any more."""
        stream.beat_ns = -1
        self.idle -= stream.is_idle

    def begin_close(self, *, now_ns: int) -> None:
        """Say at once what there is, and again after 50 ms, or as long as that took."""
        self._is_closing = True
        self._closing_due_ns = now_ns

    def next_deadline_ns(self) -> int | None:
        """Return when `handle_timer` has something to do, or None."""
        if self._is_closing:
            return self._closing_due_ns
        return self._heap[0][0] if self._heap else None

    def resync(self, streams: Iterable[ServedStream]) -> None:
        """Put all in order again, after an exception at any line."""
        self._heap.clear()
        self.idle = 0
        for stream in streams:
            self.idle += stream.is_idle
            self._schedule(stream)

    def _schedule(self, stream: ServedStream) -> None:
        stream.beat_ns = stream.heartbeat.next_deadline_ns()
        heapq.heappush(self._heap, (stream.beat_ns, stream.key, stream))

    def _send(self, stream: ServedStream, now_ns: int) -> None:
        self._queue.notices.append(partial(_frame, stream))
        self.sent += 1
        stream.logged_ns = now_ns
        # A wait is on average three quarters of the longest one.
        ceiling_ns = int(1e9 * self.idle / self.per_second_max / (1 - _EARLY / 2))
        early = _EARLY * (self.sent * _GOLDEN % 1)
        stream.heartbeat.sent(now_ns=now_ns, ceiling_ns=ceiling_ns, early=early)
        if not stream.is_idle and stream.heartbeat.is_slow:
            stream.is_idle = True
            self.idle += 1


def _frame(stream: ServedStream) -> bytes:
    """Return a heartbeat as it is to be sent now.

    One that said less than messages that left before it would look, in another incarnation, as if
    the publisher had gone back.
    """
    served = stream.served
    earliest = served.answered_from(stream.topic)
    following = served.head(stream.topic)[1]
    body = control.Heartbeat(earliest, served.endpoint_hash, served.incarnation)
    return wire.control_frame(
        Kind.HEARTBEAT, served.session, body, sequence=following, topic=stream.topic_bytes
    )
