"""The publisher's state machine: messages and requests in, frames and replies out. No I/O.

::

    publish ──▶ open batch ──seal──▶ replay buffer + outbox ──▶ the data path
    NACK ──▶ retransmit scheduler ──▶ next_reply ──▶ the recovery channel of one requester
    PROBE ──▶ control queue ──▶ ECHO over the data path ──▶ JOINED: the subscriber is counted
"""

import math
from collections.abc import Sequence
from typing import Any

from p2pmsg import codec, control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import ConfigError, LogFailedError, MessageError
from p2pmsg.native import pack_lone
from p2pmsg.publisher.batch import PACE_MAX, Batch, BufferPool, OpenBatches
from p2pmsg.publisher.gathering import GATHER_AFTER, Gathering
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.packing import (
    PACKING_ERRORS,
    check_key,
    check_size,
    check_timestamp,
    fill_slice,
    is_of_packing,
    lone_frame,
    packing_error,
)
from p2pmsg.publisher.served import (
    PYTHON_MEMORY,
    FrameMemory,
    Multicast,
    Packed,
    PublisherStream,
    ServedSession,
)
from p2pmsg.publisher.serving import ServingCore
from p2pmsg.publisher.values import ValueRules
from p2pmsg.topics import check_topic
from p2pmsg.wire import Kind
from recovery import Loss, LossReason, PartedFrame
from recovery.checks import to_ns
from recovery.heartbeat import INTERVAL_MAX_S, PER_SECOND_MAX
from recovery.loss import LossRanges

_MS = 1_000_000
_PACE_BYTES = 1024
_ANNOUNCE_NS = 200 * _MS
"""How often a multicast's session is announced to those who have not joined it yet. A newcomer
waits half of that on average; 5 small datagrams a second cost nothing."""
"""So much a stream's first frames are taken to gather; a burst says little of what comes next."""
_LARGE_BYTES = 32 * 1024  # from here on a frame of its own costs less than copying into a batch
_EXPIRE_NS = 10 * _MS
"""How often it is looked which frames and subscribers are too old."""
LOG_RETRY_NS = 100 * _MS
"""How long what the log did not take waits until it is tried again by itself."""


