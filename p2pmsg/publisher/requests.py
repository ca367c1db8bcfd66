"""Answers requests: probes, heads, NACKs. A publisher has one session to answer for, a relay many.

::

    NACK ──▶ refused at once, or scheduled ──▶ next_reply ──▶ buffer, or `read` of the log ──▶ sent
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.access import Access, AccessRules
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.cutting import cut
from p2pmsg.publisher.heads import HeadsMaker
from p2pmsg.publisher.served import Multicast, ServedSession
from p2pmsg.publisher.subscribers import Event, KnownSubscriber, Subscribers
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Kept, Loss, LossReason, RangeSet, RetransmitScheduler
from recovery.checks import to_ns
from recovery.retransmit import REQUESTERS_MAX

_MS = 1_000_000
REPLIES_MAX = 4096
"""Control replies that wait; a peer that asks faster than it reads is not answered."""
REPLIES_BYTES_MAX = 16 * 2**20
"""Their bytes; an answer that has more is taken where none waits."""
_REQUESTER_BYTES_S = 2**32
"""What one requester gets, more than one TCP connection carries on one machine, so that its own
queue holds it back: who replays, or a Spark task that reads history, may be as fast as who follows
live, which is 2 GiB/s."""
_REQUESTER_BURST_BYTES = 128 * 2**20
BLOCKED_NS = 2 * _MS
"""How long a requester whose queue was full is left alone."""
_Ranges = list[tuple[int, int]]


@dataclass(slots=True)
class Reply:
    """One frame for one requester; a repair has the range that it answers, and who had it."""

    requester: bytes
    frame: bytes | memoryview
    served: ServedSession | None = None
    """Of a repair: which session's."""
    topic: str = ""
    start: int = 0
    stop: int = 0
    is_in_log: bool = False
    """Whether `RequestHandler.read` is to fetch the frame."""
    source: str = "buffer"
    reason: LossReason = LossReason.EVICTED
    """Why it is refused, if it is."""


