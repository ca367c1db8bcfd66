"""The relay's state machine: others' frames in, the same frames and answers out. No I/O."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from p2pmsg import codec, control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import MessageError
from p2pmsg.publisher.cutting import part_of
from p2pmsg.publisher.log import PublisherLog
from p2pmsg.publisher.served import PYTHON_MEMORY, FrameMemory
from p2pmsg.publisher.serving import ServingCore
from p2pmsg.relay.metadata import RelayMetadata
from p2pmsg.relay.requests import RelayRequests
from p2pmsg.relay.session import LOSSES_MAX, RelayedSession, RelayedStream
from p2pmsg.topics import check_topic
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Delivery, Loss, LossReason

SESSIONS_MAX: Final = 4096
"""Sessions served at once. Those that nobody publishes any more and of which nothing is kept make
space; a further one is refused and counted."""
_TIDY_NS: Final = 1_000_000_000
"""How often is looked for sessions that may be forgotten."""
PULSE_NS: Final = 1_000_000_000
"""How often a relay says that it is there, in addition to what it relays; at once when it has other
sessions: the frame's sequence counts these changes."""
_Raw = codec.Raw
_decode_times: Final = codec.make_decoder(tuple[_Raw, list[int] | None, _Raw, _Raw]).decode
_ERRORS: Final = (codec.CodecError, ValueError, RecursionError, OverflowError)


