"""One endpoint whose heads are followed: who is there, and where their streams stand.

::

    a publisher   one session: its welcome says which, HEADS and heartbeats where it stands
    a relay       all that its list says; its pulse tells when there is another list
"""

import time
from dataclasses import replace
from typing import Final

from p2pmsg import control, wire
from p2pmsg.errors import P2PError
from p2pmsg.reader.channel import MS, RangeChannel
from p2pmsg.reader.membership import Presence
from p2pmsg.reader.reader import Heads, StreamHead, heads_of
from p2pmsg.sync.settings import check_endpoints
from p2pmsg.wire import Frame, FrameError, Kind

_SILENT_NS: Final = 2000 * MS
"""A publisher that was silent for so long is no longer reachable, and is connected to anew."""
_PATIENCE_NS: Final = 8000 * MS
"""It is waited twice as long before each further try, up to this: who needs more than 2 s for an
answer (thousands of streams on a busy machine) would be cut off each time before it has come."""
_ALONE_NS: Final = 100 * MS
"""How often is looked after a peer that cannot be asked yet."""
_LIST_NS: Final = 1000 * MS
"""How often a relay is asked for its sessions, whatever its pulse says."""
_LIST_AGAIN_NS: Final = 50 * MS
"""And after a pulse that says that there is another list: an older one may be on its way."""
_FRAMES_MAX: Final = 1000


class _Question:
    """What a session is asked again and again."""

    __slots__ = ("due_ns", "presence", "wait_ns")

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self.due_ns = self.wait_ns = 0