class RequestHandler:
    """Takes requests and gives replies.

    Args:
        sessions: those that are asked about, by their ids; a view.
        queue: takes the answers that go over the data path.
        config: bounds on what is asked for.

    Attributes:
        invalid: malformed or unexpected frames by reason.
        replies_dropped: control replies that were dropped at the bound.
        frames_repaired: frames that were sent again.
        messages_repaired: messages in them that were asked for, by the source that had them.
        known: those who confirmed, and those of them who fell silent.
        heads: makes what probes and requests for heads are answered with.
        multicast: listens only to those who have joined; None: this is none.
        access: what those who ask may have, by `use_access_rules`; None: everything.

    """

    def __init__(
        self, sessions: Mapping[int, ServedSession], queue: ControlQueue, config: PublisherConfig
    ) -> None:
        self._sessions = sessions
        self._queue = queue
        self.scheduler: RetransmitScheduler[tuple[int, str]] = RetransmitScheduler(
            budget_bytes_s=_REQUESTER_BYTES_S, budget_burst_bytes=_REQUESTER_BURST_BYTES
        )
        self._replies: deque[Reply] = deque()
        self._reply_bytes = 0
        self.known = Subscribers(to_ns(config.subscriber_timeout))
        self.invalid: Counter[str] = Counter()
        self.heads = HeadsMaker()
        self.multicast: Multicast | None = None
        self.access: Access | None = None
        self._frame_bytes_max: dict[bytes, int] = {}
        self.replies_dropped = 0
        self.frames_repaired = 0
        self.messages_repaired = {"buffer": 0, "log": 0}
        self._handlers: dict[int, Callable[[ServedSession, bytes, Frame, int], None]] = {
            Kind.PROBE: self._receive_probe,
            Kind.JOINED: self._receive_joined,
            Kind.NACK: self._receive_nack,
            Kind.HEADS_REQUEST: self._receive_heads_request,
            Kind.LEAVE: self._receive_leave,
            Kind.SETTLED: self._receive_acknowledged,
            Kind.KEYS_HELD: self._receive_held,
        }

    def use_access_rules(self, access_rules: AccessRules) -> None:
        """Answer each requester what it may have, and nothing else; called before anything."""
        self.access = self.heads.access = Access(access_rules)

    def receive(
        self,
        requester: bytes,
        data: bytes,
        *,
        now_ns: int,
        user: str | None = None,
        wall_ns: int = 0,
    ) -> None:
        """Take a request; where there are rights, of a user, and with the time by the wall."""
        access = self.access
        if (
            access is not None
            and user is not None
            and not access.note(requester, user, now_ns=now_ns, wall_ns=wall_ns)
        ):
            self.scheduler.forget(requester)
        try:
            frame = Frame(data)
            handler = self._handlers.get(frame.kind)
            served = self._sessions.get(frame.session)
            if handler is None or served is None:
                self._receive_other(requester, frame)
            else:
                handler(served, requester, frame, now_ns)
        except FrameError as error:
            self.invalid[str(error)] += 1
        except OSError:  # no descriptor is left to look into the log with; it asks again
            self.replies_dropped += 1

    def _receive_other(self, requester: bytes, frame: Frame) -> None:
        """Take what is no request, or about no session that is served."""
        raise FrameError("session" if frame.kind in self._handlers else "kind")

    def resync(self) -> None:
        """Go on after an exception at any line: what is lost of requests is asked for again."""
        self.scheduler.resync()
        self._reply_bytes = sum(len(reply.frame) for reply in self._replies)

    def on_malformed(self, count: int) -> None:
        """Note how many requests have come so far that are of more than one part."""
        self.invalid["parts"] = count

    def on_revoked(self) -> None:
        """Count a request of a user that is revoked."""
        self.invalid["revoked"] += 1

    def next_reply(self, *, now_ns: int) -> Reply | None:
        """Return what to send next, or None.

        The shell calls `read` where the frame is still in the log, tries to send it, and then
        calls `reply_sent`, `reply_blocked` or `requester_gone`.
        """
        while not self._replies:
            job = self.scheduler.next_job(now_ns=now_ns)
            if job is None:
                return None
            reply = self._repair_of(*job)
            if reply is not None:
                return reply
        return self._replies[0]

    def _repair_of(
        self, requester: bytes, stream: tuple[int, str], start: int, stop: int
    ) -> Reply | None:
        """Return the frame that answers a range from its start on; None: it is refused, or gone."""
        session, topic = stream
        served = self._sessions.get(session)
        if served is None:
            self.scheduler.drop_range(requester, stream, start, stop)
            return None
        reply = Reply(requester, b"", served, topic, start, stop)
        if self.access is not None and not self.access.may(requester, topic):
            reply.reason = LossReason.DENIED
        elif (kept := served.frame_at(topic, start, stop)) is not None and kept.start <= start:
            reply.frame = kept.frame
            if kept.stop < stop:
                reply.stop = kept.stop
            limit = self._frame_bytes_max.get(requester)
            if not limit or len(kept.frame) <= limit or self._make_fit(reply, kept, limit):
                return reply
        else:
            if kept is not None:
                reply.stop = kept.start
            if served.has_log:
                reply.source, reply.is_in_log = "log", True
                return reply
        self.refuse(reply)
        return None

    def read(self, reply: Reply) -> bool:
        """Fetch a reply's frame from the log; False: it is not to be had, call `refuse`.

        It is called without the publisher's lock, since the disk may take its time.

        Raises:
            OSError: no descriptor is left to read with; call `reply_blocked`.

        """
        assert reply.served is not None
        kept = reply.served.read(reply.requester, reply.topic, reply.start)
        if kept is None or kept.start > reply.start:
            if kept is not None:
                reply.stop = min(reply.stop, kept.start)
            return False
        reply.frame, reply.is_in_log = bytes(kept.frame), False
        reply.stop = min(reply.stop, kept.stop)
        limit = self._frame_bytes_max.get(reply.requester, 0)
        return not limit or len(reply.frame) <= limit or self._make_fit(reply, kept, limit)

    def _make_fit(self, reply: Reply, kept: Kept, limit: int) -> bool:
        """Cut a frame to what its requester takes; False: already its first message is too large.

        A frame above `frame_bytes_max` would end the connection, and what waits with it.
        """
        reply.reason = LossReason.TOO_LARGE
        try:
            is_one = kept.stop - kept.start == 1
            part = None if is_one else cut(Frame(bytes(reply.frame)), reply.start, limit)
        except FrameError:
            return False  # nothing of it can be read
        if part is None:
            reply.stop = reply.start + 1
            return False
        reply.frame, stop = part
        reply.stop = min(reply.stop, stop)
        return True

    def refuse(self, reply: Reply) -> None:
        """Say that what `reply` was to bring is not to be had."""
        assert reply.served is not None
        requester, stream = reply.requester, (reply.served.session, reply.topic)
        self.scheduler.drop_range(requester, stream, reply.start, reply.stop)
        ranges = [(reply.start, reply.stop)]
        self._refuse(reply.served, requester, reply.topic, ranges, reply.reason)

    def reply_sent(self, reply: Reply, *, now_ns: int) -> None:
        """Note that `reply` is on its way."""
        if reply.served is None:
            self._reply_left()
            self.scheduler.frames.note(reply.requester)
            return
        self.frames_repaired += 1
        self.messages_repaired[reply.source] += reply.stop - reply.start
        stream = reply.served.session, reply.topic
        self.scheduler.sent(
            reply.requester, stream, reply.start, reply.stop, len(reply.frame), now_ns=now_ns
        )

    def reply_blocked(self, reply: Reply, *, now_ns: int) -> None:
        """Note that the requester's queue is full: repairs wait, control replies are dropped."""
        if reply.served is None:
            self._reply_left()
            self.replies_dropped += 1
        self.scheduler.block(reply.requester, now_ns + BLOCKED_NS)

    def requester_gone(self, reply: Reply, *, now_ns: int) -> None:
        """Note that the requester is no longer connected."""
        if reply.served is None:
            self._reply_left()
        self.scheduler.forget(reply.requester)
        self._frame_bytes_max.pop(reply.requester, None)
        if self.access is not None:
            self.access.forget(reply.requester)
        if self.multicast is not None:
            self.multicast.requester_gone(reply.requester)

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `next_reply` may have something again."""
        return now_ns if self._replies else self.scheduler.next_deadline_ns(now_ns=now_ns)

    def expire(self, *, now_ns: int) -> None:
        """Forget subscribers that have not been heard of."""
        self._dismiss(self.known.expire(self._has_streams, now_ns))

    def _has_streams(self, session: int) -> bool:
        served = self._sessions.get(session)
        return served is not None and bool(served.streams)

    def _dismiss(self, subscribers: Collection[int]) -> None:
        if self.multicast is not None:
            for subscriber in subscribers:
                self.multicast.dismiss(subscriber)

    def revoke(self, users: Collection[str]) -> None:
        """Forget those whose keys were revoked, and what they have asked for."""
        self._dismiss(self.known.revoke(users))
        if self.access is not None:
            for requester in self.access.revoke(users):
                self.scheduler.forget(requester)

    def forget_session(self, session: int) -> None:
        """Forget a session that is served no more."""
        self.known.forget_session(session)
        self.heads.forget_session(session)

    @property
    def denied(self) -> int:
        """How many requests were denied, as a whole or in part."""
        return 0 if self.access is None else self.access.denied_requests

    def _receive_probe(
        self, served: ServedSession, requester: bytes, frame: Frame, now_ns: int
    ) -> None:
        probe = control.read_body(frame, control.Probe)
        queue = self._queue
        if queue.is_waiting(probe.probe):
            return  # it was impatient: the answer is on its way
        if not queue.has_space():
            queue.dropped += 1  # they cannot leave; it will probe again
            return
        bodies = self.heads.bodies(served, requester, frame, probe, now_ns=now_ns)
        if bodies is None:
            return
        self._deny(served, requester, probe.topics)
        pages = [wire.control_frame(Kind.ECHO, probe.probe, body) for body in bodies]
        queue.answer(probe.probe, pages, now_ns=now_ns)

    def _receive_joined(
        self, served: ServedSession, requester: bytes, frame: Frame, now_ns: int
    ) -> None:
        joined = control.read_body(frame, control.Joined)
        if self.access is not None and not self.access.has_any(requester):
            return  # it was answered that it may have nothing
        known = self.known.get(served.session, joined.subscriber)
        user = self._user_of(requester)
        if known is not None and known.user != user:
            raise FrameError("subscriber")
        admitted: bytes | None = None
        if joined.wants_token and self.multicast is not None and self.known.has_space(known):
            admitted = self.multicast.admit(joined.subscriber, requester, user)
        said = KnownSubscriber(requester, joined.name, user, now_ns, joined.settles)
        event = Event.HAS_ALL if joined.complete else Event.LACKS
        self.known.report(served.session, joined.subscriber, said, event)
        if admitted is not None:
            self._reply(requester, admitted)

    def _receive_held(
        self, served: ServedSession, requester: bytes, frame: Frame, now_ns: int
    ) -> None:
        """Answer with the keys of a sealed group; they open all of it."""
        if self.multicast is None:
            raise FrameError("kind")
        if self._deny(served, requester, ["*"]):
            return
        user = self._user_of(requester)
        keys = self.multicast.receive_held(requester, frame, now_ns=now_ns, user=user)
        if keys is not None:
            self._reply(requester, keys)

    def send(self, requester: bytes, frame: bytes) -> None:
        """Send a frame that was not asked for."""
        self._reply(requester, frame)

    def _receive_leave(
        self, served: ServedSession, requester: bytes, frame: Frame, now_ns: int
    ) -> None:
        joined = control.read_body(frame, control.Joined)
        known = self.known.get(served.session, joined.subscriber)
        if known is not None and known.user != self._user_of(requester):
            raise FrameError("subscriber")
        if self.known.on_event((served.session, joined.subscriber), Event.LEAVE):
            self._dismiss([joined.subscriber])
        self.scheduler.forget(requester)

    def _receive_acknowledged(
        self, served: ServedSession, requester: bytes, frame: Frame, now_ns: int
    ) -> None:
        acknowledged = control.read_body(frame, control.Settled)
        if self.access is not None and not self.access.may(requester, acknowledged.topic):
            self.access.denied_requests += 1
            return
        try:
            lost = RangeSet(acknowledged.lost)
        except ValueError:
            raise FrameError("range") from None
        stream = served.streams.get(acknowledged.topic)
        if stream is None:
            return
        following = min(acknowledged.next, served.head(acknowledged.topic)[1])
        # It has what of that is below `following`, unless nobody has it.
        found = lost.overlap(min(stream.acknowledged, following), following)
        for start, stop in stream.unreached:
            found += lost.overlap(min(start, following), min(stop, following))
            if stop > following:
                found.append((max(start, following), stop))
        stream.unreached = RangeSet(sorted(found)[: control.RANGES_MAX])
        stream.acknowledged = max(stream.acknowledged, following)

    def _receive_nack(
        self, served: ServedSession, requester: bytes, frame: Frame, now_ns: int
    ) -> None:
        nack = control.read_body(frame, control.Nack)
        topic, ranges = nack.topic, nack.ranges
        for start, stop in ranges:
            if start >= stop:
                raise FrameError("range")
        if nack.frame_bytes_max != self._frame_bytes_max.get(requester, 0):
            self._on_limit(requester, nack.frame_bytes_max)
        if self.access is not None:
            ranges = self._refuse_denied(self.access, served, requester, topic, ranges, now_ns)
            if not ranges:
                return
        earliest, following = served.head(topic)
        kept: _Ranges = []
        gone: list[Loss] = []
        is_known = not ranges
        for asked in ranges:
            losses, rest = served.lost(topic, *asked)
            gone += losses
            for start, stop in rest:
                is_known = True
                if start < earliest:
                    gone.append(Loss(start, min(stop, earliest), LossReason.EVICTED))
                    start = earliest
                if stop > following:
                    stop = following
                if start < stop:
                    kept.append((start, stop))
        if gone:
            self._refuse_lost(served, requester, topic, gone)
        elif not is_known:
            # It is not known yet whether it can be had: another one is to be asked, or this again.
            self._refuse(served, requester, topic, [], LossReason.BUDGET)
        if kept:
            stream = served.session, topic
            refused = self.scheduler.request(
                requester, stream, kept, now_ns=now_ns, received=nack.received
            )
            if refused:
                self._refuse(served, requester, topic, refused, LossReason.BUDGET)

    def _on_limit(self, requester: bytes, frame_bytes_max: int) -> None:
        """Remember the largest frame that a requester takes; the oldest is forgotten at a bound."""
        limits = self._frame_bytes_max
        if not frame_bytes_max:
            del limits[requester]
            return
        if requester not in limits and len(limits) >= REQUESTERS_MAX:
            del limits[next(iter(limits))]
        limits[requester] = frame_bytes_max

    def _refuse_denied(
        self,
        access: Access,
        served: ServedSession,
        requester: bytes,
        topic: str,
        ranges: _Ranges,
        now_ns: int,
    ) -> _Ranges:
        """Refuse what a requester may not have, with the reason; return what it may have."""
        if not access.may(requester, topic):
            access.denied_requests += 1
            self._refuse(served, requester, topic, ranges, LossReason.DENIED)
            return []
        limit = access.limit(served, requester, topic, now_ns=now_ns)
        old = [(start, min(stop, limit)) for start, stop in ranges if start < limit]
        if old:
            access.denied_requests += 1
            self._refuse(served, requester, topic, old, LossReason.TOO_OLD)
        return [(max(start, limit), stop) for start, stop in ranges if stop > limit]

    def _deny(self, served: ServedSession, requester: bytes, patterns: list[str]) -> bool:
        """Say for which patterns there is no right; False where there is one for all."""
        access = self.access
        denied = [] if access is None else access.denied(requester, patterns)
        if access is not None and denied:
            access.denied_requests += 1
            why = access.why(requester, denied[0])
            body = control.Denied("subscribe", denied, why)
            self._reply(requester, wire.control_frame(Kind.DENIED, served.session, body))
        return bool(denied)

    def _user_of(self, requester: bytes) -> str:
        return "" if self.access is None else self.access.user_of(requester)

    def _refuse_lost(
        self, served: ServedSession, requester: bytes, topic: str, losses: list[Loss]
    ) -> None:
        """Refuse what is known to be lost, as what a crash skipped, and what is not kept."""
        by_reason: dict[LossReason, _Ranges] = {}
        for loss in losses:
            by_reason.setdefault(loss.reason, []).append((loss.start, loss.stop))
        for reason, lost in by_reason.items():
            self._refuse(served, requester, topic, lost, reason)

    def _receive_heads_request(
        self, served: ServedSession, requester: bytes, frame: Frame, now_ns: int
    ) -> None:
        probe = None  # it asks about all topics
        if frame.body_at < len(frame.data):  # about some, or where a time begins
            probe = control.read_body(frame, control.Probe)
        bodies = self.heads.bodies(served, requester, frame, probe, now_ns=now_ns)
        session, request = served.session, frame.sequence
        if bodies is None:
            return
        if probe is not None:
            self._deny(served, requester, probe.topics)
        elif self.access is not None and not self.access.has_any(requester):
            self._deny(served, requester, ["*"])
        flags = wire.FLAG_CLOSING if served.closing else 0
        frames = (
            wire.control_frame(Kind.HEADS, session, body, sequence=request, flags=flags)
            for body in bodies
        )
        self._reply(requester, *frames)

    def _refuse(
        self,
        served: ServedSession,
        requester: bytes,
        topic: str,
        ranges: _Ranges,
        reason: LossReason,
    ) -> None:
        body = control.Refused(topic, ranges, reason.value)
        self._reply(requester, wire.control_frame(Kind.REFUSED, served.session, body))

    def _reply(self, requester: bytes, *frames: bytes) -> None:
        """Let the frames of an answer wait to be sent: all of them, or none."""
        size = self._reply_bytes + sum(map(len, frames))
        waiting = len(self._replies)
        if waiting and (waiting + len(frames) > REPLIES_MAX or size > REPLIES_BYTES_MAX):
            self.replies_dropped += len(frames)
            return
        self._reply_bytes = size
        self._replies.extend(Reply(requester, frame) for frame in frames)

    def _reply_left(self) -> None:
        self._reply_bytes -= len(self._replies.popleft().frame)
