"""The subscriber's state machine: frames in, messages and requests out. No I/O.

Messages and gaps are handled here; sessions, and how they are joined, by the `SessionJoiner`.
"""

import enum
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import control, wire
from p2pmsg.config import SubscriberConfig
from p2pmsg.message import Message, MessageBatch
from p2pmsg.multicast.run import Run
from p2pmsg.start import Start
from p2pmsg.subscriber.announcement import Announcements
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.gaps import ReceiveWindow
from p2pmsg.subscriber.joining import SessionJoiner
from p2pmsg.subscriber.one_way import OneWay
from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.subscriber.ready import ReadyQueue
from p2pmsg.subscriber.redundancy import Redundancy
from p2pmsg.subscriber.rejoin import Rejoin
from p2pmsg.subscriber.resume import Resume
from p2pmsg.subscriber.route import Route
from p2pmsg.subscriber.routes import PUT_OFF_NS, Ranges, Routes
from p2pmsg.subscriber.servers import AccessRules, Denial, Denials, Servers
from p2pmsg.subscriber.session_table import SessionTable
from p2pmsg.subscriber.sessions import HISTORY_MESSAGES, Ending, Session, Stream
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.states import State
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.subscriber.typed import UNTYPED, ValueTypes
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import LossReason, RangeSet, ReceiverConfig
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.mold.feed import SessionAnnounced
    from p2pmsg.subscriber.group import MulticastReceiver

_MS = 1_000_000
_UNCONFIRMED = State.UNCONFIRMED
ENDINGS_MAX = 1024
"""Sessions that are over and not reported yet; the oldest is forgotten first."""
UNREAD_NS: Final = 1000 * _MS
"""How long unread datagrams put off losses and questions: after that more comes than is read."""
_MUCH: Final = HISTORY_MESSAGES // 16
"""Who cannot read all, and misses more messages than that, misses them most likely alone."""
STOPPED_NS = 500 * _MS
"""A check that comes so late shows that this process was stopped, or had no processor time."""


class Intake(enum.Enum):
    """What the shell does with frames of the data path."""

    READ = enum.auto()
    HOLD = enum.auto()
    """Only the recovery channel is read, so that the publisher has to wait."""
    SHED = enum.auto()
    """All is read, and of messages it is only noted that they exist."""


