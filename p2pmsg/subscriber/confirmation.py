"""Asks the publisher of a multicast over TCP what datagrams alone cannot say. No I/O.

Without keys the network is trusted: data and heads are taken as they come. What does not fit what
is known leads to a question over the recovery channel, which only the publisher answers::

    data or a head far ahead, a closing      ──▶ HEADS_REQUEST ──▶ HEADS
    an announcement of another incarnation           ──▶ JOINED ────────▶ ADMITTED(token,
    incarnation) ──▶ PROBE one of another place, and SILENT_NS
    without an answer at the known one        ──▶ PROBE to that place

A session is asked one question at a time, and more and more rarely while the answers bring nothing.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Protocol

from p2pmsg import control
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.sessions import FIRST_WAIT_NS, GroupState, Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.wire import FLAG_CLOSING, Frame, FrameError, Kind

_MS: Final = 1_000_000
_NEVER_NS: Final = 2**62
TOPICS_ASKED_MAX: Final = 128
"""Topics in one question; with more, it is about all. They fit a request of 64 KiB."""
WAIT_NS_MAX: Final = 500 * _MS
"""The longest wait between two questions to a session; it doubles while answers bring nothing."""
ALL_WAIT_NS: Final = 500 * _MS
"""Between two questions about all topics: their answer may be long."""
ANSWER_NS: Final = 250 * _MS
"""How long to wait for an answer before the same question is sent again. An answer to any of them
counts: some networks are slower."""
SILENT_NS: Final = 1000 * _MS
"""How long a session does not answer before it is looked for where it is announced otherwise."""
KEEP_ALIVE_NS: Final = 6000 * _MS
"""Its publisher answers each JOINED, one each 5 s at least: without an answer for longer, it is
asked whether it is still where the recovery channel leads."""


class Joiner(Protocol):
    """Joins sessions and ends them: what datagrams may lead to."""

    def send_probe(self, peer: Session, line: int, now_ns: int) -> None:
        """Ask for an echo over a connection."""

    def send_joined(self, peer: Session, now_ns: int) -> None:
        """Send JOINED, which asks for a token."""

    def begin_again(self, peer: Session, now_ns: int) -> None:
        """Join a session again: its publisher was restarted."""

    def repeat_probe(self, peer: Session) -> None:
        """Ask again for the echo of a session that is awaited."""

    def on_last_heads(self, peer: Session, now_ns: int) -> None:
        """Note that the publisher has said that it closes, with its last heads."""

    def end_peer(self, peer: Session, now_ns: int) -> None:
        """End a session: another one has its place."""

    def forget_peer(self, session: int) -> None:
        """Forget a session that never was."""

    def hurry(self, due_ns: int) -> None:
        """Let sessions be checked by a time."""


class Confirmation:
    """Asks publishers for what datagrams only hint at.

    Attributes:
        due_ns: when `check` has something to do.

    """

    def __init__(
        self,
        settings: Settings,
        stream_table: StreamTable,
        joiner: Joiner,
        *,
        peers: Mapping[int, Session],
        effects: Effects,
        invalid: Counter[str],
        begin_incarnation: Callable[[Session], None],
        rng: Random,
    ) -> None:
        self._settings = settings
        self._table = stream_table
        self._joiner = joiner
        self._peers = peers
        self._effects = effects
        self._invalid = invalid
        self._begin_incarnation = begin_incarnation
        self._rng = rng
        self._pages = control.HeadPages(settings.config.streams_max)
        self.due_ns = _NEVER_NS

    def want(self, peer: Session, topic: str | None, now_ns: int, *, head: int = 0) -> None:
        """Ask for the head of a stream, or (None) of all; `head` is the one that was heard of."""
        state = peer.group
        if state is None or peer.gone:
            return
        if topic is None or (topic not in state.topics and len(state.topics) >= TOPICS_ASKED_MAX):
            state.everything = True
        else:
            state.topics[topic] = max(head, state.topics.get(topic, 0))
        self._ask(peer, state, now_ns)

    def check(self, now_ns: int) -> None:
        """Repeat questions without an answer, and ask those that are due."""
        self.due_ns = _NEVER_NS
        for peer in self._peers.values():
            state = peer.group
            if state is None or peer.gone:
                continue
            if state.request is not None and now_ns - state.asked_ns >= ANSWER_NS:
                if peer.joined and peer.direct:
                    self._send_question(peer, state, now_ns)
                else:
                    self._take_back_question(state)
            if state.request is not None:
                self._check_again(state.asked_ns + ANSWER_NS)
            elif state.topics or state.everything:
                self._ask(peer, state, now_ns)
            if peer.joined and not state.token:  # its answer was lost
                self._ask_for_token(peer, state, now_ns)

    def receive_heads(self, peer: Session, frame: Frame, now_ns: int) -> None:
        """Take a page of an answer to a question for heads."""
        state = peer.group
        page = control.read_body(frame, control.Heads)
        if state is None or state.request != frame.sequence:
            return  # the question was answered before
        state.asked_ns = now_ns
        heads = self._pages.take(frame.sequence, page)
        if heads is None:
            return
        if heads.incarnation and peer.incarnation not in (0, heads.incarnation):
            self._take_back_question(state)
            state.due_ns = now_ns + ANSWER_NS
            self._check_again(state.due_ns)
            if peer.probe is None:
                state.incarnation, state.token = None, 0
                self._begin_again(peer, now_ns)
            return
        state.request = None
        is_vain = self._take_heads(peer, state, heads, now_ns)
        if frame.flags & FLAG_CLOSING and state.asked is None:
            self._joiner.on_last_heads(peer, now_ns)
        state.wait_ns = min(2 * state.wait_ns, WAIT_NS_MAX) if is_vain else FIRST_WAIT_NS
        state.due_ns = now_ns + state.wait_ns
        if state.topics or state.everything:
            self._check_again(state.due_ns)

    def receive_admitted(self, peer: Session, frame: Frame, now_ns: int) -> None:
        """Take the token, and notice another incarnation of the session."""
        state = peer.group
        body = control.read_body(frame, control.Admitted)
        if state is None:
            raise FrameError("kind")
        former = state.incarnation
        state.token, state.incarnation, state.parity = body.token, body.incarnation, body.parity
        if former is not None and former != body.incarnation:
            self._begin_again(peer, now_ns)

    def _begin_again(self, peer: Session, now_ns: int) -> None:
        """Join a session again, whose publisher has said over TCP that it was started again."""
        self._begin_incarnation(peer)
        self._joiner.begin_again(peer, now_ns)

    def is_elsewhere(
        self, peer: Session, welcome: control.Welcome, now_ns: int, *, from_elsewhere: bool
    ) -> bool:
        """Whether to look for a session's publisher where an announcement says that it is.

        One of another incarnation, or place, has it asked where it is known: what it answers
        counts. Only if it does not, it is looked for where it was announced. `from_elsewhere`: its
        recovery endpoint names no host, and the announcement comes from another one than is asked.
        """
        state, is_moved = peer.group, welcome.recovery != peer.recovery
        fits = not is_moved and (not peer.incarnation or welcome.incarnation == peer.incarnation)
        if peer.gone or state is None:
            return peer.gone or not fits  # one that was taken to be replaced is there after all
        if peer.closing and not peer.handshake.has_last:
            peer.handshake.on_open()  # or its next closing says it again
        unheard_ns, unanswered_ns = now_ns - peer.last_heard_ns, now_ns - state.answered_ns
        is_silent = unheard_ns > SILENT_NS or unanswered_ns > KEEP_ALIVE_NS
        if fits and not (from_elsewhere and is_silent):
            if not is_silent:
                state.misfit_ns = None
            return False
        if state.misfit_ns is None or state.answered_ns >= state.misfit_ns:
            state.misfit_ns = now_ns
        if peer.joined:
            self._ask_for_token(peer, state, now_ns)
        wait_ns = SILENT_NS if is_moved else 3 * SILENT_NS
        if not (is_moved or from_elsewhere) or now_ns - state.misfit_ns < wait_ns:
            return False
        state.incarnation, state.token, state.misfit_ns = None, 0, None
        return True

    def is_silent(self, peer: Session, now_ns: int) -> bool:
        """Whether a session without datagrams has not answered a question either."""
        state = peer.group
        silent_ns = now_ns - peer.last_heard_ns
        if state is None or silent_ns <= SILENT_NS:
            return False
        self.want(peer, "", now_ns)  # no topic: any answer shows that it is there
        return silent_ns > 2 * SILENT_NS and state.asked_ns > peer.last_heard_ns

    def _ask(self, peer: Session, state: GroupState, now_ns: int) -> None:
        due_ns = state.due_ns
        if state.everything and not state.topics:
            due_ns = max(due_ns, state.all_ns)
        if state.request is not None:
            self._check_again(state.asked_ns + ANSWER_NS)
            return
        if not peer.joined or not peer.direct:
            return
        if now_ns < due_ns:
            self._check_again(due_ns)
            return
        state.asked = state.topics
        if state.everything and now_ns >= state.all_ns:
            state.asked = None
            state.all_ns, state.everything = now_ns + ALL_WAIT_NS, False
        state.topics = {}
        state.request = self._rng.getrandbits(62)
        self._send_question(peer, state, now_ns)
        self._check_again(now_ns + ANSWER_NS)

    def _take_back_question(self, state: GroupState) -> None:
        """Ask again once there is a channel to the publisher."""
        state.request = None
        if state.asked is None:
            state.everything = True
        for topic, head in (state.asked or {}).items():
            state.topics[topic] = max(head, state.topics.get(topic, 0))

    def _send_question(self, peer: Session, state: GroupState, now_ns: int) -> None:
        """Send the question; it is the same when it is sent again."""
        assert state.request is not None
        state.asked_ns = now_ns
        asked = [topic for topic in state.asked or () if topic]
        topics = self._settings.patterns if state.asked is None else asked
        body = control.Probe(state.request, topics, "latest")
        key = peer.session
        self._effects.send(key, Kind.HEADS_REQUEST, key, body, sequence=state.request)

    def _take_heads(
        self, peer: Session, state: GroupState, heads: control.Heads, now_ns: int
    ) -> bool:
        """Take heads; return whether any was asked for that is not so far."""
        asked, is_vain = state.asked or {}, False
        for head in heads.streams:
            is_vain |= asked.get(head.topic, 0) > head.next
            if not self._table.take_head(peer, head, now_ns):
                self._invalid["streams_max"] += 1
        return is_vain

    def _ask_for_token(self, peer: Session, state: GroupState, now_ns: int) -> None:
        """Ask the publisher for the token, which shows its incarnation, too; not all the time."""
        self._check_again(now_ns + ANSWER_NS // 2)
        if now_ns - state.join_ns < ANSWER_NS // 2:
            return
        state.join_ns = now_ns
        cursor = self._settings.cursor
        if cursor is not None and peer in cursor.newcomers:
            self.want(peer, "", now_ns)  # it has joined once the cursor has recorded it
        else:
            self._joiner.send_joined(peer, now_ns)

    def _check_again(self, due_ns: int) -> None:
        self.due_ns = min(self.due_ns, due_ns)
        self._joiner.hurry(due_ns)