class HeadsPeer:
    """The publisher or relay at one endpoint.

    It belongs to the watch's thread, but for the attributes, each of which is changed in one step.

    Attributes:
        channel: its sockets.
        heads: what is known, by session.
        reachable: whether it has answered lately.
        due_ns: when `ask` has something to do.
        has_more: whether `receive` has left something unread.

    """

    def __init__(self, endpoint: str, topics: list[str] | None) -> None:
        (at,) = check_endpoints(endpoint)
        self.channel = RangeChannel(at)
        self.heads: dict[int, Heads] = {}
        self._pages = control.HeadPages(control.STREAMS_MAX)
        self.reachable = self.has_more = False
        self.due_ns = 0
        self._questions: dict[int, _Question] = {}
        self._probe = None if topics is None else control.Probe(0, topics, "latest")
        self._request = 0
        self._relay_version = -1
        self._list_due_ns = 0
        self._changed = False
        self._now_ns = self._floor_ns = 0
        self._heard_ns = self._connected_ns = time.monotonic_ns()
        self._patience_ns = _SILENT_NS
        self.channel.follow(wire.control_prefix(Kind.HEARTBEAT))  # relays'
        for topic in topics or ():
            kind = bytes((wire.VERSION, Kind.HEARTBEAT))
            self.channel.follow(topic.encode() + b"\0" + wire.MAGIC + kind)
        self.channel.listen()

    @property
    def is_relay(self) -> bool:
        """Whether a relay was heard of here last."""
        return self.channel.relay is not None

    @property
    def session_count(self) -> int:
        """How many sessions are asked, at least one."""
        return max(1, len(self._questions))

    @property
    def has_answered(self) -> bool:
        """Whether the heads of all sessions here are known."""
        relay, questions = self.channel.relay, tuple(self._questions)
        if relay is not None and not questions:
            return relay.is_known
        return bool(questions) and all(session in self.heads for session in questions)

    def ask(self, now_ns: int, floor_ns: int, ceiling_ns: int) -> None:
        """Ask for the heads that are due, and say when to ask next."""
        channel = self.channel
        if now_ns - self._heard_ns > _SILENT_NS:
            self.reachable = False
            if now_ns - self._connected_ns > self._patience_ns:
                self._connected_ns = now_ns
                self._patience_ns = min(2 * self._patience_ns, _PATIENCE_NS)
                channel.reconnect()
        if channel.relay is not None and now_ns >= self._list_due_ns:
            self._list_due_ns = now_ns + _LIST_NS
            channel.relay.begin()
        channel.ask_sessions()
        self._note_presences()
        for session, question in self._questions.items():
            if now_ns >= question.due_ns:
                question.wait_ns = max(floor_ns, min(ceiling_ns, 2 * question.wait_ns))
                question.due_ns = now_ns + question.wait_ns
                self._request += 1
                channel.send(
                    wire.control_frame(
                        Kind.HEADS_REQUEST, session, self._probe, sequence=self._request
                    )
                )
        self._plan(now_ns)

    def receive(self, now_ns: int, floor_ns: int) -> bool:
        """Take what has come; returns whether there is something new."""
        before = self.has_answered, self.reachable, self.is_relay
        self._changed = self.has_more = False
        self._now_ns, self._floor_ns = now_ns, floor_ns
        self.channel.listen(self._take_heartbeat)
        for _ in range(_FRAMES_MAX):
            data = self.channel.receive()
            if data is None:
                break
            self._take_reply(data)
        else:
            self.has_more = True
        self._note_presences()
        self._plan(now_ns)
        return self._changed or (self.has_answered, self.reachable, self.is_relay) != before

    def _plan(self, now_ns: int) -> None:
        relay = self.channel.relay
        due_ns = [question.due_ns for question in self._questions.values()]
        if relay is not None:
            due_ns.append(self._list_due_ns)
        if not due_ns or not (relay is None or relay.is_complete):
            due_ns.append(now_ns + _ALONE_NS)
        self.due_ns = min(due_ns)

    def _note_presences(self) -> None:
        """Ask those from now on who are here now."""
        channel, questions = self.channel, self._questions
        presences = channel.presences()
        if questions.keys() != presences.keys() or any(
            questions[session].presence is not presence for session, presence in presences.items()
        ):
            self._changed = True
            self._questions = {
                session: questions[session]
                if session in questions and questions[session].presence == presence
                else _Question(presence)
                for session, presence in presences.items()
            }
        if channel.relay is not None and channel.relay.is_complete:
            for session in [each for each in self.heads if each not in presences]:
                del self.heads[session]

    def _take_reply(self, data: bytes) -> None:
        try:
            frame = Frame(data)
            if frame.kind != Kind.HEADS:
                return
            presence = self.channel.presences().get(frame.session)
            if presence is None:
                raise FrameError("session")
            body = self._pages.take(frame.session, control.read_body(frame, control.Heads))
        except (FrameError, P2PError):
            self.channel.invalid += 1
            return
        self._heard()
        if body is None:
            return  # more of it follows
        heads = heads_of(presence, body)
        if self.heads.get(frame.session) == heads:
            return
        self._changed = True
        if self.is_relay:
            self.heads[frame.session] = heads
        else:
            self.heads = {frame.session: heads}  # another session here has ended
        question = self._questions.get(frame.session)
        if question is not None:
            question.wait_ns = 0
            question.due_ns = min(question.due_ns, self._now_ns + self._floor_ns)

    def _take_heartbeat(self, frame: Frame) -> None:
        if frame.kind != Kind.HEARTBEAT:
            return
        relay = self.channel.relay
        if relay is not None and frame.session == relay.relay:
            self._heard()
            if frame.sequence != self._relay_version:
                self._relay_version = frame.sequence
                self._list_due_ns = self._now_ns + _LIST_AGAIN_NS
                relay.begin()
            return
        heads, question = self.heads.get(frame.session), self._questions.get(frame.session)
        if heads is None or question is None or not frame.topic:
            return
        beat = control.read_body(frame, control.Heartbeat)
        self._heard()
        known = heads.streams.get(frame.topic)
        if known is None or known.next <= frame.sequence:
            head = StreamHead(beat.earliest, frame.sequence)
            if head != known:
                self._changed = True
                question.wait_ns = 0
                heads = replace(heads, streams={**heads.streams, frame.topic: head})
                self.heads[frame.session] = heads
        due_ns = self._now_ns + self._floor_ns
        if question.wait_ns == 0:
            question.due_ns = min(question.due_ns, due_ns)
        if len(heads.streams) == 1:
            # Nothing that is asked for could be newer than this.
            question.due_ns = max(question.due_ns, due_ns)

    def _heard(self) -> None:
        self._heard_ns, self._patience_ns = self._now_ns, _SILENT_NS
        self.reachable = True