class PublisherCore(ServingCore[ServedSession]):
    """The state machine. Not thread-safe: the shell holds a lock around every call.

    Attributes:
        session, incarnation: of the publisher's own session, `own`.
        open_batches: the batch of each stream that gathers one; the shell adds to it directly.
        streams: what is known of each stream, by topic; none is ever removed.
        multicast: what it publishes to, by `use_multicast`; None elsewhere.
        gathering: decides which messages wait for one another.
        welcome_body: what its welcome says.

    """

    def __init__(
        self,
        *,
        name: str,
        session: int,
        recovery: str,
        config: PublisherConfig,
        now_ns: int,
        log: PublisherLog | None = None,
        memory: FrameMemory = PYTHON_MEMORY,
        incarnation: int = 0,
        gather_after: int = GATHER_AFTER,
        heartbeats_per_s: float = PER_SECOND_MAX,
    ) -> None:
        super().__init__(name, config, log, memory, heartbeats_per_s)
        self.session, self.incarnation = session, incarnation
        self.welcome_body = control.Welcome(
            name,
            recovery,
            self.stall_ms,
            incarnation=incarnation,
            message_bytes_max=config.announced_bytes_max,
        )
        self.welcome = wire.control_frame(Kind.WELCOME, session, self.welcome_body)
        self.own = self.sessions[session] = ServedSession(
            session, name, self.welcome_body, self.replay, log,
            incarnation=incarnation, floor=0 if log is None else log.floor,
        )  # fmt: skip
        self.streams: dict[str, PublisherStream] = self.own.streams
        self.open_batches = OpenBatches()
        self.multicast: Multicast | None = None
        self._started_ns = self._announce_due_ns = now_ns
        self._expire_due_ns = now_ns
        self._called_inside_ns = 0
        self._buffers = BufferPool(2 * config.bulk_bytes)
        self.gathering = Gathering(config, gather_after)
        # So that the fast path need not look at the size of each message.
        self._batch_bytes = config.full_bytes
        self._values = ValueRules(config.exact_types, config.enc_hook)
        self._wall_offset_ns = 0
        for topic in [] if log is None else log.topics():
            self.heartbeats.put_off(self._make_stream(topic), now_ns)

    def use_multicast(self, multicast: Multicast) -> None:
        """Publish to a multicast, in frames that fit a datagram; called before anything else."""
        self.multicast = self.requests.multicast = multicast
        self.own.hide_unsent(self.outbox)
        self.heartbeats.per_second_max = math.inf  # datagrams get lost
        self.heartbeats.busy_ns = to_ns(INTERVAL_MAX_S)  # or only the large do
        self._batch_bytes = min(self._batch_bytes, multicast.frame_bytes)

    def resync(self) -> None:
        """Go on after an exception at any line; a message is in where its batch counts it."""
        for batch in self.open_batches.values():
            batch.repair()
        if self.log is not None:
            self.log.resync(self.open_batches.values())
        for topic, stream in self.streams.items():
            following = self.replay.next(topic)
            if self.log is not None:  # it may have a frame that the buffer has not
                following = max(following, self.log.next(topic))
            stream.next = stream.end = max(stream.next, following)
        super().resync()

    def abandon(self) -> None:
        """Forget what waits: in a forked child it is the parent's."""
        super().abandon()
        self.open_batches.clear()

    @property
    def published(self) -> int:
        """How many messages were accepted, over all streams."""
        return sum(stream.end for stream in self.streams.values()) + self.pending

    def accepted(self, topic: str) -> int:
        """Return the sequence after the last message of a topic that was accepted."""
        stream, batch = self.streams.get(topic), self.open_batches.get(topic)
        following = self.own.floor if stream is None else stream.end
        return following if batch is None else max(following, batch.next)

    @property
    def pending(self) -> int:
        """How many messages are in open batches."""
        return sum(batch.count for batch in list(self.open_batches.values()))

    def heads(self) -> dict[str, tuple[int, int]]:
        """Return (earliest kept, next) by topic, of what was sealed."""
        return self.own.heads()

    def closing_frame(self, served: ServedSession, *, now_ns: int) -> bytes:
        """Return the frame that says that the session is being closed."""
        return self._announcement(wire.FLAG_CLOSING, now_ns)

    def _announcement(self, flags: int, now_ns: int) -> bytes:
        """Return the welcome; to a multicast it says who is there and since when."""
        body = self.welcome_body
        if self.multicast is not None:
            age_ms = (now_ns - self._started_ns) / _MS
            body = control.Welcome(
                self.name, body.recovery, body.stall_ms, self.joined, age_ms, body.incarnation,
                body.message_bytes_max,
            )  # fmt: skip
            flags |= self.multicast.welcome_flags
        return wire.control_frame(Kind.WELCOME, self.session, body, flags=flags)

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
        """Accept one message and return its sequence; raises `MessageError`, `LogFailedError`."""
        self._called_inside_ns = self.gathering.inside_ns
        stream = self.streams.get(topic) or self._make_stream(topic)
        ready = self._values.prepared(stream, value)
        if stream.needs_exact and (batch := self.open_batches.get(topic)) is not None:
            batch.encode_into = self._values.encode_into(stream, now_ns)
        columns = key, timestamp_ns, headers
        try:
            return self._publish(topic, ready, *columns, now_ns=now_ns, wall_ns=wall_ns)
        except MessageError as error:
            again = self._values.after(error, value)
        return self._publish(topic, again, *columns, now_ns=now_ns, wall_ns=wall_ns)

    def _publish(
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
        self._wall_offset_ns = wall_ns - now_ns
        batch = sealed = self.open_batches.get(topic)
        if batch is not None and batch.full_bytes <= 0:
            self.seal(topic, now_ns=now_ns)  # what kept it from going may be over
            batch = sealed = None
        if batch is not None:
            end = batch.end
            if self._put(batch, value, key, timestamp_ns, headers):
                fits = self.multicast is None or batch.end <= batch.full_bytes
                if fits or batch.count == 1:
                    self._seal_if_full(batch, topic, end, now_ns)
                    return batch.next - 1
                # It must fit a datagram, so this message begins the next one, or is one.
                batch.take_back(end)
                self.seal(topic, now_ns=now_ns)
            else:
                self.seal(topic, now_ns=now_ns)
                self.gathering.on_filled(self.streams[topic], batch, now_ns)
        stream = self.streams[topic]
        sequence = stream.next
        base_ns = wall_ns if timestamp_ns is None else check_timestamp(timestamp_ns)
        large = type(value) is bytes and len(value) >= min(self._batch_bytes // 2, _LARGE_BYTES)
        waits = self._syncs_first or not self.gathering.goes_alone(stream, sealed, now_ns)
        if waits and not large:
            batch = self._begin_batch(stream, sequence, wall_ns, now_ns)
            if batch is not None:
                batch.own_ns = now_ns - self.gathering.inside_ns
                end = batch.end
                try:
                    if self._put(batch, value, key, timestamp_ns, headers):
                        self.open_batches[topic] = batch
                finally:
                    if self.open_batches.get(topic) is not batch:
                        self._end_batch(batch)
                if topic in self.open_batches:
                    self._seal_if_full(batch, topic, end, now_ns)
                    return sequence
        limit = self.config.message_bytes_max
        made = lone_frame(stream.prefix, sequence, base_ns, value, key, headers, limit)
        self._keep_own(stream, sequence, 1, *made, base_ns, now_ns)
        return sequence

    def _begin_batch(
        self, stream: PublisherStream, sequence: int, wall_ns: int, now_ns: int
    ) -> Batch | None:
        """Begin to gather; None where a message must be written at once, since no slot is free."""
        # The base is the time of messages that are given none, whatever that of the first one is.
        encode_into = self._values.encode_into(stream, now_ns)
        if self.log is None or not self.log.keeps_batches:
            # What waits for the disk leaves with the next commit, written by no other caller.
            pace = PACE_MAX if self._syncs_first else stream.pace
            return Batch(
                stream.prefix, sequence, wall_ns, now_ns, self._batch_bytes, self._buffers.take(),
                pace, encode_into,
            )  # fmt: skip
        slot = self.log.take_slot()
        if slot is None:
            return None
        batch = Batch(
            stream.prefix, sequence, wall_ns, now_ns, min(self._batch_bytes, slot.bytes_max),
            self._buffers.take(), stream.pace, encode_into, slot,
        )  # fmt: skip
        slot.begin(self.session, stream.topic_bytes, sequence, wall_ns, batch.end)
        return batch

    def _end_batch(self, batch: Batch) -> None:
        """Forget a batch whose messages are in a frame, or that has none."""
        if batch.slot is not None and self.log is not None:
            self.log.give_back_slot(batch.slot)
        self._buffers.give_back(batch.buffer)

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
        frame was sent, `on_alone` is to be called.
        """
        stream, log = self.streams.get(topic), self.log
        if stream is None or not self.gathering.goes_alone(stream, None, now_ns):
            return -1
        if self.outbox or self.closing or self._syncs_first or topic in self.open_batches:
            return -1
        sequence = stream.next
        base_ns = wall_ns if timestamp_ns is None else check_timestamp(timestamp_ns)
        prefix, limit = stream.prefix, self.config.message_bytes_max
        packed = None
        if headers is None:
            packed = pack_lone(prefix, sequence, base_ns, value, key, limit)
        if packed is None:
            try:
                ready = self._values.prepared(stream, value)
                frame, kept = lone_frame(prefix, sequence, base_ns, ready, key, headers, limit)
            except MessageError as error:
                if is_of_packing(error):
                    return -1  # `publish` looks at the parts
                raise
        else:
            frame = kept = packed
        if log is not None:
            log.append(topic, sequence, 1, frame, base_ns, wall_ns)
        self.replay.append(topic, sequence, 1, kept, now_ns=now_ns, timestamp_ns_max=base_ns)
        self.outbox.append(frame)
        stream.next = stream.end = sequence + 1
        self.sealed_ns = now_ns
        self.gathering.on_made(stream, int(len(frame) < _LARGE_BYTES), now_ns, now_ns)
        return sequence

    def on_published(self, began_ns: int, ended_ns: int, *, gone: bool) -> None:
        """Note how long a call of `publish` took, and whether all had left at its end."""
        made = gone and self.sealed_ns == began_ns
        self.gathering.on_call(self._called_inside_ns, began_ns, ended_ns, made=made)

    def on_alone(self, topic: str, began_ns: int, ended_ns: int) -> None:
        """Put off the next heartbeat, and note how long it took; after `publish_alone`."""
        self.heartbeats.put_off(self.streams[topic], began_ns)
        self.gathering.on_alone(began_ns, ended_ns, self.control.connections)

    def on_sent(self, began_ns: int, ended_ns: int) -> None:
        """Note when frames were sent."""
        self.gathering.on_sent(began_ns, ended_ns, self.control.connections)

    def hold(self, topic: str) -> None:
        """Accept nothing by `publish_alone` until the stream's next frame."""
        stream = self.streams[topic]
        stream.made_ns = stream.next_ns = 2**62

    def _seal_if_full(self, batch: Batch, topic: str, end: int, now_ns: int) -> None:
        """Seal the batch if its last message, from `end` on, has filled it, or it has lingered."""
        if batch.end >= batch.limit and not self.gathering.goes_on(batch, now_ns):
            is_full = batch.end >= batch.full_bytes
            try:
                self.seal(topic, now_ns=now_ns)
            except LogFailedError:
                # This one is refused; those before it were accepted, and go when the log is good.
                batch.take_back(end)
                raise
            if is_full:
                self.gathering.on_filled(self.streams[topic], batch, now_ns)

    def _put(self, batch: Batch, value: Any, key: Any, timestamp_ns: Any, headers: Any) -> bool:
        """Add a message; False where the batch has no space for it."""
        bytes_max = self.config.message_bytes_max
        try:
            return batch.put(value, key, timestamp_ns, headers, bytes_max=bytes_max) >= 0
        except MessageError:
            raise
        except PACKING_ERRORS as error:
            raise packing_error("value", value, error) from error

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
        self._wall_offset_ns = wall_ns - now_ns
        stream = self.streams.get(topic) or self._make_stream(topic)
        self.seal(topic, now_ns=now_ns)
        if self.multicast is not None:  # what it does not take would be looked at for nothing
            count = min(count, self.multicast.values_max(stream))
        stop = at + count
        part = values[at:stop] if type(values) is list else list(values[at:stop])
        keys = None if keys is None else [check_key(key) for key in keys[at:stop]]
        if timestamps_ns is not None:
            timestamps_ns = [*map(check_timestamp, timestamps_ns[at:stop])]
        columns = keys, timestamps_ns, now_ns, wall_ns
        packed: bytes | None = None
        if not self._values.packs_as_it_is(part):
            packed = None if self.multicast is not None else codec.packed_if_plain(part)
            if packed is None:
                part = self._values.prepared_each(part, at)
        try:
            return self._publish_many(stream, part, packed, *columns)
        except MessageError as error:
            if not is_of_packing(error):
                raise
        return self._publish_many(stream, self._values.prepared_each(part, at), None, *columns)

    def _publish_many(
        self,
        stream: PublisherStream,
        part: list[Any],
        packed: bytes | None,
        keys: list[str | None] | None,
        times: list[int] | None,
        now_ns: int,
        wall_ns: int,
    ) -> int:
        """Make a frame of the first values of `part`; `packed` is `part` packed, if it is known."""
        if self.multicast is not None:
            return self._publish_datagrams(
                self.multicast, stream, part, keys, times, now_ns, wall_ns
            )
        sequence = stream.next
        bulk_bytes, bytes_max = self.config.bulk_bytes, self.config.message_bytes_max
        buffer = self._buffers.take()
        while True:
            value: Any = part if packed is None else codec.Raw(packed)
            latest = fill_slice(
                stream.prefix, sequence, wall_ns, value, keys, times, buffer, len(part)
            )
            size, taken = len(buffer), len(part)
            if size <= min(2 * bulk_bytes, bytes_max) or taken == 1:
                break
            kept = max(1, taken * bulk_bytes // size)  # what should make a frame of that size
            part, keys, times = part[:kept], keys and keys[:kept], times and times[:kept]
            packed = packed and codec.packed_if_plain(part)
        if taken == 1:
            check_size("values", size, bytes_max + 512)
        frame = self.memory.make(buffer)
        self._keep_own(stream, sequence, taken, frame, frame, latest, now_ns)
        self._buffers.give_back(buffer)
        return taken

    def _publish_datagrams(
        self,
        multicast: Multicast,
        stream: PublisherStream,
        values: list[Any],
        keys: list[str | None] | None,
        times: list[int] | None,
        now_ns: int,
        wall_ns: int,
    ) -> int:
        sequence = stream.next
        buffer = self._buffers.take()
        made = multicast.pack(stream, sequence, values, keys, times, wall_ns=wall_ns, buffer=buffer)
        self._buffers.give_back(buffer)
        taken = made[-1][0] + made[-1][1] - sequence
        if len(made) == taken:  # each has one message: they may be large
            for _, _, frame, _ in made:
                check_size("values", len(frame), self.config.message_bytes_max + 512)
        if self.log is not None:
            return self._keep_logged(stream, made, now_ns)
        self.replay.append_many(stream.topic, made, now_ns=now_ns)
        self.outbox.extend([frame for _, _, frame, _ in made])
        stream.next = stream.end = sequence + taken
        self.sealed_ns = now_ns
        self.heartbeats.put_off(stream, now_ns)
        self.gathering.on_made(stream, taken, now_ns, now_ns)
        return taken

    def _keep_logged(self, stream: PublisherStream, made: list[Packed], now_ns: int) -> int:
        """Keep frames that are in the log before they go out; returns how many messages it took."""
        taken = 0
        for sequence, count, frame, latest_ns in made:
            try:
                self._keep_own(stream, sequence, count, frame, frame, latest_ns, now_ns)
            except LogFailedError:
                if not taken:
                    raise
                break  # those before it were accepted; the next call will say it
            taken += count
        return taken

    def seal(self, topic: str, *, now_ns: int) -> None:
        """Make a frame of the stream's open batch, if there is one.

        An interrupt anywhere in here loses nothing: the batch is forgotten last, and sealing it
        again skips what was done; a frame that went out twice is a duplicate to its subscribers.
        """
        batch = self.open_batches.get(topic)
        if batch is None:
            return
        batch.beyond = batch.limit = 0  # nothing more goes in, even if an interrupt leaves it here
        if batch.count:
            stream = self.streams[topic]
            stream.pace = min(batch.pace, 2 * stream.pace + _PACE_BYTES)
            self._values.on_frame(stream, batch, now_ns)
            data, latest = batch.seal()
            frame = self.memory.make(data)
            kept = frame, frame, latest, now_ns, batch.opened_ns
            self._keep_own(stream, batch.first, batch.count, *kept)
        del self.open_batches[topic]
        self._end_batch(batch)

    def seal_if_possible(self, topic: str, *, now_ns: int) -> None:
        """Seal where no caller waits: what the log does not take is tried again later."""
        try:
            self.seal(topic, now_ns=now_ns)
        except LogFailedError:
            batch = self.open_batches.get(topic)
            if batch is not None:
                batch.opened_ns = now_ns + LOG_RETRY_NS

    def flush(self, *, now_ns: int) -> None:
        """Seal all open batches."""
        for topic in list(self.open_batches):
            self.seal(topic, now_ns=now_ns)

    def begin_close(self, *, now_ns: int) -> None:
        """Flush, and announce to subscribers that what they lack they must ask for now."""
        for topic in list(self.open_batches):
            self.seal_if_possible(topic, now_ns=now_ns)
        super().begin_close(now_ns=now_ns)

    def handle_timer(self, *, now_ns: int) -> None:
        """Flush what has lingered, send heartbeats that are due, forget what is too old."""
        for topic in self.lingering(now_ns=now_ns):
            self.seal_if_possible(topic, now_ns=now_ns)
        if now_ns >= self._expire_due_ns:  # it looks at each subscriber
            self._expire_due_ns = now_ns + _EXPIRE_NS
            self.replay.expire(now_ns=now_ns)
            self.requests.expire(now_ns=now_ns)
        self._say_heads(now_ns)
        if self.multicast is not None:
            for requester, frame in self.multicast.handle_timer(now_ns=now_ns):
                self.requests.send(requester, frame)
        if self.multicast is None or self.closing or now_ns < self._announce_due_ns:
            return
        if not self.control.is_full:
            self._announce_due_ns = now_ns + _ANNOUNCE_NS
            self.control.notices.append(self._announcement(0, now_ns))

    def lingering(self, *, now_ns: int) -> list[str]:
        """Return the topics whose open batch has waited for long enough; needs no lock."""
        batches = list(self.open_batches.items())
        return [topic for topic, batch in batches if now_ns >= self.gathering.due_ns(batch)]

    def next_deadline_ns(self, batches_ns: int | None = None) -> int | None:
        """Return when `handle_timer` has something to do, or None.

        Args:
            batches_ns: when it is called for open batches. Default: when the first of them has
                waited for long enough.

        """
        deadlines = [self.heartbeats.next_deadline_ns()]
        if self.open_batches:
            all_batches = self.open_batches.values()
            first_ns = batches_ns or min(map(self.gathering.due_ns, all_batches))
            deadlines.append(first_ns)
        expires_ns = self.replay.next_deadline_ns()
        if expires_ns is not None:
            deadlines.append(max(expires_ns, self._expire_due_ns))
        if self.multicast is not None:
            deadlines.append(self.multicast.next_deadline_ns())
            if not self.closing:
                deadlines.append(self._announce_due_ns)
        return min((due_ns for due_ns in deadlines if due_ns is not None), default=None)

    def _keep_own(
        self,
        stream: PublisherStream,
        sequence: int,
        count: int,
        frame: bytes | memoryview,
        kept: bytes | memoryview | PartedFrame,
        latest_ns: int,
        now_ns: int,
        since_ns: int | None = None,
    ) -> None:
        """Keep a frame, and let it go; its messages came from `since_ns` on. Default: now."""
        wall_ns = now_ns + self._wall_offset_ns
        self._keep(stream, sequence, count, frame, kept, latest_ns, now_ns, wall_ns)
        paced = 0 if count == 1 and len(frame) >= _LARGE_BYTES else count
        self.gathering.on_made(stream, paced, now_ns, now_ns if since_ns is None else since_ns)

    def _make_stream(self, topic: str) -> PublisherStream:
        topic_bytes = check_topic(topic)
        limit = self.config.streams_max
        if len(self.streams) >= limit:
            raise ConfigError("topics in use", f"at most streams_max = {limit}", topic)
        following = 0 if self.log is None else self.log.next(topic)
        stream = PublisherStream(self.own, topic, topic_bytes, following)
        if self.log is not None:
            self.replay.begin(topic, following)
            skips = self.log.skips(topic)
            if skips:
                stream.losses = LossRanges()
            for start, stop in skips:
                stream.losses.add(Loss(start, stop, LossReason.CRASH))
        self.streams[topic] = stream
        return stream
