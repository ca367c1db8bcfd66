"""The publisher's state machine: messages and requests in, frames and replies out. No I/O.

::

    publish ──▶ open batch ──seal──▶ replay buffer + outbox ──▶ the data path
    NACK ──▶ retransmit scheduler ──▶ next_reply ──▶ the recovery channel of one requester
    PROBE ──▶ ECHO over the data path ──▶ JOINED: the subscriber is counted
"""

import heapq
from collections import deque
from collections.abc import Sequence
from typing import Any

from p2pmsg import control, wire
from p2pmsg.batch import (
    PACKING_ERRORS,
    Batch,
    check_key,
    check_size,
    check_timestamp,
    pack_alone,
    pack_slice,
    packing_error,
)
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ConfigError, MessageError
from p2pmsg.multicast.packing import publish_datagrams
from p2pmsg.multicast.publisher_desk import GroupDesk
from p2pmsg.publisher_requests import Reply, RequestDesk
from p2pmsg.publisher_stream import PublisherStream, check_topic
from p2pmsg.wire import Kind, encoder
from recovery import HeartbeatSchedule, ReplayBuffer

_MS = 1_000_000
_SENDING_NS = _MS // 2
"""How long sending a full frame may take, for what comes next to count as following closely."""
_BUFFERS_MAX = 8
"""Buffers of a frame's size kept for the next frames; more streams than this make new ones."""
_encode_into = encoder.encode_into


