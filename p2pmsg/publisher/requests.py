"""Answers requests: probes, heads, NACKs; and counts the subscribers."""

from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

from p2pmsg import control, wire
from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.control_queue import ControlQueue
from p2pmsg.publisher.cutting import cut
from p2pmsg.publisher.forgotten import Forgotten
from p2pmsg.publisher.heads import HeadsMaker
from p2pmsg.publisher.served import Multicast, Served
from p2pmsg.publisher.session_access import AccessRules, SessionAccess
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import Kept, LossReason, RangeSet, RetransmitScheduler, SentFrames
from recovery.checks import to_ns
from recovery.retransmit import REQUESTERS_MAX

_MS = 1_000_000
REPLIES_MAX = 4096
"""Control replies that wait; a peer that asks faster than it reads is not answered."""
REPLIES_BYTES_MAX = 16 * 2**20
"""Their bytes; an answer that has more is taken where none waits."""
SUBSCRIBERS_MAX = 65_536
"""Subscribers that are counted; further ones are served all the same."""
_REQUESTER_BYTES_S = 2**32
"""What one requester gets, more than one TCP connection carries on one machine, so that its own
queue holds it back: who replays, or a Spark task that reads history, may be as fast as who follows
live, which is 2 GiB/s."""
_REQUESTER_BURST_BYTES = 128 * 2**20
BLOCKED_NS = 2 * _MS
"""How long a requester whose queue was full is left alone."""


@dataclass(slots=True)
class Reply:
    """One frame for one requester; a repair has the range that it answers, and who had it."""

    requester: bytes
    frame: bytes | memoryview
    topic: str = ""
    start: int = 0
    stop: int = 0
    source: str = "buffer"
    reason: LossReason = LossReason.EVICTED
    """Why it is refused, if it is."""

    @property
    def is_in_log(self) -> bool:
        """Whether `RequestHandler.read` is to fetch the frame."""
        return self.source == "log" and not self.frame


@dataclass(slots=True)
class KnownSubscriber:
    """A subscriber that confirmed that the data path works."""

    requester: bytes
    name: str
    last_heard_ns: int
    complete: bool = False
    settles: bool = False
    user: str = ""


