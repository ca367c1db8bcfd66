"""Confirms with a publisher what the datagrams of a multicast say. No I/O.

Anybody can send datagrams to a group. Data with the next sequences of a stream are taken as they
come. All else that would change a ledger is a hint: the publisher is asked over the recovery
channel, which only it answers::

    a head, a topic, a gap nobody repairs ──▶ HEADS_REQUEST ──▶ HEADS ──▶ believed, or taken back
    another life, another place           ──▶ JOINED ────────▶ ADMITTED(token, life)
    an answer of another life                                ──▶ a PROBE, whose ECHO is compared
    another session of the same name      ──▶ it must have been joined, and the former one must
                                              not answer for a second

A session is asked one question at a time, and more and more rarely while the hints are false.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Final, Protocol

from p2pmsg import control
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.sessions import FIRST_WAIT_NS, GroupState, Session, Stream
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.wire import FLAG_CLOSING, Frame, FrameError, Kind

_MS: Final = 1_000_000
_NEVER_NS: Final = 2**62
TOPICS_ASKED_MAX: Final = 128
"""Topics in one question; with more, it is about all. They fit a request of 64 KiB."""
WAIT_NS_MAX: Final = 500 * _MS
"""The longest wait between two questions to a session; it doubles while the hints are false."""
ALL_WAIT_NS: Final = 500 * _MS
"""Between two questions about all topics: their answer may be long."""
ANSWER_NS: Final = 250 * _MS
"""How long to wait for an answer before the same question is sent again. An answer to any of them
counts: some networks are slower."""
SILENT_NS: Final = 1000 * _MS
"""How long a session does not answer before another one may take its place."""
SUCCESSOR_NS: Final = 1000 * _MS
"""How long a session is silent before one of the same name, begun since, counts as its successor:
five announcements."""
GIVE_UP_NS: Final = 2000 * _MS
"""How long a loss waits for the publisher to confirm that the messages existed."""
WARN_NS: Final = 60_000 * _MS
"""The shortest time between two warnings about sessions never joined: anybody announces some."""
DOUBT_NS: Final = 10_000 * _MS
"""How long a session may be announced without being joined, before it is forgotten."""


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

    def note_last_heads(self, peer: Session, now_ns: int) -> None:
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
        streams: those that no publisher has confirmed yet, by (session, topic).
        unconfirmed: messages that datagrams reported, or brought, and that were neither delivered
            nor reported lost: their publisher was gone before it confirmed them.
        sessions_unjoined: sessions of which anything came and that were never joined.
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
        begin_life: Callable[[Session], None],
        rng: Random,
    ) -> None:
        self._settings = settings
        self._table = stream_table
        self._joiner = joiner
        self._peers = peers
        self._effects = effects
        self._invalid = invalid
        self._begin_life = begin_life
        self._rng = rng
        self._pages = control.HeadPages(settings.config.streams_max)
        self.sessions_unjoined = 0
        self.streams: dict[tuple[int, str], Stream] = {}
        self.unconfirmed = 0
        self._warn_ns = -WARN_NS
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
                self._look_again(state.asked_ns + ANSWER_NS)
            elif state.topics or state.everything:
                self._ask(peer, state, now_ns)
            self._check_token(peer, state, now_ns)

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
        if heads.life and peer.life not in (0, heads.life):
            self._take_back_question(state)
            state.due_ns = now_ns + ANSWER_NS
            self._look_again(state.due_ns)
            if peer.probe is None:
                state.life, state.token = None, 0
                self._begin_again(peer, now_ns)
            return
        state.request = None
        false = self._take_heads(peer, state, heads, now_ns)
        if frame.flags & FLAG_CLOSING and state.asked is None:
            self._joiner.note_last_heads(peer, now_ns)
        if false:
            self._invalid["forged"] += false
        state.wait_ns = min(2 * state.wait_ns, WAIT_NS_MAX) if false else FIRST_WAIT_NS
        state.due_ns = now_ns + state.wait_ns
        if state.topics or state.everything:
            self._look_again(state.due_ns)

    def receive_admitted(self, peer: Session, frame: Frame, now_ns: int) -> None:
        """Take the token, and notice another life of the session."""
        state = peer.group
        body = control.read_body(frame, control.Admitted)
        if state is None:
            raise FrameError("kind")
        former, suspect = state.life, state.suspect
        if suspect and body.life == former and 0 < frame.sequence <= state.suspect_joins:
            state.suspect_ns, state.answered_ns = now_ns, -1  # it was asked before: no denial
            if state.suspect_asked_ns is not None:
                state.suspect_asked_ns = now_ns
            return
        state.token, state.life, state.parity = body.token, body.life, body.parity
        state.suspect = None
        if former is not None and former != body.life:
            self._begin_again(peer, now_ns)
        elif suspect is not None:
            welcome, closes = suspect[1], peer.handshake.has_last
            is_same = welcome.recovery == peer.recovery and welcome.life in (0, peer.life)
            if not (closes and is_same):  # else it was made before the farewell, and came after
                self._invalid["forged"] += 1
            if not closes:
                peer.handshake.note_open()  # or its next farewell says it again

    def _begin_again(self, peer: Session, now_ns: int) -> None:
        """Join a session again, whose publisher has said over TCP that it was started again.

        It is here, at whatever address a datagram came from.
        """
        self._begin_life(peer)
        self._joiner.begin_again(peer, now_ns)

    def is_new_life(self, peer: Session, line: int, welcome: control.Welcome, now_ns: int) -> bool:
        """Whether a session's publisher was started again, on its log, since it was last heard.

        Its recovery endpoint shows it, or the life that it is of. Of a session that was joined it
        is believed only if its publisher does not say otherwise.
        """
        moved, is_known = welcome.recovery != peer.recovery, welcome.life == peer.life
        changed = moved or (peer.life != 0 and not is_known)
        state = peer.group
        if peer.gone or state is None or not changed:
            is_late = is_known and peer.handshake.has_last  # it was made before the farewell
            if changed or peer.gone or not (peer.joined and peer.closing and not is_late):
                return changed
        elif not peer.joined:
            if now_ns - state.met_ns < SILENT_NS:
                return False  # the place that was named first has its time
            state.met_ns = now_ns
            return moved
        return self._suspect(peer, line, welcome, now_ns)

    def _suspect(self, peer: Session, line: int, welcome: control.Welcome, now_ns: int) -> bool:
        """Note that a datagram reported another life of a session; return whether to believe it.

        The publisher that was known is asked first, and has a second from then on to answer.
        """
        state = peer.group
        if state is None:
            return True
        known = state.suspect
        if known is None or known[1].recovery != welcome.recovery:
            state.suspect, state.suspect_ns = (line, welcome), now_ns
            state.suspect_joins = state.joins
            state.suspect_asked_ns = None
            self._ask_for_token(peer, state, now_ns)
            return False
        asked_ns = state.suspect_asked_ns
        if asked_ns is None or now_ns - asked_ns < SILENT_NS:
            return False
        state.suspect = None
        if state.answered_ns >= state.suspect_ns:
            self._invalid["forged"] += 1
            return False
        state.life, state.token = None, 0
        return True

    def is_silent(self, peer: Session, now_ns: int) -> bool:
        """Whether a session without datagrams has not answered a question either."""
        state = peer.group
        silent_ns = now_ns - peer.heard_ns
        if state is None or silent_ns <= SILENT_NS:
            return False
        self.want(peer, "", now_ns)  # no topic: any answer shows that it is there
        return silent_ns > 2 * SILENT_NS and state.asked_ns > peer.heard_ns

    def known(self, stream: Stream, now_ns: int) -> int | None:
        """Return up to where messages may be reported lost, as they are confirmed to exist.

        None: everything known may, because nobody answers.
        """
        receiver, peer = stream.receiver, stream.peer
        if receiver.nacks.stop <= stream.confirmed or peer.gone:
            return None
        if stream.doubt_ns < 0:
            stream.doubt_ns = now_ns
        elif now_ns - stream.doubt_ns > GIVE_UP_NS:
            return None
        self.want(peer, stream.topic, now_ns)
        return stream.confirmed

    def hint_head(self, stream: Stream, head: int, earliest: int, now_ns: int) -> None:
        """Take the head that a heartbeat names, as far as that can be taken back later."""
        receiver = stream.receiver
        if not receiver.started:
            stream.hinted = max(stream.hinted, head)
            self.want(stream.peer, stream.topic, now_ns)
            return
        if head > receiver.head:
            waits = self._table.receiver_config.wait_for_repair
            ahead = head - receiver.head > stream.jump_max or stream.distrusted
            if ahead or not waits or self._table.policy.skips(stream.topic):
                stream.hinted = max(stream.hinted, head)
                self.want(stream.peer, stream.topic, now_ns, head=head)
            else:
                receiver.observe_head(head, now_ns=now_ns)
        if earliest > receiver.expected:  # what is older is history, asked for over TCP
            stream.history = max(stream.history, min(earliest, receiver.head))

    def believe(self, peer: Session, now_ns: int) -> None:
        """Begin, with what came, the streams of a joined session that nobody is left to confirm.

        They began after the session's echo, so nothing of them is too old.
        """
        for stream in [one for one in self.streams.values() if one.peer is peer]:
            del self.streams[peer.session, stream.topic]
            if not stream.receiver.started:
                self._table.begin(stream, now_ns=now_ns)
                self._table.settle(stream)

    def report_unconfirmed(self, peer: Session) -> None:
        """Count, and warn of, what datagrams reported and a publisher that is gone never confirmed.

        It may have been published and lost, or be forged. So it is in no ledger.
        """
        found = []
        for stream in peer.streams.values():
            head, hinted, stream.hinted = stream.receiver.head, stream.hinted, 0
            if hinted > head:
                found.append((stream.topic, head, hinted))
        what = "announced, and its publisher was gone before it confirmed, are"
        self._count(peer, found, what, is_quiet=False)

    def report_unjoined(self, peer: Session, now_ns: int) -> None:
        """Count what came from a session that was announced and never joined; warn now and then."""
        found = []
        for stream in peer.streams.values():
            first = stream.receiver.first_known
            head = max(stream.receiver.head_known, stream.hinted)
            if first < head:
                found.append((stream.topic, first, head))
        self.sessions_unjoined += bool(found)
        is_quiet = now_ns - self._warn_ns < WARN_NS
        if found and not is_quiet:
            self._warn_ns = now_ns
        what = "brought or announced, and whose publisher never answered over TCP, are"
        self._count(peer, found, what, is_quiet=is_quiet)

    def _count(
        self, peer: Session, found: list[tuple[str, int, int]], what: str, *, is_quiet: bool
    ) -> None:
        count = sum(stop - start for _, start, stop in found)
        self.unconfirmed += count
        if not found or is_quiet:
            return
        topic, start, stop = max(found, key=lambda one: one[2] - one[1])
        others = f" and of {len(found) - 1} other topics" if len(found) > 1 else ""
        text = (
            f"{count} messages that datagrams of publisher {peer.name!r} (session "
            f"{peer.session:016x}) {what} neither delivered nor reported lost: [{start}, {stop}) "
            f"of {topic!r}{others}. Whether there were any nobody can say: anybody sends datagrams"
        )
        self._effects.warn(peer.handshake.line, peer.session, text)

    def forget(self, peer: Session) -> None:
        """Forget the streams of a session that nobody confirmed."""
        for session, topic in list(self.streams):
            if session == peer.session:
                del self.streams[session, topic]

    def _ask(self, peer: Session, state: GroupState, now_ns: int) -> None:
        due_ns = state.due_ns
        if state.everything and not state.topics:
            due_ns = max(due_ns, state.all_ns)
        if state.request is not None:
            self._look_again(state.asked_ns + ANSWER_NS)
            return
        if not peer.joined or not peer.direct:
            return
        if now_ns < due_ns:
            self._look_again(due_ns)
            return
        streams = peer.streams
        state.asked = state.topics
        if state.everything and now_ns >= state.all_ns:
            state.asked = None
            state.all_ns, state.everything = now_ns + ALL_WAIT_NS, False
        state.snapshot = {
            topic: streams[topic].receiver.head
            for topic in (streams if state.asked is None else state.asked)
            if topic in streams
        }
        state.topics = {}
        state.request = self._rng.getrandbits(62)
        self._send_question(peer, state, now_ns)
        self._look_again(now_ns + ANSWER_NS)

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
        self._note_asked(state, now_ns)
        asked = [topic for topic in state.asked or () if topic]
        topics = self._settings.patterns if state.asked is None else asked
        body = control.Probe(state.request, topics, "latest")
        key = peer.session
        self._effects.send(key, Kind.HEADS_REQUEST, key, body, sequence=state.request)

    def _take_heads(
        self, peer: Session, state: GroupState, heads: control.Heads, now_ns: int
    ) -> int:
        """Believe heads; return how many of the hints were false."""
        found = {head.topic: head for head in heads.streams}
        asked = state.asked
        false = 0
        for topic, hinted in (dict.fromkeys(found, 0) if asked is None else asked).items():
            if topic in found:
                false += self._take_head(peer, state, found[topic], hinted, now_ns)
        for topic in state.snapshot if asked is None else asked:
            stream = self.streams.get((peer.session, topic))
            if topic not in found and stream is not None:
                self._drop(stream)
                false += 1
        return false

    def _take_head(
        self, peer: Session, state: GroupState, head: control.Head, hinted: int, now_ns: int
    ) -> int:
        stream = peer.streams.get(head.topic)
        if stream is None:
            if not self._table.has_space(peer):
                self._invalid["streams_max"] += 1
                return 0
            stream = self._table.add(peer, head.topic)
        receiver, false = stream.receiver, hinted > head.next
        stream.confirmed, stream.doubt_ns = max(stream.confirmed, head.next), -1
        self.streams.pop((peer.session, head.topic), None)
        if not receiver.started:
            self._table.begin(stream, now_ns=now_ns)
        if head.next < state.snapshot.get(head.topic, 0) and receiver.retract(head.next):
            stream.distrusted = false = True
        receiver.observe_head(head.next, now_ns=now_ns)
        if stream.hinted <= max(head.next, hinted):
            stream.hinted = 0
        self._table.settle(stream)
        return int(false)

    def _drop(self, stream: Stream) -> None:
        """Forget a stream that its publisher does not know."""
        peer = stream.peer
        del self.streams[peer.session, stream.topic]
        if peer.streams.get(stream.topic) is not stream or stream.receiver.started:
            return
        self._table.drop(stream)

    def _check_token(self, peer: Session, state: GroupState, now_ns: int) -> None:
        """Ask for the token again, if the answer was lost or another life is suspected."""
        if not peer.joined or (state.token and state.suspect is None):
            return
        self._ask_for_token(peer, state, now_ns)

    def _ask_for_token(self, peer: Session, state: GroupState, now_ns: int) -> None:
        """Ask for the token, unless that was done just now: hints may come without end."""
        if now_ns - state.join_ns >= ANSWER_NS // 2:
            self._request_token(peer, state, now_ns)
        self._look_again(now_ns + ANSWER_NS // 2)

    def _request_token(self, peer: Session, state: GroupState, now_ns: int) -> None:
        """Ask the publisher for the token, which shows its life, too."""
        state.join_ns = now_ns
        cursor = self._settings.cursor
        if not peer.joined or (cursor is not None and peer in cursor.newcomers):
            self.want(peer, "", now_ns)  # it has joined once the cursor has recorded it
            return
        self._note_asked(state, now_ns)
        self._joiner.send_joined(peer, now_ns)

    def _note_asked(self, state: GroupState, now_ns: int) -> None:
        """Count from the first question on how long a suspected session does not answer."""
        if state.suspect is not None and state.suspect_asked_ns is None:
            state.suspect_asked_ns = now_ns

    def _look_again(self, due_ns: int) -> None:
        self.due_ns = min(self.due_ns, due_ns)
        self._joiner.hurry(due_ns)