class RelayCore(ServingCore[RelayedSession]):
    """The state machine. Not thread-safe: the shell holds a lock around every call.

    Args:
        name: of the relay, for people.
        relay: its id, 64 bits; that of its log, if it has one.
        recovery: its recovery endpoint.
        config: bounds of the replay buffer, of queues and of answers.
        now_ns: monotonic time.
        log: the local log, or None.
        metadata: what is kept next to the log; None without one.
        memory: as for `PublisherCore`.
        topics: what it takes, topics and prefixes. Default: all.

    Attributes:
        path: the relays from which anything comes, this one first.
        version: how often its sessions changed.
        cut: streams whose end the log has lost, by (session, topic), until it came again, or is
            given up: see `give_up`.
        sessions_refused, streams_refused: what was not taken on, because a bound was met.
        invalid: frames that turned out to be malformed, by reason.

    """

    def __init__(
        self,
        *,
        name: str,
        relay: int,
        recovery: str,
        config: PublisherConfig,
        now_ns: int,
        log: PublisherLog | None = None,
        metadata: RelayMetadata | None = None,
        memory: FrameMemory = PYTHON_MEMORY,
        topics: Sequence[str] = (),
    ) -> None:
        self.id, self.recovery, self._topics = relay, recovery, topics
        super().__init__(name, config, log, memory, math.inf)
        self.metadata = metadata
        self.path: list[int] = [relay]
        self.sessions_refused = self.streams_refused = 0
        self.invalid: Counter[str] = Counter()
        self._stream_count = 0
        self._tidy_ns = 0
        self.version = 0
        self.cut: dict[tuple[int, str], RelayedStream] = {}
        self.settled = False
        self._pulse_ns = now_ns
        self.endpoint_hash = control.endpoint_hash_of(recovery)
        body = control.Welcome(name, recovery, self.stall_ms)
        self.welcome = wire.control_frame(Kind.WELCOME, relay, body, flags=wire.FLAG_RELAY)
        self._restore(now_ns)

    def _make_requests(self) -> RelayRequests:
        return RelayRequests(
            self.sessions, self.control, self.config, self.id, self.sessions_page, self._topics
        )

    def _restore(self, now_ns: int) -> None:
        """Take up what the log has, and what it has lost."""
        log, metadata = self.log, self.metadata
        if log is None or metadata is None:
            return
        for session, topic in log.streams():
            served = self.open_session(session, *metadata.sessions.get(session, ("", 1)))
            if served is None:
                continue
            served.is_live = False
            end = following = log.next(topic, session)
            losses = metadata.losses.pop((session, topic), [])
            if log.earliest(topic, session) is not None:  # else retention may have deleted it
                end = max(following, metadata.heads.get((session, topic), 0))
                for loss in losses:  # what was lost after the last message is in no log
                    if loss.start <= following < loss.stop:
                        following = loss.stop
            stream = self.open_stream(session, topic, following, now_ns=now_ns)
            if stream is None:
                continue
            if following < end:
                stream.end = end
                self.cut[session, topic] = stream
            for loss in losses:
                if loss.stop <= following and not stream.losses.overlap_count(
                    loss.start, loss.stop
                ):
                    stream.losses.add(loss)

    def open_session(self, session: int, name: str, hops: int) -> RelayedSession | None:
        """Serve a session from now on; None where there are too many."""
        served = self.sessions.get(session)
        if served is None:
            if len(self.sessions) >= SESSIONS_MAX and not self._tidy(1):
                self.sessions_refused += 1
                return None
            welcome = control.Welcome(name, self.recovery, self.stall_ms)
            served = self.sessions[session] = RelayedSession(
                session, name, hops, welcome, self.replay, self.log
            )
            served.closing = self.closing
        served.is_live = True
        served.name, served.hops = name, min(hops, control.PATH_MAX)
        self._changed()
        return served

    def _changed(self) -> None:
        """Say with the next pulse, which is due now, that there are other sessions."""
        self.version += 1
        self._pulse_ns = 0
        if self.metadata is not None:
            self.metadata.on_change()

    def open_stream(
        self, session: int, topic: str, start: int, *, now_ns: int
    ) -> RelayedStream | None:
        """Serve a stream that begins here at `start`; None where there are too many."""
        served = self.sessions.get(session)
        if served is None:
            return None
        stream = served.streams.get(topic)
        if stream is not None:
            return stream
        if self._stream_count >= self.config.streams_max:
            self.streams_refused += 1
            return None
        try:
            topic_bytes = check_topic(topic)
        except MessageError:
            self.invalid["topic"] += 1
            return None
        stream = served.streams[topic] = RelayedStream(served, topic, topic_bytes, start)
        self._stream_count += 1
        self.heartbeats.put_off(stream, now_ns)
        return stream

    def next(self, session: int, topic: str) -> int | None:
        """Return where a stream goes on here; None where it is unknown.

        Where the log has lost its end, that is before what others have got from here.
        """
        served = self.sessions.get(session)
        stream = None if served is None else served.streams.get(topic)
        return None if stream is None else stream.next

    def take(self, session: int, delivery: Delivery[Frame], *, now_ns: int, wall_ns: int) -> bool:
        """Keep and republish what came next of a stream; False where it is malformed.

        `LogFailedError` where the log did not take it; it may be given again.
        """
        frame = delivery.item
        served, topic = self.sessions.get(session), frame.topic
        stream = None if served is None else served.streams.get(topic)
        if served is None or stream is None:
            return True  # refused at a bound, and counted there
        stop = delivery.sequence + delivery.count
        start = max(delivery.sequence, stream.next)
        if start >= stop:
            return True
        try:
            if stop - start < frame.count:
                frame = part_of(frame, start - frame.sequence, stop - start)
            latest_ns = newest_ns(frame)
        except FrameError as error:
            self.invalid[str(error)] += 1
            return False
        kept = self.memory.make(frame.data)
        self._keep(stream, start, stop - start, kept, kept, latest_ns, now_ns, wall_ns)
        self._advance(stream, stop)
        stream.received += stop - start
        return True

    def _advance(self, stream: RelayedStream, following: int) -> None:
        """Note that everything before `following` came, or is lost."""
        stream.next = following
        stream.end = max(stream.end, following)
        if self.metadata is not None:
            self.metadata.on_move()

    def lose(self, session: int, topic: str, loss: Loss, *, now_ns: int) -> None:
        """Note that a range did not reach this relay, and never will."""
        served = self.sessions.get(session)
        stream = None if served is None else served.streams.get(topic)
        if served is None or stream is None or loss.stop <= stream.next:
            return
        loss = Loss(max(loss.start, stream.next), loss.stop, loss.reason)
        self._advance(stream, loss.stop)
        stream.lost += loss.count
        stream.losses.add(loss)
        if len(stream.losses) > LOSSES_MAX:
            stream.losses.forget_first()
        if self.metadata is not None:
            self.metadata.on_change()
        self.heartbeats.put_off(stream, now_ns)

    def give_up(self, session: int, topic: str, *, now_ns: int) -> None:
        """Report lost what only the log of a former incarnation had of a stream."""
        stream = self.cut.pop((session, topic), None)
        if stream is not None:
            gone = Loss(stream.next, stream.end, LossReason.CRASH)
            self.lose(session, topic, gone, now_ns=now_ns)

    def set_path(self, upstream: Iterable[int]) -> None:
        """Take from which relays the upstreams get anything."""
        others = [relay for relay in dict.fromkeys(upstream) if relay != self.id]
        self.path = [self.id, *others[: control.PATH_MAX - 1]]

    def handle_timer(self, *, now_ns: int) -> None:
        """Send heartbeats that are due, forget what is too old."""
        self.replay.expire(now_ns=now_ns)
        self._say_heads(now_ns)
        if now_ns >= self._tidy_ns:
            self._tidy_ns = now_ns + _TIDY_NS
            self.requests.expire(now_ns=now_ns)
            self._tidy(len(self.sessions))
        if now_ns >= self._pulse_ns and not self.control.is_full:
            self._pulse_ns = now_ns + PULSE_NS
            body = control.Heartbeat(0, self.endpoint_hash)
            self.control.notices.append(
                wire.control_frame(Kind.HEARTBEAT, self.id, body, sequence=self.version)
            )

    def next_deadline_ns(self) -> int:
        """Return when `handle_timer` has something to do."""
        deadlines = [self.heartbeats.next_deadline_ns(), self.replay.next_deadline_ns()]
        return min([self._pulse_ns, *(due_ns for due_ns in deadlines if due_ns is not None)])

    def sessions_page(self, at: int, carries: list[str]) -> bytes:
        """Return a page of the list of sessions, from the one with that index on."""
        entries = [
            control.SessionEntry(served.session, served.name, served.hops)
            for served in self.sessions.values()
            if served.hops < control.PATH_MAX or served.hops == 1
        ]
        stop = at + control.SESSIONS_PER_PAGE
        following = stop if stop < len(entries) else 0
        body = control.Sessions(self.path, entries[at:stop], following, self.settled, carries)
        return wire.control_frame(Kind.SESSIONS, self.id, body, sequence=at)

    def _tidy(self, count_max: int) -> int:
        """Forget sessions that no upstream carries and of which nothing is kept."""
        done = 0
        for session, served in list(self.sessions.items()):
            if done >= count_max:
                break
            if served.is_live or any(a < b for a, b in served.heads().values()):
                continue
            for stream in served.streams.values():
                self.replay.forget(stream.key)
                self.heartbeats.forget(stream)
            del self.sessions[session]
            self._stream_count -= len(served.streams)
            self.requests.forget_session(session)
            done += 1
        if done:
            self._changed()
        return done


def newest_ns(frame: Frame) -> int:
    """Return the newest timestamp of a DATA frame; `FrameError` where its body is malformed.

    The values are passed over, so that a frame of 500 small ones takes some 5 µs.
    """
    try:
        timestamps = _decode_times(memoryview(frame.data)[frame.body_at :])[1]
    except _ERRORS:
        raise FrameError("body") from None
    if timestamps is None:
        return int(frame.base_timestamp_ns)
    if len(timestamps) != frame.count:
        raise FrameError("columns")
    newest: int = frame.base_timestamp_ns + max(timestamps)
    return max(-(2**63), min(newest, 2**63 - 1))