class PublisherCore:
    """The state machine. Not thread-safe: the shell holds a lock around every call.

    Attributes:
        open_batches: the batch of each stream that gathers one; the shell adds to it directly.
        outbox: frames for the data path, oldest first; the shell sends and removes them.
        replay: the replay buffer.
        requests: who asks for what.
        group: what a multicast needs beside; None: this is none.
        sealed_ns: when the last frame was made.
        heartbeats_sent: how many heartbeats went out.

    """

    def __init__(
        self, *, name: str, session: int, recovery: str, config: PublisherConfig, now_ns: int
    ) -> None:
        self.name = name
        self.session = session
        self.config = config
        self.open_batches: dict[str, Batch] = {}
        self.outbox: deque[bytes] = deque()
        self.replay = ReplayBuffer(config.replay)
        self.requests = RequestDesk(self)
        self.group: GroupDesk | None = None
        self.recovery = recovery
        self.heartbeats_sent = 0
        self.sealed_ns = 0
        self.closing = False
        self._closing_due_ns = 0
        self._streams: dict[str, PublisherStream] = {}
        self._buffers: list[bytearray] = []
        self._beats: list[tuple[int, str]] = []
        self._gather_ns = int(config.gather_us * 1000)
        self._linger_ns = int(config.linger_ms * _MS)
        # So that the fast path need not look at the size of each message.
        self._batch_bytes = min(config.frame_bytes, config.message_bytes_max)
        self._started_ns = now_ns
        self.stall_ms = config.stall_ms if config.on_full != "drop" else -1.0
        self._welcome = control.Welcome(name, recovery, self.stall_ms)
        self.welcome = wire.control_frame(Kind.WELCOME, session, self._welcome)

    def become_group(self, datagram_bytes: int, *, now_ns: int) -> GroupDesk:
        """Publish to a multicast, in datagrams of that size; called before anything else."""
        self.group = GroupDesk(self, self.config.multicast, datagram_bytes, now_ns=now_ns)
        self._batch_bytes = min(self._batch_bytes, self.group.frame_bytes)
        return self.group

    @property
    def published(self) -> int:
        """How many messages were accepted, over all streams."""
        sealed = sum(self.replay.next(topic) for topic in self._streams)
        return sealed + self.pending

    @property
    def pending(self) -> int:
        """How many messages are in open batches."""
        return sum(batch.count for batch in list(self.open_batches.values()))

    def heads(self) -> dict[str, tuple[int, int]]:
        """Return (earliest kept, next) by topic, of what was sealed."""
        return {topic: self.head(topic) for topic in list(self._streams)}

    def head(self, topic: str) -> tuple[int, int]:
        """Return (earliest kept, next) of one stream."""
        following = self.replay.next(topic)
        earliest = self.replay.earliest(topic)
        return (following if earliest is None else earliest), following

    def publish(
        self,
        topic: str,
        value: Any,
        key: str | None,
        timestamp_ns: int | None,
        headers: dict[str, Any] | None,
        *,
        now_ns: int,
        wall_ns: int,
    ) -> int:
        """Accept one message and return its sequence; raises `MessageError`."""
        batch = self.open_batches.get(topic)
        if batch is not None and batch.limit <= 0:
            self.seal(topic, now_ns=now_ns)  # an interrupt kept it from going
            batch = None
        if batch is not None:
            end, following = batch.end, batch.next
            self._append(batch, value, key, timestamp_ns, headers)
            if self.group is None or len(batch.buffer) <= batch.limit or following == batch.first:
                self.batch_grew(topic, now_ns=now_ns)
                return batch.next - 1
            # It must fit a datagram, so this message begins the next one.
            batch.end, batch.next = end, following
            self.seal(topic, now_ns=now_ns)
        stream = self._streams.get(topic) or self._make_stream(topic)
        sequence = self.replay.next(topic)
        base_ns = wall_ns if timestamp_ns is None else check_timestamp(timestamp_ns)
        large = type(value) is bytes and len(value) >= self.config.frame_bytes // 2
        if large or now_ns - stream.sealed_ns >= self._gather_ns:
            limit = self.config.message_bytes_max
            frame = pack_alone(stream.prefix, sequence, base_ns, value, key, headers, limit)
            self._keep(stream, sequence, 1, frame, base_ns, now_ns)
            return sequence
        # The base is the time of messages that are given none, whatever this one's time is.
        batch = Batch(
            stream.prefix, sequence, wall_ns, now_ns, self._batch_bytes, self._take_buffer()
        )
        self._append(batch, value, key, timestamp_ns, headers)
        self.open_batches[topic] = batch
        self.batch_grew(topic, now_ns=now_ns)
        return sequence

    def publish_alone(
        self,
        topic: str,
        value: Any,
        key: str | None,
        timestamp_ns: int | None,
        headers: dict[str, Any] | None,
        now_ns: int,
        wall_ns: int,
    ) -> int:
        """Accept a message of an idle stream; -1 where `publish` is to be used instead.

        It is that part of `publish` which matters for latency, and the shortest way through it: in
        a process that was just woken each call costs ten times what it does in a loop. When the
        frame was sent, `note_beat` is to be called.
        """
        stream = self._streams.get(topic)
        if stream is None or now_ns - stream.sealed_ns < self._gather_ns:
            return -1
        if self.outbox or self.closing:
            return -1
        replay = self.replay
        sequence = replay.next(topic)
        base_ns = wall_ns if timestamp_ns is None else check_timestamp(timestamp_ns)
        limit = self.config.message_bytes_max
        frame = pack_alone(stream.prefix, sequence, base_ns, value, key, headers, limit)
        replay.append(topic, sequence, 1, frame, now_ns=now_ns, timestamp_ns_max=base_ns)
        self.outbox.append(frame)
        stream.sealed_ns = self.sealed_ns = now_ns
        return sequence

    def note_beat(self, topic: str, *, now_ns: int) -> None:
        """Put off the next heartbeat of a stream, behind `publish_alone`."""
        self._put_off_beat(self._streams[topic], now_ns)

    def hold(self, topic: str) -> None:
        """Accept nothing by `publish_alone` until the stream's next frame."""
        self._streams[topic].sealed_ns = 2**62

    def batch_grew(self, topic: str, *, now_ns: int) -> None:
        """Check the last message's size and seal the batch if it is full."""
        batch = self.open_batches[topic]
        if len(batch.buffer) >= batch.limit:
            # The time that sending takes is not idleness: whoever filled a frame will go on.
            self.seal(topic, now_ns=now_ns)
            self._streams[topic].sealed_ns = now_ns + _SENDING_NS

    def _append(self, batch: Batch, value: Any, key: Any, timestamp_ns: Any, headers: Any) -> None:
        try:
            limit = batch.limit
            _encode_into(value, batch.buffer, -1)
            if key is not None or timestamp_ns is not None or headers is not None:
                batch.add_columns(key, timestamp_ns, headers)
            end = len(batch.buffer)
            size = end - batch.end + limit - batch.limit
            check_size("message", size, self.config.message_bytes_max)
            batch.end, batch.next = end, batch.next + 1  # no call in between: see Batch
        except MessageError:
            batch.repair()
            raise
        except PACKING_ERRORS as error:
            batch.repair()
            raise packing_error("value", value, error) from error
        except BaseException:
            batch.repair()
            raise

    def publish_many(
        self,
        topic: str,
        values: Sequence[Any],
        keys: Sequence[str | None] | None,
        timestamps_ns: Sequence[int] | None,
        at: int,
        *,
        now_ns: int,
        wall_ns: int,
        count: int,
    ) -> int:
        """Accept `values[at:at + n]`, where n is at most `count` and one frame's; returns n.

        The shell calls it again until all are accepted, so that sending keeps pace.
        """
        stream = self._streams.get(topic) or self._make_stream(topic)
        self.seal(topic, now_ns=now_ns)
        if self.group is not None:
            return publish_datagrams(
                self, stream, values, keys, timestamps_ns, at, now_ns=now_ns, wall_ns=wall_ns
            )
        stop = min(len(values), at + count)
        part = values[at:stop]
        if type(part) is not list:
            part = list(part)
        part_keys = None if keys is None else [check_key(key) for key in keys[at:stop]]
        times = None if timestamps_ns is None else [*map(check_timestamp, timestamps_ns[at:stop])]
        sequence = self.replay.next(topic)
        frame_bytes = self._batch_bytes
        bytes_max = min(2 * self.config.frame_bytes, self.config.message_bytes_max)
        buffer = self._take_buffer()
        while True:
            frame, latest = pack_slice(
                stream.prefix, sequence, wall_ns, part, part_keys, times, buffer
            )
            if len(frame) <= bytes_max or len(part) == 1:
                break
            kept = max(1, len(part) * frame_bytes // len(frame))
            part, part_keys = part[:kept], part_keys and part_keys[:kept]
            times = times and times[:kept]
        if len(part) == 1:
            check_size("values", len(frame), self.config.message_bytes_max + 512)
        self._keep(stream, sequence, len(part), frame, latest, now_ns)
        self._give_back(buffer)
        return len(part)

    def seal(self, topic: str, *, now_ns: int) -> None:
        """Make a frame of the stream's open batch, if there is one.

        An interrupt anywhere in here loses nothing: the batch is forgotten last, and sealing it
        again skips what was done; a frame that went out twice is a duplicate to its subscribers.
        """
        batch = self.open_batches.get(topic)
        if batch is None:
            return
        batch.limit = 0  # nothing more goes in, even if an interrupt leaves it here
        if batch.count:
            frame, latest = batch.seal()
            self._keep(self._streams[topic], batch.first, batch.count, frame, latest, now_ns)
        del self.open_batches[topic]
        self._give_back(batch.buffer)

    def flush(self, *, now_ns: int) -> None:
        """Seal all open batches."""
        for topic in list(self.open_batches):
            self.seal(topic, now_ns=now_ns)

    def begin_close(self, *, now_ns: int) -> None:
        """Flush, and tell the subscribers that what they have not got they must ask for now."""
        self.flush(now_ns=now_ns)
        self.closing = True
        self.requests.forget_completions()
        self._closing_due_ns = now_ns

    def handle_timer(self, *, now_ns: int) -> None:
        """Flush what has lingered, send heartbeats that are due, forget what is too old."""
        for topic in self.lingering(now_ns=now_ns):
            self.seal(topic, now_ns=now_ns)
        self.replay.expire(now_ns=now_ns)
        self.requests.expire(now_ns=now_ns)
        while self._beats and self._beats[0][0] <= now_ns:
            deadline_ns, topic = heapq.heappop(self._beats)
            stream = self._streams[topic]
            if deadline_ns != stream.beat_ns:
                continue  # an entry that an earlier one took the place of
            if stream.heartbeat.due(now_ns=now_ns):
                self._send_heartbeat(stream, now_ns)
            self._schedule_beat(stream)
        if self.closing and now_ns >= self._closing_due_ns:
            self._closing_due_ns = now_ns + 50 * _MS
            for stream in self._streams.values():
                self._send_heartbeat(stream, now_ns)
            flags = wire.FLAG_CLOSING
            if self.group is not None:
                farewell = self.group.announcement(flags=flags, now_ns=now_ns)
            else:
                farewell = wire.control_frame(
                    Kind.WELCOME, self.session, self._welcome, flags=flags
                )
            self.outbox.append(farewell)
        if self.group is not None and not self.closing:
            self.group.handle_timer(now_ns=now_ns)

    def lingering(self, *, now_ns: int) -> list[str]:
        """Return the topics whose open batch has waited for long enough; needs no lock."""
        oldest_ns = now_ns - self._linger_ns
        batches = list(self.open_batches.items())
        return [topic for topic, batch in batches if batch.opened_ns <= oldest_ns]

    def next_deadline_ns(self) -> int | None:
        """Return when `handle_timer` has something to do, or None."""
        deadlines = [batch.opened_ns + self._linger_ns for batch in self.open_batches.values()]
        if self._beats:
            deadlines.append(self._beats[0][0])
        if self.closing:
            deadlines.append(self._closing_due_ns)
        elif self.group is not None:
            deadlines.append(self.group.announce_due_ns)
        expiry = self.replay.next_deadline_ns()
        if expiry is not None:
            deadlines.append(expiry)
        return min(deadlines, default=None)

    def receive_request(self, requester: bytes, data: bytes, *, now_ns: int) -> None:
        """Take a frame that came over the recovery channel; what is malformed is counted."""
        self.requests.receive(requester, data, now_ns=now_ns)

    def next_reply(self, *, now_ns: int) -> Reply | None:
        """Return what to send next over the recovery channel; see `RequestDesk`."""
        return self.requests.next_reply(now_ns=now_ns)

    def frames_to_send(self) -> list[bytes]:
        """Take out the frames for the data path. The shell uses `outbox` instead."""
        frames = list(self.outbox)
        self.outbox.clear()
        return frames

    def _keep(
        self,
        stream: PublisherStream,
        sequence: int,
        count: int,
        frame: bytes,
        latest_ns: int,
        now_ns: int,
    ) -> None:
        topic, replay = stream.topic, self.replay
        if replay.next(topic) <= sequence:
            replay.append(topic, sequence, count, frame, now_ns=now_ns, timestamp_ns_max=latest_ns)
        self.outbox.append(frame)
        stream.sealed_ns = self.sealed_ns = now_ns
        self._put_off_beat(stream, now_ns)

    def _put_off_beat(self, stream: PublisherStream, now_ns: int) -> None:
        heartbeat = stream.heartbeat
        heartbeat.data_sent(now_ns=now_ns)
        if stream.beat_ns > heartbeat.next_deadline_ns():
            self._schedule_beat(stream)

    def _take_buffer(self) -> bytearray:
        buffers = self._buffers
        return buffers.pop() if buffers else bytearray()

    def _give_back(self, buffer: bytearray) -> None:
        """Keep a buffer that nobody uses any more; one that had to grow far is let go."""
        buffers = self._buffers
        if len(buffers) < _BUFFERS_MAX and len(buffer) <= 2 * self.config.frame_bytes:
            buffers.append(buffer)

    def _schedule_beat(self, stream: PublisherStream) -> None:
        stream.beat_ns = stream.heartbeat.next_deadline_ns()
        heapq.heappush(self._beats, (stream.beat_ns, stream.topic))

    def _send_heartbeat(self, stream: PublisherStream, now_ns: int) -> None:
        earliest, following = self.head(stream.topic)
        frame = wire.control_frame(
            Kind.HEARTBEAT,
            self.session,
            control.Heartbeat(earliest),
            sequence=following,
            topic=stream.topic_bytes,
        )
        self.outbox.append(frame)
        self.heartbeats_sent += 1
        stream.heartbeat.sent(now_ns=now_ns)

    def _make_stream(self, topic: str) -> PublisherStream:
        topic_bytes = check_topic(topic)
        # A stream of which the replay buffer knows nothing could not even be numbered.
        limit = min(self.config.streams_max, self.config.replay.streams_max)
        if len(self._streams) >= limit:
            raise ConfigError("topics in use", f"at most streams_max = {limit}", topic)
        heartbeat = HeartbeatSchedule(self.config.heartbeat)
        stream = PublisherStream(topic, topic_bytes, self.session, heartbeat)
        self._streams[topic] = stream
        return stream