class SubscriberCore:
    """The state machine. Not thread-safe: its peer's section is around every call.

    The arguments are settings, except for two. `counts_replies`: whether publishers are to believe
    that what was sent and has not come is on its way, as where a recovery channel that loses
    something ends, as TCP does. Default False. `is_drained`: whether the application has processed
    all of a closing session, before its publisher hears that it may go. Default None: to have
    received it is enough.

    Attributes:
        ready: what is to be delivered; the only exit.
        last_stream: the stream of the last frame that was taken, or None where it may not go on.
        commands, requests: as of `Effects`.
        invalid: frames that were dropped, by reason.
        table: owns the sessions; `relays` asks relays, `routes` decides which route is asked.
        announcements, joiner, rejoin: take who is where; join sessions; ask them over TCP.
        multicast: takes datagrams; None: there are none.
        by_line: which line brought what; None: there is only one.
        stream_table: begins streams and ends them; `gaps` has those that miss something.
        window: how much more fits.
        cursor: where streams resume; None: nowhere.
        endings: sessions that are over, until the shell has reported them.
        denials: what is not allowed, until the shell has reported it.
        servers: checks what servers may send, by `use_access_rules`; None: all of it.

    """

    by_line: Redundancy | None = None
    servers: Servers | None = None
    multicast: "MulticastReceiver | None" = None
    last_stream: Stream | None = None
    frames_shed = 0
    _full_since_ns: int | None = None
    _unread_since_ns: int | None = None
    _has_backlog = _was_stopped = False

    def __init__(
        self,
        *,
        topics: list[str],
        lines: int,
        start: Start,
        subscriber: int,
        name: str,
        config: SubscriberConfig,
        rng: Random,
        now_ns: int,
        cursor: Resume | None = None,
        relay: int | None = None,
        datagram_lines: Collection[int] = (),
        policy: GapPolicy | None = None,
        types: ValueTypes = UNTYPED,
        counts_replies: bool = False,
        is_drained: Callable[[Session], bool] | None = None,
    ) -> None:
        settings = Settings(subscriber, name, topics, start, config, cursor)
        self.config, self.topics, self.start = config, topics, start
        self.policy, self.invalid = policy or GapPolicy("wait"), Counter[str]()
        self.ready = ReadyQueue(self.policy, self.invalid)
        self.cursor = cursor
        self.endings: deque[Ending] = deque(maxlen=ENDINGS_MAX)
        self.denials = Denials()
        self.lines = [
            Connection(
                last_heard_ns=now_ns, shared=index in datagram_lines,
                contacted=cursor is not None and cursor.contacted(index),
            )
            for index in range(lines)
        ]  # fmt: skip
        self.receiver_config = ReceiverConfig(
            deadline=config.repair_timeout, reorder_bytes_max=config.receive_bytes,
        )  # fmt: skip
        if lines > 1:
            self.by_line = Redundancy(self.lines, to_ns(config.second_line_wait))
        self.stream_table = StreamTable(
            config, self.receiver_config, start=start, policy=self.policy, types=types,
            cursor=cursor, by_line=self.by_line, deliver=self.ready.append, rng=rng,
        )  # fmt: skip
        self.gaps = self.stream_table.gaps
        self.window = ReceiveWindow(config.receive_bytes)
        self.table = table = SessionTable(
            settings, self.stream_table, self.lines, relay=relay, invalid=self.invalid,
            forget_last=self.forget_last, denials=self.denials, rng=rng, now_ns=now_ns,
        )  # fmt: skip
        self.rejoin = Rejoin(table)
        self.announcements = Announcements(table, self.rejoin)
        self.joiner = SessionJoiner(table, is_drained=is_drained)
        self._one_way = OneWay(table, self.rejoin)
        self.peers, self.relays, self._effects = table.peers, table.relays, table.effects
        self._effects.counts_replies = counts_replies
        self.commands, self.requests = table.effects.commands, table.effects.requests
        self.routes = Routes(self.lines)
        if datagram_lines:
            from p2pmsg.subscriber.group import MulticastReceiver  # over TCP it is not imported

            self.multicast = MulticastReceiver(table, self.announcements, self.rejoin, self)

    def use_seal(self) -> None:
        """Take no datagrams except sealed ones, and ask for their keys; called before anything."""
        if self.multicast is not None:
            self.multicast.use_seal()

    def use_access_rules(self, access_rules: AccessRules, users: Sequence[str]) -> None:
        """Take from each line what the server there may send, by its user id, and nothing else.

        It is called before anything else.
        """
        self.servers = self.table.servers = Servers(access_rules, users, self.denials)

    def recovery_returned(self, session: int) -> None:
        """Note that a session's recovery connection had broken, and is there again."""
        peer, keys = self.peers.get(session), self.table.keys
        if peer is not None and keys is not None:
            keys.ask_again(peer)

    def connection_ended(self, line: int, now_ns: int) -> None:
        """Note that a line's connection was ended because of what came, and is made again."""
        self.lines[line].made_ns = now_ns

    def access_changed(self) -> None:
        """Note that servers may have other rights now."""
        self.forget_last()
        if self.servers is None or len(self.lines) != 1:
            return  # each frame is checked
        is_relay = self.lines[0].relay is not None
        for stream in self.streams:
            may = self.servers.may(0, stream.peer, stream.topic, is_relay=is_relay)
            stream.block(not may)

    @property
    def streams(self) -> list[Stream]:
        """All streams, of all sessions that are remembered; those that have ended, too."""
        peers = list(self.peers.values())
        return [stream for peer in peers for stream in (*peer.former, *peer.streams.values())]

    @property
    def bytes_held(self) -> int:
        """Bytes of frames that wait for the application, or for a repair."""
        return self.ready.bytes_held + self.gaps.bytes_held

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read from the data path."""
        return self.bytes_held >= self.config.receive_bytes

    @property
    def replies_full(self) -> bool:
        """Whether nothing more should be read from the recovery channel.

        It is read even if frames that wait for a repair fill the buffer: only repairs free it then.
        """
        return bool(self.ready.entries) and self.is_full

    def receive_frame(self, line: int, data: bytes, *, now_ns: int, shed: bool = False) -> None:
        """Take a frame of the data path; with `shed`, only note that its messages exist."""
        state = self.lines[line]
        state.received += 1
        stream = self.last_stream
        if stream is None or shed or self.by_line or not data.startswith(stream.prefix):
            stream = None
        if stream is None and state.refused_until_ns is not None:
            return
        try:
            frame = Frame(data)
            if stream is not None and stream.receiver.accept(frame.sequence, frame.count):
                state.last_heard_ns = stream.peer.last_heard_ns = now_ns
                self.ready.append_frame(stream, frame)
                return
            if state.refused_until_ns is not None:
                return
            kind = frame.kind
            if kind == Kind.DATA:
                self._receive_data(line, frame, now_ns, shed)
            elif kind == Kind.HEARTBEAT and state.relay is not None:
                self._receive_relay_heartbeat(line, frame, now_ns)
            elif kind == Kind.HEARTBEAT:
                endpoint_hash = self._receive_heartbeat(line, frame, now_ns)
                strange = frame.session != state.session or endpoint_hash not in (
                    0,
                    state.endpoint_hash,
                )
                if strange and not state.shared:
                    self._on_unknown_session(line, now_ns)
            elif kind == Kind.WELCOME:
                self.announcements.receive(line, frame, now_ns)
            elif kind == Kind.ECHO:
                if not self.joiner.receive_echo(frame, now_ns):
                    return
            else:
                raise FrameError("kind")
            state.last_heard_ns = now_ns
        except FrameError as error:
            self.invalid[str(error)] += 1
            state.invalid += 1
            if str(error) == "session" and state.relay is not None:
                self.relays.on_unknown(line, now_ns)
            elif str(error) == "session" and not state.shared:
                self._on_unknown_session(line, now_ns)

    def receive_datagrams(
        self,
        line: int,
        data: memoryview,
        segment: int,
        address: Any,
        *,
        now_ns: int,
        shed: bool = False,
    ) -> None:
        """Take consecutive datagrams of `segment` bytes, the last perhaps shorter.

        What is kept of `data` is copied. With `shed`, messages are only noted to exist.
        """
        assert self.multicast is not None
        self.multicast.receive(line, data, segment, address, now_ns=now_ns, shed=shed)

    def receive_run(self, line: int, run: Run, now_ns: int) -> None:
        """Take a frame joined of many of the last stream's."""
        stream, frame = self.last_stream, run.frame
        assert stream is not None
        stream.peer.last_heard_ns = now_ns
        if self.by_line is not None:
            self.by_line.note(line, stream, frame.sequence, frame.count, now_ns=now_ns)
        if stream.receiver.accept(frame.sequence, frame.count):
            self.ready.append_frame(stream, frame)
        else:
            self._take(stream, frame, now_ns, repaired=False)

    def receive_repair(
        self, stream: Stream, frame: Frame, now_ns: int, *, is_sent: bool = True
    ) -> None:
        """Take a frame that was missing: sent again, or worked out from parity."""
        if not is_sent or self._admit_repair(stream, frame, now_ns):
            self._take(stream, frame, now_ns, repaired=True)

    def take_frame(
        self, stream: Stream, data: bytes, count_max: int, now_ns: int
    ) -> Message | MessageBatch | None:
        """Take a frame of the only connection, and return its messages at once.

        None: it is to be given to `receive_frame`; see `ReadyQueue.take_frame`.
        """
        taken = self.ready.take_frame(stream, data, count_max)
        if taken is not None:
            line = self.lines[0]
            line.received += 1
            line.last_heard_ns = stream.peer.last_heard_ns = now_ns
        return taken

    def stream_of(self, data: bytes) -> Stream | None:
        """Return the stream that a frame seems to belong to, if it is known."""
        zero = data.find(b"\0", 0, wire.TOPIC_BYTES_MAX + 1)
        if zero < 1:
            return None
        session = int.from_bytes(data[zero + 7 : zero + 15], "big")
        return self._stream(session, data[:zero].decode("utf-8", "replace"))

    def reject(self, reason: str) -> None:
        """Count what was dropped before it became a frame."""
        self.invalid[reason] += 1

    def on_heard(self, line: int, now_ns: int) -> None:
        """Note that a line is not silent."""
        self.lines[line].last_heard_ns = now_ns

    def current_feed(self, line: int) -> tuple[int, int] | None:
        """Return the session of a line, and when it was last heard; None: it has none."""
        peer = self.peers.get(self.lines[line].session or 0)
        return None if peer is None else (peer.session, peer.heard_ns)

    def announce(
        self, line: int, feed: "SessionAnnounced", now_ns: int
    ) -> tuple[int | None, int | None]:
        """Join a session of a feed; see `p2pmsg.mold.feed.FeedTaker`."""
        return self.announcements.receive_feed(line, feed, now_ns)

    def end_feed(self, session: int, topic: str, stop: int | None) -> bool:
        """Note that a session ends at `stop`, or (None) at what is known; False: it is unknown."""
        stream = self._stream(session, topic)
        if stream is not None:
            at = stream.receiver.head if stop is None else stop
            self.endings.append(Ending(stream, at, announced=stop is not None))
        return stream is not None

    def revoke_end(self, session: int, topic: str) -> None:
        """Take back that a session has ended."""
        stream = self._stream(session, topic)
        for ending in [one for one in self.endings if one.stream is stream]:
            self.endings.remove(ending)

    def _stream(self, session: int, topic: str) -> Stream | None:
        peer = self.peers.get(session)
        return None if peer is None else peer.streams.get(topic)

    def receive_reply(self, key: int, data: bytes, *, now_ns: int) -> None:
        """Take a frame from the recovery channel of a session's publisher, or of a relay."""
        self._effects.on_received(key)
        try:
            frame = Frame(data)
            if frame.kind == Kind.SESSIONS:
                self.announcements.receive_sessions(key, frame, now_ns)
                if key in self.relays.upstreams:
                    self.denials.answered(self.relays.upstreams[key].name)
                return
            if frame.kind == Kind.DENIED and key == frame.session and key in self.relays.upstreams:
                self._on_denied(self.relays.receive_denied(key, now_ns), frame)
                return
            peer = self.peers.get(frame.session)
            if peer is None:
                raise FrameError("session")
            route = self.routes.answered(peer, key)
            if route is None:
                raise FrameError("session")
            peer.answered_ns = now_ns
            if frame.kind == Kind.DATA:
                if peer.is_held:
                    return
                stream = peer.streams.get(frame.topic)
                if stream is None:
                    raise FrameError("stream")
                if self.servers is not None:
                    self.servers.check_route(route, peer, frame.topic)
                route.repaired_ns = now_ns
                before = stream.receiver.repaired
                self.receive_repair(stream, frame, now_ns)
                if route.hops:
                    stream.repairs.relayed += stream.receiver.repaired - before
            elif frame.kind == Kind.DENIED:
                self._on_denied(peer.name, frame)
            elif frame.kind == Kind.REFUSED:
                stream = self._receive_refused(peer, route, frame, now_ns)
                self.stream_table.drain(stream)
            elif frame.kind == Kind.HEADS:
                self.rejoin.receive(peer, route, frame, now_ns)
            elif self.multicast is None or not self.multicast.receive_reply(peer, frame, now_ns):
                raise FrameError("kind")
        except FrameError as error:
            self.invalid[str(error)] += 1

    def intake(self, now_ns: int) -> Intake:
        """Return what to do with frames that come now.

        Where the buffer is full, what only the newest values matter of is folded first.

        A publisher has to wait for its `stall_timeout` at most. A multicast repairs over the data
        path, so that is read while nothing but repairs can free the buffer.
        """
        if self.ready.unfolded and self.is_full:
            self.ready.fold_all()
        if not self.is_full:
            self._full_since_ns = None
            return Intake.READ
        if self._full_since_ns is None:
            self._full_since_ns = now_ns
        return Intake.SHED if self._sheds(now_ns) else Intake.HOLD

    def _sheds(self, now_ns: int) -> bool:
        """Whether all is read though all is full: one that is silent then has sent nothing."""
        if self.multicast is not None and not self.ready.entries:
            return True
        since_ns = self._full_since_ns
        stalls = [p.own.stall_ms for p in self.peers.values() if p.own.stall_ms >= 0]
        return bool(stalls) and since_ns is not None and now_ns - since_ns > min(stalls) * _MS

    def pop_ending(self) -> Ending | None:
        """Take out a session that is over and all of which was delivered, or None."""
        for ending in self.endings:
            if ending.stream.position >= ending.stop:
                self.endings.remove(ending)
                return ending
        return None

    def handle_timer(self, *, now_ns: int, unread: int = 0) -> None:
        """Do what is due: NACKs, losses, probes, keep-alives, silent publishers.

        `unread` says how many bytes of datagrams have come and were not read yet. They may have
        what nobody can be asked for, so that is not given up, and answers, so a group is asked for
        nothing meanwhile: for at most `UNREAD_NS` in a row. After that what a stream misses much of
        is asked for over the recovery channel, whose answers come to this subscriber alone.
        """
        if not unread:
            self._unread_since_ns = None
        elif self._unread_since_ns is None:
            self._unread_since_ns = now_ns
        since_ns = self._unread_since_ns
        self._has_backlog = since_ns is not None and now_ns - since_ns >= UNREAD_NS
        is_late = bool(unread) and not self._has_backlog
        if is_late:
            for stream in self.gaps:
                if not stream.receiver.nacks.asks:
                    stream.receiver.nacks.postpone(now_ns=now_ns, delay_ns=0)
                    self.gaps.note(stream)
        was_stopped = 0 < self.table.next_check_ns < now_ns - STOPPED_NS
        if was_stopped:
            # One that is late each time is slow: there is no better moment to ask.
            delay_ns = 0 if self._was_stopped else 5 * _MS
            stopped_ns = now_ns - self.table.next_check_ns
            self.joiner.on_stopped(stopped_ns, now_ns, delay_ns=delay_ns)
        self._was_stopped = was_stopped
        if self.is_full and not self._sheds(now_ns):
            self.joiner.excuse_silence(now_ns)
        if self.replies_full:
            # What is asked for now could not be taken in; gaps must not age meanwhile.
            self.gaps.postpone(now_ns=now_ns, delay_ns=5 * _MS)
        elif not (is_late and all(line.shared for line in self.lines)):
            self._ask_for_gaps(now_ns)
        if now_ns >= self.table.next_check_ns:
            self.check(now_ns)

    def check(self, now_ns: int) -> None:
        """Check the sessions, and the lines."""
        self.joiner.check(now_ns)
        self.rejoin.check(now_ns)
        self._one_way.check(now_ns)
        if self.by_line is not None:
            for line, text in self.by_line.check(now_ns):
                self._effects.warn(line, 0, text)
        soonest_ns = max(self.rejoin.due_ns, now_ns + _MS)
        self.table.next_check_ns = min(self.joiner.next_ns(now_ns), soonest_ns)

    def next_deadline_ns(self) -> int:
        """Return when `handle_timer` has something to do."""
        due_ns, check_ns = self.gaps.next_deadline_ns(), self.table.next_check_ns
        return check_ns if due_ns is None else min(due_ns, check_ns)

    @property
    def recovering(self) -> list[int]:
        """The sessions and relays that an answer may come from."""
        return self.relays.waiting + [
            session
            for session, peer in self.peers.items()
            if not peer.gone
            and (
                peer.gaps
                or not peer.joined
                or (peer.group is not None and not peer.group.token)
                or peer.is_asking
            )
        ]

    def recording(self) -> Iterator[Callable[[], object]]:
        """Yield what is to be written down of sessions that were joined, before each goes on.

        Each is called, and has returned, before the next one is asked for.
        """
        if self.cursor is not None:
            for write in self.cursor.recording(self.lines):
                yield write
                self.table.next_check_ns = 0  # their publishers may count this subscriber soon

    def leave(self) -> None:
        """Announce to all publishers and relays that this subscriber goes."""
        self.joiner.leave()

    def _ask_for_gaps(self, now_ns: int) -> None:
        reforming = self.relays.reforming(now_ns)
        for stream in self.gaps.take_due(now_ns=now_ns):
            receiver, peer = stream.receiver, stream.peer
            if reforming and not self.routes.is_publisher_heard(peer):
                receiver.nacks.postpone(now_ns=now_ns, delay_ns=0)
            is_group = self.multicast is not None and peer.feedback is not None
            answered_ns = -1 if is_group else peer.repaired_ns
            reason = LossReason.PUBLISHER_GONE if peer.is_silent else None
            receiver.handle_timer(now_ns=now_ns, answered_ns=answered_ns, reason=reason)
            if self.multicast is not None and is_group:
                # What is free, and what the stream itself holds: frames further on make way.
                free = self.config.receive_bytes - self.bytes_held + receiver.bytes_held
                window, crowded = self.window.window_in(free), 4 * free < self.config.receive_bytes
                if self._has_backlog and receiver.nacks.missing_count > _MUCH:
                    stop = min(receiver.nacks.stop, receiver.head)
                    stream.repairs.history = max(stream.repairs.history, stop)
                self.multicast.ask(stream, window=window, crowded=crowded, now_ns=now_ns)
                self.stream_table.drain(stream)
                continue
            ranges = receiver.nacks.due(
                now_ns=now_ns,
                window=self.window.window(),
                crowded=self.window.is_crowded(self.bytes_held),
            )
            if ranges and not peer.gone:
                self._ask(stream, ranges, now_ns)
            else:
                self.gaps.pass_on(stream)
            self.stream_table.drain(stream)

    def _ask(self, stream: Stream, ranges: Ranges, now_ns: int) -> None:
        """Send NACKs for what is due of a stream; what all routes have refused is lost."""
        peer, topic = stream.peer, stream.topic
        plan = self.routes.plan(peer, topic, ranges, now_ns)
        if plan.refused and not self.relays.unsettled(now_ns):
            for loss in self.routes.losses(peer, topic, plan.refused):
                stream.receiver.reject(loss.start, loss.stop, loss.reason, now_ns=now_ns)
        for route, wanted in plan.asked:
            for at in range(0, len(wanted), control.RANGES_MAX):
                part = wanted[at : at + control.RANGES_MAX]
                self._effects.nack(route.key, peer.session, topic, part)

    def _on_denied(self, publisher: str, frame: Frame) -> None:
        body = control.read_body(frame, control.Denied)
        for at, pattern in enumerate(body.patterns):
            why = "" if at else body.why  # it is of the first one
            self.denials.note(Denial(body.verb, pattern, publisher, is_ours=False, why=why))

    def _receive_refused(self, peer: Session, route: Route, frame: Frame, now_ns: int) -> Stream:
        """Take a refusal: a loss, unless another route may have it; that is asked at once."""
        body = control.read_body(frame, control.Refused)
        stream = peer.streams.get(body.topic)
        if stream is None:
            raise FrameError("stream")
        if any(start >= stop for start, stop in body.ranges):
            raise FrameError("range")
        if not body.ranges:  # it does not know yet what it will have, but another one may
            route.put_off_until_ns = now_ns + PUT_OFF_NS
        try:
            reason = LossReason(body.reason)
        except ValueError:
            raise FrameError("reason") from None
        receiver, topic = stream.receiver, stream.topic
        if reason is LossReason.BUDGET:
            for start, stop in body.ranges:
                receiver.nacks.set_loss_reason(start, stop, reason)
        elif not (self.routes.has_others(peer, route) or self.relays.unsettled(now_ns)):
            for start, stop in body.ranges:
                receiver.reject(start, stop, reason, now_ns=now_ns)
        else:
            self.routes.refused(peer, topic, route, body.ranges, reason)
            missing = RangeSet(receiver.missing_ranges)
            wanted = [part for a, b in body.ranges for part in missing.overlap(a, b)]
            if wanted:
                self._ask(stream, wanted, now_ns)
        return stream

    def _receive_data(self, line: int, frame: Frame, now_ns: int, shed: bool) -> None:
        peer = self.peers.get(frame.session)
        if peer is None:
            raise FrameError("session")
        self._check_server(line, peer, frame)
        peer.last_heard_ns = now_ns
        if peer.state is _UNCONFIRMED:
            return  # the echo's heads show what was published meanwhile
        stream = self.table.open_stream(peer, frame.topic, now_ns)
        # Nothing can be delivered before the echo, which must not find the buffer full.
        is_early = not stream.receiver.started
        if shed or (is_early and 2 * self.bytes_held >= self.config.receive_bytes):
            self.frames_shed += 1
            if peer.group is not None and stream.receiver.started:
                assert self.multicast is not None
                head = frame.sequence + frame.count
                self.multicast.observe_head(stream, head, 0, now_ns)
                self.stream_table.drain(stream)
                return
            stop = frame.sequence + frame.count
            stream.receiver.hear_of(frame.sequence, stop, now_ns=now_ns)
            self.stream_table.drain(stream)
            return
        if self.by_line is not None:
            self.by_line.note(line, stream, frame.sequence, frame.count, now_ns=now_ns)
        if self.lines[line].relay is not None and frame.sequence < stream.receiver.expected:
            self.relays.on_progress(stream, now_ns)
        self._take(stream, frame, now_ns, repaired=False)

    def _check_server(self, line: int, peer: Session, frame: Frame) -> None:
        if self.servers is not None:
            is_relay = self.lines[line].relay is not None
            self.servers.check_frame(line, peer, frame.topic, is_relay=is_relay)

    def _admit_repair(self, stream: Stream, frame: Frame, now_ns: int) -> bool:
        """Whether a repair fits; later frames of its stream are evicted for it."""
        held = self.bytes_held
        return self.window.admit_repair(stream.receiver, frame, bytes_held=held, now_ns=now_ns)

    def _take(self, stream: Stream, frame: Frame, now_ns: int, *, repaired: bool) -> None:
        """Take a frame of a stream, which came by itself or as a repair."""
        receiver = stream.receiver
        stop = frame.sequence if repaired else frame.sequence + frame.count
        if stop > stream.jump_max + receiver.head and receiver.started:
            assert self.multicast is not None
            self.multicast.refuse_jump(stream, frame, now_ns)
            return
        self.last_stream = stream
        if self.multicast is not None:
            self.multicast.last_stream = stream
        self.window.note(frame)
        receiver.receive(
            frame.sequence, frame.count, len(frame.data), frame, now_ns=now_ns, repaired=repaired
        )
        self.stream_table.drain(stream)

    def _receive_relay_heartbeat(self, line: int, frame: Frame, now_ns: int) -> None:
        """Take a heartbeat over a relay's line: of a stream, or the relay's own."""
        state = self.lines[line]
        if not frame.topic and frame.session == state.relay:
            endpoint_hash = self.relays.receive_heartbeat(frame, now_ns)
        else:
            endpoint_hash = self._receive_heartbeat(line, frame, now_ns)
            self.relays.on_head(self.peers[frame.session], line, frame, now_ns)
        if endpoint_hash not in (0, state.endpoint_hash):
            self._on_unknown_session(line, now_ns)

    def _on_unknown_session(self, line: int, now_ns: int) -> None:
        """Note that a frame came of another session than the line's welcome announced."""
        if self.lines[line].unknown_ns is None:
            self.lines[line].unknown_ns = now_ns

    def forget_last(self) -> None:
        """Take the next frame as that of any stream."""
        self.last_stream = None
        if self.multicast is not None:
            self.multicast.last_stream = None

    def _receive_heartbeat(self, line: int, frame: Frame, now_ns: int) -> int:
        peer = self.peers.get(frame.session)
        if peer is None:
            raise FrameError("session")
        self._check_server(line, peer, frame)
        body = control.read_body(frame, control.Heartbeat)
        peer.last_heard_ns = now_ns
        if peer.group is None and self.table.on_incarnation(peer, body.incarnation):
            self.table.begin_again(peer, now_ns)  # in a group anybody can say so
        if peer.is_held:
            return body.endpoint_hash
        stream = self.table.open_stream(peer, frame.topic, now_ns)
        if body.incarnation and body.incarnation == peer.incarnation and not stream.compared.unseen:
            stream.compared.published = max(stream.compared.published, frame.sequence)
        if self.multicast is not None and peer.group is not None:
            self.multicast.observe_head(stream, frame.sequence, body.earliest, now_ns)
            self.stream_table.drain(stream)
            return body.endpoint_hash
        evicted = min(body.earliest, frame.sequence)
        earliest = self.joiner.evicted_before(peer, evicted, now_ns)
        stream.receiver.observe_head(frame.sequence, now_ns=now_ns, earliest=earliest)
        self.stream_table.drain(stream)
        return body.endpoint_hash