class RequestHandler:
    """Takes requests and gives replies.

    Args:
        served: the session that is asked about.
        queue: takes the answers that go over the data path.
        config: bounds on what is asked for.
        frames: numbers what goes to each requester, from others that answer there, too. Default:
            there are none.

    Attributes:
        invalid: malformed or unexpected frames by reason.
        replies_dropped: control replies that were dropped at the bound.
        frames_repaired: frames that were sent again.
        messages_repaired: messages in them that were asked for, by the source that had them.
        subscribers: those who confirmed, by their ids.
        forgotten: those who fell silent, and had not confirmed that they have everything.
        acknowledged: by topic, the sequence below which some application has said that it is done.
        unreached: by topic, what all that said so of it have lost.
        heads: makes what probes and requests for heads are answered with.
        multicast: listens only to those who have joined; None: this is none.
        access: what those who ask may have, by `use_access_rules`; None: everything.

    """

    def __init__(
        self,
        served: Served,
        queue: ControlQueue,
        config: PublisherConfig,
        frames: SentFrames | None = None,
    ) -> None:
        self._served = served
        self._queue = queue
        self.scheduler = RetransmitScheduler(
            budget_bytes_s=_REQUESTER_BYTES_S, budget_burst_bytes=_REQUESTER_BURST_BYTES,
            frames=frames,
        )  # fmt: skip
        self._replies: deque[Reply] = deque()
        self._at_once: Reply | None = None
        self._reply_bytes = 0
        self.subscribers: dict[int, KnownSubscriber] = {}
        self.forgotten = Forgotten()
        self.acknowledged: dict[str, int] = {}
        self.unreached: dict[str, RangeSet] = {}
        self.invalid: Counter[str] = Counter()
        self.heads = HeadsMaker(served)
        self.multicast: Multicast | None = None
        self.access: SessionAccess | None = None
        self._frame_bytes_max: dict[bytes, int] = {}
        self.replies_dropped = 0
        self.frames_repaired = 0
        self.messages_repaired = {"buffer": 0, "log": 0}
        self._timeout_ns = to_ns(config.subscriber_timeout)
        self._handlers: dict[int, Callable[[bytes, Frame, int], None]] = {
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
        self.access = self.heads.access = SessionAccess(self._served, access_rules)

    def receive(
        self, requester: bytes, data: bytes, *, now_ns: int, user: str = "", wall_ns: int = 0
    ) -> None:
        """Take a request; where there are rights, of a user, and with the time by the wall."""
        access = self.access
        if access is not None and not access.note(requester, user, now_ns=now_ns, wall_ns=wall_ns):
            self.scheduler.forget(requester)
        self._receive(requester, data, now_ns)

    def resync(self) -> None:
        """Go on after an exception at any line: what is lost of requests is asked for again."""
        self.scheduler.resync()
        self.heads.resync()
        self._at_once = None
        self._reply_bytes = sum(len(reply.frame) for reply in self._replies)

    def _receive(self, requester: bytes, data: bytes, now_ns: int) -> None:
        try:
            frame = Frame(data)
            handler = self._handlers.get(frame.kind)
            if handler is None:
                raise FrameError("kind")
            if frame.session != self._served.session:
                raise FrameError("session")
            handler(requester, frame, now_ns)
        except FrameError as error:
            self.invalid[str(error)] += 1
        except OSError:  # no descriptor is left to look into the log with; it asks again
            self.replies_dropped += 1

    def on_malformed(self, count: int) -> None:
        """Note how many requests have come so far that are of more than one part."""
        if count:
            self.invalid["parts"] = count

    def on_revoked(self) -> None:
        """Count a request of a user that is revoked."""
        self.invalid["revoked"] += 1

    def next_reply(self, *, now_ns: int) -> Reply | None:
        """Return what to send next, or None.

        The shell calls `read` where the frame is still in the log, tries to send it, and then
        calls `reply_sent`, `reply_blocked` or `requester_gone`.
        """
        if self._at_once is not None:
            return self._at_once
        while not self._replies and (waiting := self.heads.next_waiting(now_ns=now_ns)):
            self._receive(*waiting, now_ns)
        if self._replies:
            return self._replies[0]
        while (job := self.scheduler.next_job(now_ns=now_ns)) is not None:
            requester, topic, start, stop = job
            if self.access is not None and not self.access.may(requester, topic):
                self.scheduler.drop_range(requester, topic, start, stop)
                self._refuse(requester, topic, [(start, stop)], LossReason.DENIED)
                return self._replies[0] if self._replies else None
            kept = self._served.frame_at(topic, start, stop)
            kept_from = stop if kept is None else max(kept.start, start)
            if kept_from > start and self._served.has_log:
                return Reply(requester, b"", topic, start, min(stop, kept_from), "log")
            if kept is None or kept_from > start:
                self.scheduler.drop_range(requester, topic, start, kept_from)
                self._refuse(requester, topic, [(start, kept_from)], LossReason.EVICTED)
                return self._replies[0] if self._replies else None
            reply = Reply(requester, kept.frame, topic, start, min(stop, kept.stop))
            if self._make_fit(reply, kept):
                return reply
            self.refuse(reply)
            return self._replies[0] if self._replies else None
        return None

    def read(self, reply: Reply) -> bool:
        """Fetch a reply's frame from the log; False: it is not to be had, call `refuse`.

        It is called without the publisher's lock, since the disk may take its time.

        Raises:
            OSError: no descriptor is left to read with; call `reply_blocked`.

        """
        kept = self._served.read(reply.requester, reply.topic, reply.start)
        if kept is None or kept.start > reply.start:
            if kept is not None:
                reply.stop = min(reply.stop, kept.start)
            return False
        reply.frame = bytes(kept.frame)
        reply.stop = min(reply.stop, kept.stop)
        return self._make_fit(reply, kept)

    def _make_fit(self, reply: Reply, kept: Kept) -> bool:
        """Cut a frame to what its requester takes; False: already its first message is too large.

        A frame above `frame_bytes_max` would end the connection, and what waits with it.
        """
        limit = self._frame_bytes_max.get(reply.requester, 0)
        if not limit or len(reply.frame) <= limit:
            return True
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
        self.scheduler.drop_range(reply.requester, reply.topic, reply.start, reply.stop)
        self._refuse(reply.requester, reply.topic, [(reply.start, reply.stop)], reply.reason)

    def reply_sent(self, reply: Reply, *, now_ns: int) -> None:
        """Note that `reply` is on its way."""
        if not reply.topic:
            self._reply_left()
            self.scheduler.frames.note(reply.requester)
            return
        self.frames_repaired += 1
        self.messages_repaired[reply.source] += reply.stop - reply.start
        if reply is self._at_once:
            self._at_once = None  # the scheduler knows of it
            return
        self.scheduler.sent(
            reply.requester, reply.topic, reply.start, reply.stop, len(reply.frame), now_ns=now_ns
        )

    def reply_blocked(self, reply: Reply, *, now_ns: int) -> None:
        """Note that the requester's queue is full: repairs wait, control replies are dropped."""
        if not reply.topic:
            self._reply_left()
            self.replies_dropped += 1
        elif reply is self._at_once:
            self._at_once = None
            self.scheduler.take_back(reply.requester, reply.topic, reply.start, reply.stop)
        self.scheduler.block(reply.requester, now_ns + BLOCKED_NS)

    def requester_gone(self, reply: Reply, *, now_ns: int) -> None:
        """Note that the requester is no longer connected."""
        if not reply.topic:
            self._reply_left()
        elif reply is self._at_once:
            self._at_once = None
        self.scheduler.forget(reply.requester)
        self._frame_bytes_max.pop(reply.requester, None)
        if self.access is not None:
            self.access.forget(reply.requester)
        if self.multicast is not None:
            self.multicast.requester_gone(reply.requester)

    def next_deadline_ns(self, *, now_ns: int) -> int | None:
        """Return when `next_reply` may have something again."""
        if self._replies or self._at_once is not None:
            return now_ns
        waiting_ns = self.heads.next_deadline_ns(now_ns=now_ns)
        due_ns = self.scheduler.next_deadline_ns(now_ns=now_ns)
        if due_ns is None or waiting_ns is None:
            return waiting_ns if due_ns is None else due_ns
        return min(waiting_ns, due_ns)

    def expire(self, *, now_ns: int) -> None:
        """Forget subscribers that have not been heard of."""
        silent = [
            (subscriber, known)
            for subscriber, known in self.subscribers.items()
            if now_ns - known.last_heard_ns > self._timeout_ns
        ]
        for subscriber, known in silent:
            del self.subscribers[subscriber]
            if not known.complete and self._served.topics():
                self.forgotten.note(subscriber, known.name, self._timeout_ns / 1e9)
            if self.multicast is not None:
                self.multicast.dismiss(subscriber)

    def revoke(self, users: Collection[str]) -> None:
        """Forget those whose keys were revoked, and what they have asked for."""
        for subscriber, known in list(self.subscribers.items()):
            if known.user in users:
                del self.subscribers[subscriber]
                if self.multicast is not None:
                    self.multicast.dismiss(subscriber)
        if self.access is not None:
            for requester in self.access.revoke(users):
                self.scheduler.forget(requester)

    def forget_completions(self) -> None:
        """Wait for every subscriber to say again that it has everything."""
        for known in self.subscribers.values():
            known.complete = False

    @property
    def denied(self) -> int:
        """How many requests were denied, as a whole or in part."""
        return 0 if self.access is None else self.access.denied_requests

    @property
    def incomplete(self) -> int:
        """How many subscribers have not said that they have everything, of those who are there."""
        return sum(not known.complete for known in self.subscribers.values())

    @property
    def undelivered(self) -> int:
        """How many have not said so, those who were forgotten included."""
        return self.incomplete + len(self.forgotten)

    @property
    def forgotten_names(self) -> dict[str, int]:
        """Of each name, how many were forgotten; see `Forgotten.by_name`."""
        return self.forgotten.by_name()

    @property
    def settlers(self) -> int:
        """How many have said that all of it is processed, or kept by a relay."""
        return sum(known.complete and known.settles for known in self.subscribers.values())

    def _receive_probe(self, requester: bytes, frame: Frame, now_ns: int) -> None:
        probe = control.read_body(frame, control.Probe)
        queue = self._queue
        if queue.is_waiting(probe.probe):
            return  # it was impatient: the answer is on its way
        if not queue.has_space():
            queue.dropped += 1  # they cannot leave; it will probe again
            return
        bodies = self.heads.bodies(requester, frame, probe, now_ns=now_ns)
        if bodies is None:
            return
        self._deny(requester, probe.topics)
        pages = [wire.control_frame(Kind.ECHO, probe.probe, body) for body in bodies]
        queue.answer(probe.probe, pages, now_ns=now_ns)

    def _receive_joined(self, requester: bytes, frame: Frame, now_ns: int) -> None:
        joined = control.read_body(frame, control.Joined)
        if self.access is not None and not self.access.has_any(requester):
            return  # it was answered that it may have nothing
        known = self.subscribers.get(joined.subscriber)
        user = self._user_of(requester)
        if known is not None and known.user != user:
            raise FrameError("subscriber")
        if known is not None or len(self.subscribers) < SUBSCRIBERS_MAX:
            if joined.wants_token and self.multicast is not None:
                admitted = self.multicast.admit(joined.subscriber, requester, user)
                self._reply(requester, admitted)
            self.subscribers[joined.subscriber] = KnownSubscriber(
                requester, joined.name, now_ns, joined.complete, joined.settles, user
            )
            self.forgotten.returned(joined.subscriber, joined.name)

    def _receive_held(self, requester: bytes, frame: Frame, now_ns: int) -> None:
        """Answer with the keys of a sealed group; they open all of it."""
        if self.multicast is None:
            raise FrameError("kind")
        if self._deny(requester, ["*"]):
            return
        user = self._user_of(requester)
        keys = self.multicast.receive_held(requester, frame, now_ns=now_ns, user=user)
        if keys is not None:
            self._reply(requester, keys)

    def send(self, requester: bytes, frame: bytes) -> None:
        """Send a frame that was not asked for."""
        self._reply(requester, frame)

    def _receive_leave(self, requester: bytes, frame: Frame, now_ns: int) -> None:
        joined = control.read_body(frame, control.Joined)
        known = self.subscribers.get(joined.subscriber)
        if known is not None and known.user != self._user_of(requester):
            raise FrameError("subscriber")
        if self.subscribers.pop(joined.subscriber, None) and self.multicast is not None:
            self.multicast.dismiss(joined.subscriber)
        self.forgotten.left(joined.subscriber)
        self.scheduler.forget(requester)

    def _receive_acknowledged(self, requester: bytes, frame: Frame, now_ns: int) -> None:
        acknowledged = control.read_body(frame, control.Settled)
        if self.access is not None and not self.access.may(requester, acknowledged.topic):
            self.access.denied_requests += 1
            return
        try:
            lost = RangeSet(acknowledged.lost)
        except ValueError:
            raise FrameError("range") from None
        # The head is 0 of a topic that is none of ours.
        following = min(acknowledged.next, self._served.head(acknowledged.topic)[1])
        if following:
            self._on_unreachable(acknowledged.topic, following, lost)
        if following > self.acknowledged.get(acknowledged.topic, 0):
            self.acknowledged[acknowledged.topic] = following

    def _on_unreachable(self, topic: str, following: int, lost: RangeSet) -> None:
        """Note what one has lost below `following`, and nobody has; it has the rest of that."""
        known = self.unreached.pop(topic, None)
        found = lost.overlap(min(self.acknowledged.get(topic, 0), following), following)
        for start, stop in known or ():
            found += lost.overlap(min(start, following), min(stop, following))
            if stop > following:
                found.append((max(start, following), stop))
        if found:
            self.unreached[topic] = RangeSet(sorted(found)[: control.RANGES_MAX])

    def _receive_nack(self, requester: bytes, frame: Frame, now_ns: int) -> None:
        nack = control.read_body(frame, control.Nack)
        if nack.frame_bytes_max:
            self._on_limit(requester, nack.frame_bytes_max)
        if len(nack.ranges) == 1 and self._answer_at_once(
            requester, nack.topic, *nack.ranges[0], now_ns, nack.received
        ):
            return
        earliest, following = self._served.head(nack.topic)
        kept: list[tuple[int, int]] = []
        evicted: list[tuple[int, int]] = []
        ranges: list[tuple[int, int]] = list(nack.ranges)
        for start, stop in ranges:
            if start >= stop:
                raise FrameError("range")
        if self.access is not None:
            ranges = self._refuse_denied(self.access, requester, nack.topic, ranges, now_ns)
            if not ranges:
                return
        ranges = self._refuse_lost(requester, nack.topic, ranges)
        for start, stop in ranges:
            if start < earliest:
                evicted.append((start, min(stop, earliest)))
            if max(start, earliest) < min(stop, following):
                kept.append((max(start, earliest), min(stop, following)))
        if evicted:
            self._refuse(requester, nack.topic, evicted, LossReason.EVICTED)
        if kept:
            refused = self.scheduler.request(
                requester, nack.topic, kept, now_ns=now_ns, received=nack.received
            )
            if refused:
                self._refuse(requester, nack.topic, refused, LossReason.BUDGET)

    def _on_limit(self, requester: bytes, frame_bytes_max: int) -> None:
        """Remember the largest frame that a requester takes; the oldest is forgotten at a bound."""
        limits = self._frame_bytes_max
        if requester not in limits and len(limits) >= REQUESTERS_MAX:
            del limits[next(iter(limits))]
        limits[requester] = frame_bytes_max

    def _answer_at_once(
        self, requester: bytes, topic: str, start: int, stop: int, now_ns: int, received: int | None
    ) -> bool:
        """Answer a range that one frame of the replay buffer has, where nothing else waits.

        It is what a loss mostly is, and what a reader of small ranges asks. What the buffer has may
        be had, unless it waits for the disk or to be sent to a multicast, or its asker has few
        rights.
        """
        served = self._served
        if served.has_log or self.multicast is not None or self.access is not None:
            return False
        if self._replies or self._at_once is not None or start >= stop:
            return False
        kept = served.frame_at(topic, start, stop)
        if kept is None or kept.start > start or kept.stop < stop:
            return False
        size = len(kept.frame)
        if size > self._frame_bytes_max.get(requester, size):
            return False
        if not self.scheduler.answer_at_once(
            requester, topic, start, stop, size, now_ns=now_ns, received=received
        ):
            return False
        self._at_once = Reply(requester, kept.frame, topic, start, stop)
        return True

    def _refuse_denied(
        self,
        access: SessionAccess,
        requester: bytes,
        topic: str,
        ranges: list[tuple[int, int]],
        now_ns: int,
    ) -> list[tuple[int, int]]:
        """Refuse what a requester may not have, with the reason; return what it may have."""
        if not access.may(requester, topic):
            access.denied_requests += 1
            self._refuse(requester, topic, ranges, LossReason.DENIED)
            return []
        limit = access.limit(requester, topic, now_ns=now_ns)
        old = [(start, min(stop, limit)) for start, stop in ranges if start < limit]
        if old:
            access.denied_requests += 1
            self._refuse(requester, topic, old, LossReason.TOO_OLD)
        return [(max(start, limit), stop) for start, stop in ranges if stop > limit]

    def _deny(self, requester: bytes, patterns: list[str]) -> bool:
        """Say for which patterns there is no right; False where there is one for all."""
        access = self.access
        denied = [] if access is None else access.denied(requester, patterns)
        if access is not None and denied:
            access.denied_requests += 1
            why = access.why(requester, denied[0])
            body = control.Denied("subscribe", denied, why)
            self._reply(requester, wire.control_frame(Kind.DENIED, self._served.session, body))
        return bool(denied)

    def _user_of(self, requester: bytes) -> str:
        return "" if self.access is None else self.access.user_of(requester)

    def _refuse_lost(
        self, requester: bytes, topic: str, ranges: list[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Refuse what is known to be lost, as what a crash skipped; return what may be had."""
        gone: dict[LossReason, list[tuple[int, int]]] = {}
        others: list[tuple[int, int]] = []
        for start, stop in ranges:
            losses, rest = self._served.lost(topic, start, stop)
            for loss in losses:
                gone.setdefault(loss.reason, []).append((loss.start, loss.stop))
            others += rest
        if ranges and not gone and not others:
            # It is not known yet whether it can be had: another one is to be asked, or this again.
            self._refuse(requester, topic, [], LossReason.BUDGET)
        for reason, lost in gone.items():
            self._refuse(requester, topic, lost, reason)
        return others

    def _receive_heads_request(self, requester: bytes, frame: Frame, now_ns: int) -> None:
        probe = None  # it asks about all topics
        if frame.body_at < len(frame.data):  # about some, or where a time begins
            probe = control.read_body(frame, control.Probe)
        bodies = self.heads.bodies(requester, frame, probe, now_ns=now_ns)
        session, request = self._served.session, frame.sequence
        if bodies is None:
            return
        if probe is not None:
            self._deny(requester, probe.topics)
        elif self.access is not None and not self.access.has_any(requester):
            self._deny(requester, ["*"])
        flags = wire.FLAG_CLOSING if self._served.closing else 0
        frames = (
            wire.control_frame(Kind.HEADS, session, body, sequence=request, flags=flags)
            for body in bodies
        )
        self._reply(requester, *frames)

    def _refuse(
        self, requester: bytes, topic: str, ranges: list[tuple[int, int]], reason: LossReason
    ) -> None:
        body = control.Refused(topic, ranges, reason.value)
        self._reply(requester, wire.control_frame(Kind.REFUSED, self._served.session, body))

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
