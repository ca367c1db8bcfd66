"""The heads of what is at one endpoint: of all sessions, or of the one that is read. No I/O.

::

    asked   until it answers: after 50 ms, then ever more rarely; who is followed, on and on:
            a publisher with new heads: every `refresh`; a quiet one: ever more rarely
    heard   by heartbeats of the followed topics, 10 ms after a stream falls quiet

    a publisher   one session: its welcome says which, HEADS and heartbeats where it stands
    a group       a session for each publisher that was heard of, until another has its name
    a relay       all that its list says; its pulse says when there is another list
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from p2pmsg import control, wire
from p2pmsg.errors import AccessDeniedError, P2PError
from p2pmsg.ranges.heads import EndpointHeads, Heads, StreamHead, all_denied_by, heads_of
from p2pmsg.ranges.place import MS, Place, Presence
from p2pmsg.wire import Frame, FrameError, Kind
from transports.own_log import own_log as _log

_SILENT_NS: Final = 2000 * MS
"""A publisher that was silent for so long is no longer reachable."""
_RECONNECT_NS: Final = 8000 * MS
"""How often a silent one is connected to again: who needs seconds for an answer (thousands of
streams on a busy machine) would be cut off each time before it has come."""
_FORMER_MAX: Final = 256
_ALONE_NS: Final = 100 * MS
"""How often a peer is checked that cannot be asked yet."""


class _Question:
    """What a session is asked again and again."""

    __slots__ = ("due_ns", "presence", "wait_ns")

    def __init__(self, presence: Presence) -> None:
        self.presence = presence
        self.due_ns = self.wait_ns = 0


def heartbeat_prefixes(topics: list[str] | None) -> list[bytes]:
    """Return of which frames the heartbeats are that say more of these topics, and of relays."""
    kind = bytes((wire.VERSION, Kind.HEARTBEAT))
    found = [one.encode() + b"\0" + wire.MAGIC + kind for one in topics or () if one[-1:] != "*"]
    return [wire.control_prefix(Kind.HEARTBEAT), *found]


class PlaceHeads:
    """The publisher or relay at one endpoint.

    Args:
        place: who is there.
        body: which streams are asked about; None: all.
        session: whose heads, where several are there. Default None: of the only one.
        number: of the question; answers repeat it.
        follows: whether all sessions that are there are asked, and what is denied is logged.
            Default: only one.
        now_ns: monotonic time.

    Attributes:
        place: as it was given.
        heads: what is known, by session.
        reachable: whether it has answered lately.
        denied: what is denied, by session and pattern.
        due_ns: when `ask` has something to do.

    """

    def __init__(
        self,
        place: Place,
        body: control.Probe | None,
        session: int | None = None,
        *,
        number: int = 1,
        follows: bool = False,
        now_ns: int,
    ) -> None:
        self.place = place
        self.heads: dict[int, Heads] = {}
        self._former: dict[int, Heads] = {}
        self.denied: dict[int, dict[str, AccessDeniedError]] = {}
        self._denied: dict[int, dict[str, AccessDeniedError]] = {}
        self._pages = control.HeadPages(control.STREAMS_MAX)
        self.reachable = False
        self.due_ns = 0
        self._questions: dict[int, _Question] = {}
        self._body, self._session, self._number, self._follows = body, session, number, follows
        self._changed = False
        self._now_ns, self._floor_ns = now_ns, 0
        self._last_heard_ns = self._connected_ns = now_ns

    @property
    def is_relay(self) -> bool:
        """Whether a relay was heard of here last."""
        return self.place.relay is not None

    @property
    def session_count(self) -> int:
        """How many sessions are asked, at least one."""
        return max(1, len(self._questions))

    @property
    def has_answered(self) -> bool:
        """Whether the heads of all sessions here are known."""
        relay, questions = self.place.relay, tuple(self._questions)
        if relay is not None and not questions:
            return relay.complete
        if self._follows and self.place.is_meeting(self._now_ns):
            return False
        return bool(questions) and all(session in self.heads for session in questions)

    def view(self, unanswered: str) -> EndpointHeads:
        """Return what is known now; the place's sockets know who is there that gives no answer."""
        silent = [q.presence.name for s, q in self._questions.items() if s not in self.heads]
        if silent and not unanswered:
            unanswered = f"publisher {silent[0]!r} has not answered yet"
            if len(silent) > 1:
                unanswered += f", nor have {len(silent) - 1} more"
        return EndpointHeads(
            sessions=dict(self.heads),
            former=dict(self._former),
            reachable=self.reachable,
            is_relay=self.is_relay,
            denied={at: error for each in self.denied.values() for at, error in each.items()},
            unanswered=unanswered,
        )

    def resync(self, now_ns: int) -> None:
        """Ask all again, over other connections; what is known stays."""
        self._pages = control.HeadPages(control.STREAMS_MAX)
        self._denied.clear()
        self._questions.clear()
        self.due_ns = 0
        self.place.reset()
        self.place.listen(now_ns)

    def ask(self, now_ns: int, floor_ns: int, ceiling_ns: int) -> None:
        """Ask for the heads that are due, and say when to ask next."""
        place, self._now_ns = self.place, now_ns
        if now_ns - self._last_heard_ns > _SILENT_NS:
            self.reachable = False
            if now_ns - self._connected_ns > _RECONNECT_NS:
                self._connected_ns = now_ns
                place.renew(*self._presences().values())
        self._on_presences()
        for session, question in self._questions.items():
            if now_ns >= question.due_ns:
                question.wait_ns = max(floor_ns, min(ceiling_ns, 2 * question.wait_ns))
                question.due_ns = now_ns + question.wait_ns
                request = wire.control_frame(
                    Kind.HEADS_REQUEST, session, self._body, sequence=self._number
                )
                place.ask(question.presence, request)
        self._plan(now_ns)

    def take(self, frames: Iterable[Frame], now_ns: int, floor_ns: int) -> bool:
        """Take what has come; returns whether there is something new."""
        before = self.has_answered, self.reachable, self.is_relay
        self._now_ns, self._floor_ns = now_ns, floor_ns
        for frame in frames:
            try:
                if frame.kind == Kind.HEARTBEAT:
                    self._take_heartbeat(frame)
                elif frame.kind == Kind.DENIED:
                    self._on_denied(frame)
                elif frame.kind == Kind.HEADS:
                    self._take_heads(frame)
            except (FrameError, P2PError):
                self.place.invalid += 1
        self._on_presences()
        self._plan(now_ns)
        changed, self._changed = self._changed, False  # `ask` may have found something, too
        return changed or (self.has_answered, self.reachable, self.is_relay) != before

    def _plan(self, now_ns: int) -> None:
        due_ns = [question.due_ns for question in self._questions.values()]
        if not due_ns or (self._follows and self.place.is_meeting(now_ns)):
            due_ns.append(now_ns + _ALONE_NS)
        self.due_ns = min(due_ns)

    def _on_presences(self) -> None:
        """Ask those from now on who are here now."""
        relay, questions = self.place.relay, self._questions
        presences = self._presences()
        if {session: question.presence for session, question in questions.items()} != presences:
            self._changed = True
            self._questions = {
                session: questions[session]
                if session in questions and questions[session].presence == presence
                else _Question(presence)
                for session, presence in presences.items()
            }
            if self.place.endpoint.is_datagram:
                self._end_replaced()
        if relay is not None and relay.complete and relay.settled:
            self._end(self.heads.keys() - presences.keys())
            if presences:  # one that has nothing for us lists no session
                self.denied = {s: found for s, found in self.denied.items() if s in presences}

    def _end_replaced(self) -> None:
        """End the sessions that have another one in their place; in a group, one of their name."""
        gone = self.heads.keys() - self._questions.keys()
        if gone and self.place.endpoint.is_datagram:
            names = {question.presence.name for question in self._questions.values()}
            gone = {session for session in gone if self.heads[session].publisher in names}
        self._end(gone)

    def _end(self, sessions: Iterable[int]) -> None:
        """Keep the last heads of sessions that are not here any more."""
        for session in sessions:
            self._former[session] = self.heads[session]
            del self.heads[session]
        while len(self._former) > _FORMER_MAX:
            del self._former[next(iter(self._former))]

    def _presences(self) -> dict[int, Presence]:
        """Return whom to ask, by session."""
        if self._follows:
            return self.place.publishers
        peer = self.place.publisher(self._session, self._now_ns)
        return {} if peer is None else {peer.session: peer}

    def _take_heads(self, frame: Frame) -> None:
        if frame.sequence != self._number:
            return  # it answers another question
        question = self._questions.get(frame.session)
        if question is None:
            raise FrameError("session")
        body = self._pages.take(frame.session, control.read_body(frame, control.Heads))
        self._heard()
        if body is None:
            return  # more of it follows
        self._settle_denied(frame.session)
        is_of_time = self._body is not None and self._body.start == "time"
        heads = heads_of(question.presence, body, with_time=is_of_time)
        if self.heads.get(frame.session) == heads:
            return
        self._changed = True
        if not self.is_relay:
            self._end_replaced()
        self.heads[frame.session] = heads
        self._former.pop(frame.session, None)
        question.wait_ns = 0
        question.due_ns = min(question.due_ns, self._now_ns + self._floor_ns)

    def _on_denied(self, frame: Frame) -> None:
        """Note what is denied of an answer that follows, or by a relay of all that it has."""
        denied = control.read_body(frame, control.Denied)
        relay, question = self.place.relay, self._questions.get(frame.session)
        is_relay = relay is not None and relay.id == frame.session
        if question is None and not is_relay:
            raise FrameError("session")
        name = f"the relay {frame.session:016x}" if question is None else question.presence.name
        self._heard()
        self._denied[frame.session] = all_denied_by(name, denied)
        if is_relay:
            self._settle_denied(frame.session)

    def _settle_denied(self, session: int) -> None:
        """Take what was denied before an answer; what is not denied any more is forgotten."""
        known, found = self.denied.get(session, {}), self._denied.pop(session, {})
        if known.keys() == found.keys():
            return
        self._changed = True
        for pattern in found.keys() - known.keys() if self._follows else ():
            _log.warning("%s: %s", self.place.endpoint.address, found[pattern])
        others = {one: each for one, each in self.denied.items() if one != session}
        self.denied = {**others, session: found} if found else others

    def _take_heartbeat(self, frame: Frame) -> None:
        relay = self.place.relay
        if relay is not None and frame.session == relay.id:
            self._heard()
            relay.on_pulse(frame.sequence, self._now_ns)
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
        if question.wait_ns == 0:
            question.due_ns = min(question.due_ns, self._now_ns + self._floor_ns)

    def _heard(self) -> None:
        self._last_heard_ns = self._now_ns
        self.reachable = True
