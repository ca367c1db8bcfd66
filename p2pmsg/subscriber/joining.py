"""The lines of a subscriber: who is at their other ends, and whether they carry.

For each connection::

    WELCOME ──▶ PROBE (over recovery) ──▶ ECHO (over data: heads) ──▶ JOINED ──▶ keep-alives

The probe's prefix is subscribed to after the topics, on the same connection, so an echo proves that
the topics are subscribed to as well. Each new connection is probed anew, and its heads show at once
what was missed in between. So is a line that says nothing, and a publisher that closes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from p2pmsg import control, wire
from p2pmsg.start import Start
from p2pmsg.subscriber.effects import Command
from p2pmsg.subscriber.rewound import (
    find_below,
    find_rewound,
    is_compared,
    note_probed,
    take_life,
)
from p2pmsg.subscriber.sessions import GroupState, Session
from p2pmsg.subscriber.upstream import merge_heads
from p2pmsg.wire import Frame, FrameError, Kind
from recovery import LossReason

if TYPE_CHECKING:
    from p2pmsg.subscriber.core import SubscriberCore

_MS = 1_000_000
PEERS_MAX = 4096
"""Sessions known at once; the ones that ended first are forgotten first."""
PROBE_RETRY_NS = 100 * _MS
PROBE_SOON_NS = 10 * _MS
_TRIES_SOON, _TRIES_QUICK, _TRIES_MAX = 4, 4, 8
"""Then probes come ever more rarely, up to 1.6 s: the echo of many streams takes its time, and so
do those of many subscribers that join at the same time."""
_NEVER_NS = 2**62
DEAF_NS = 2000 * _MS
"""How long NACKs may be without any answer: it may have restarted on its log, its welcome lost."""
STRANGE_NS = 1000 * _MS
"""How long frames of an unknown session may come: their welcome is on its way, or was lost."""
AGAIN_NS = 1000 * _MS
"""How long a publisher that was not joined yet has to answer on a connection made again."""


def probe_wait_ns(tries: int) -> int:
    """Return how long the echo of a probe is waited for that was repeated so often.

    The probe and the subscription to its echo go over two connections, so a first probe may come
    too early: 10 ms double to 80; then it is 100, four times, and doubles again.
    """
    if tries < _TRIES_SOON:
        return PROBE_SOON_NS << tries
    later = tries - _TRIES_SOON
    return PROBE_RETRY_NS << min(max(0, later - _TRIES_QUICK), _TRIES_MAX - _TRIES_QUICK)


class LineDesk:
    """Joins publishers, keeps in touch with them and gives them up; part of `SubscriberCore`.

    Attributes:
        subscriber: the id by which publishers count this subscriber.

    """

    def __init__(self, core: "SubscriberCore", subscriber: int, name: str) -> None:
        self._core = core
        self.subscriber = subscriber
        self.name = name
        self._timeout_ns = int(core.config.publisher_timeout_ms * _MS)
        # Not before a silent line was connected again, and a publisher there could answer.
        again_ns = self._timeout_ns + min(AGAIN_NS, self._timeout_ns)
        self._give_up_ns = max(again_ns, int(core.config.nack.deadline_ms * _MS))
        self._asked = core.start.position if core.start.kind == "sequence" else 0
        self._pages = control.HeadPages(core.config.streams_max)

    def receive_welcome(self, line: int, frame: Frame, now_ns: int) -> None:
        """Take what each new connection begins with, or what a closing publisher sends."""
        if frame.flags & wire.FLAG_RELAY or (
            frame.flags & wire.FLAG_CLOSING and self._core.lines[line].relay is not None
        ):
            self._core.relays.receive_welcome(line, frame, now_ns)
            return
        welcome = control.read_body(frame, control.Welcome)
        session = frame.session
        state = self._core.lines[line]
        peer = self._core.peers.get(session)
        if frame.flags & wire.FLAG_CLOSING:
            if peer is not None and not peer.closing and not peer.gone:
                self._note_closing(peer, line, now_ns)
            return
        state.strange_ns = None
        if state.relay is not None:
            self._core.relays.leave_line(line, now_ns)
        member = self._core.member if state.shared else None
        if member is not None and peer is not None:
            if not member.is_new_life(peer, line, welcome, now_ns):
                if not peer.gone:  # such a one is late: another session has its place
                    state.session = session
                    member.greet(peer, welcome, line, now_ns)
                return
            member.begin_life(peer)
        if peer is None:
            self._forget_peers()
            if member is not None:
                member.make_room(now_ns)
            returning = state.contacted
            if member is not None:
                returning &= now_ns - int(welcome.age_ms * _MS) > state.contacted_ns
            peer = Session(session, welcome, returning=returning, now_ns=now_ns)
            if member is not None:
                peer.feedback, peer.group = member.make_feedback(), GroupState(now_ns)
                member.greet(peer, welcome, line, now_ns)
            self._core.peers[session] = peer
            self._core.commands.append(Command("connect", line, session, welcome.recovery))
        elif peer.gone and member is None and not state.doubted:
            return  # it is late: another session has its place
        else:
            self._renew(peer, line, welcome)
            if member is not None:
                member.greet(peer, welcome, line, now_ns)
        if not state.contacted and member is None:
            state.contacted, state.contacted_ns = True, now_ns
        state.doubted = False
        state.place = control.place_of(welcome.recovery)
        if state.session != session:
            former, state.session = state.session, session
            if former is None or member is not None:
                pass
            elif all(other.session != former for other in self._core.lines):
                self.end_peer(self._core.peers[former], now_ns)
        peer.heard_ns = now_ns
        peer.direct, peer.current, peer.own.refused = True, None, {}
        self._core.note_life(peer, welcome.life, now_ns)
        self._core.next_check_ns = now_ns
        self.send_probe(peer, line, now_ns)

    def _note_closing(self, peer: Session, line: int, now_ns: int) -> None:
        peer.closing = True
        self._core.next_check_ns = now_ns
        if self._core.member is not None and peer.group is not None:
            # Anybody may say so in a group, and must not make the publisher send echoes to all.
            self._core.member.confirmation.want(peer, None, now_ns)
        else:
            self.send_probe(peer, line, now_ns)  # its echo has the last heads

    def _renew(self, peer: Session, line: int, welcome: control.Welcome) -> None:
        """Take a session for alive, again perhaps: its publisher may have restarted on its log."""
        if peer.gone or not peer.direct or peer.recovery != welcome.recovery:
            self._core.commands.append(Command("disconnect", session=peer.session))
            self._core.commands.append(Command("connect", line, peer.session, welcome.recovery))
        peer.gone = peer.closing = peer.told_complete = False
        peer.name, peer.recovery = welcome.name, welcome.recovery
        peer.stall_ms = welcome.stall_ms

    def begin_again(self, peer: Session, now_ns: int) -> None:
        """Join a session again over the channels that there are: its publisher was restarted."""
        peer.closing = peer.told_complete = False
        peer.current, peer.own.refused = None, {}
        self._core.next_check_ns = now_ns
        self.send_probe(peer, peer.probe_line, now_ns)

    def note_stranger(self, line: int, now_ns: int) -> None:
        """Note that a frame came of another session than the line's welcome announced."""
        if self._core.lines[line].strange_ns is None:
            self._core.lines[line].strange_ns = now_ns

    def send_probe(self, peer: Session, line: int, now_ns: int) -> None:
        """Ask for an echo over a line."""
        if peer.probe is not None:
            prefix = wire.control_prefix(Kind.ECHO, peer.probe)
            self._core.commands.append(Command("unsubscribe", peer.probe_line, prefix=prefix))
        peer.probe = self._core._rng.getrandbits(64)
        peer.probe_line = line
        peer.probe_due_ns, peer.probe_tries = now_ns + probe_wait_ns(0), 0
        note_probed(peer, self._asked)
        prefix = wire.control_prefix(Kind.ECHO, peer.probe)
        self._core.commands.append(Command("subscribe", line, prefix=prefix))
        self._request_probe(peer)

    def _request_probe(self, peer: Session) -> None:
        assert peer.probe is not None
        # Who was here before the session began has a right to all of it.
        whole = peer.returning and self._core.start.kind in ("latest", "earliest")
        start = Start("sequence", 0) if whole else self._core.start
        topics = self._core.topics or ["*"]
        newer = is_compared(peer, self._committed(peer))
        body = control.Probe(peer.probe, topics, start.kind, start.position, newer)
        frame = wire.control_frame(Kind.PROBE, peer.session, body)
        self._core.requests.append((peer.session, frame))

    def receive_echo(self, frame: Frame, now_ns: int) -> bool:
        """Take an echo; False where it is not for us."""
        core = self._core
        peer = next((p for p in core.peers.values() if p.probe == frame.session), None)
        routed = core.relays.route_of_probe(frame.session) if peer is None else None
        if peer is None and routed is None:
            return False  # who takes all topics gets the others' echoes, too
        body = self._pages.take(frame.session, control.read_body(frame, control.Heads))
        if body is None:
            return True
        if routed is not None:
            core.relays.receive_echo(*routed, body, now_ns)
        elif peer is not None:
            self._take_echo(peer, frame.session, body, now_ns)
        return True

    def _take_echo(self, peer: Session, probe: int, body: control.Heads, now_ns: int) -> None:
        core = self._core
        self._find_rewound(peer, body, now_ns)
        heads = core.relays.hold(peer, peer.session, body, now_ns)
        if heads is None:
            peer.probe_tries = 0  # it is answered, and to be repeated
            return
        core.commands.append(
            Command(
                "unsubscribe",
                peer.probe_line,
                prefix=wire.control_prefix(Kind.ECHO, probe),
            )
        )
        first = not peer.joined
        self.take_heads(peer, heads, now_ns)
        take_life(peer, body)
        # Last, so that an exception before it leads to another probe.
        peer.joined, peer.probe, peer.given_up = True, None, False
        line = core.lines[peer.probe_line]
        if peer.group is not None:
            core.next_check_ns = now_ns  # it may be asked now
        if not line.contacted and peer.group is not None:
            line.contacted, line.contacted_ns = True, peer.group.met_ns
        if core.cursor is None or not first or peer not in core.cursor.newcomers:
            self.send_joined(peer, now_ns)
        else:  # it has joined once the cursor says so: see `ResumePoints.record`
            peer.keep_alive_ns = _NEVER_NS

    def _committed(self, peer: Session) -> Mapping[str, int]:
        """Return where the streams of a session that is not joined yet resume."""
        cursor = self._core.cursor
        return {} if cursor is None or peer.joined else cursor.known(peer.session)

    def _find_rewound(self, peer: Session, heads: control.Heads, now_ns: int) -> None:
        """Begin again with the streams whose publisher has gone back."""
        core, table = self._core, self._core.stream_table
        for back in find_rewound(peer, heads, self._asked):
            table.rewind(back, now_ns)
            core._last = None
        topics = core.topics or ["*"]
        for below in find_below(heads, self._committed(peer), topics, self._asked):
            if below.topic not in peer.streams and table.is_full:
                core.invalid["streams_max"] += 1
            else:
                table.rewind_committed(peer, below, now_ns)

    def take_heads(self, peer: Session, heads: control.Heads, now_ns: int) -> None:
        """Take where the streams of a session stand, from an echo."""
        core = self._core
        first = not peer.joined
        if core.cursor is not None and first:
            core.cursor.note(peer)  # before anything of it can be handed on
        peer.heard_ns = now_ns
        for head in heads.streams:
            known = head.topic in peer.streams
            if not known and core.stream_table.is_full:
                core.invalid["streams_max"] += 1
                continue
            stream = peer.streams.get(head.topic) or core.stream_table.add(peer, head.topic)
            stream.confirmed = max(stream.confirmed, head.next)
            if stream.hinted <= head.next:
                stream.hinted = 0
            if core.member is not None:
                core.member.confirmation.streams.pop((peer.session, head.topic), None)
            if not stream.receiver.started:
                # On a later connection, a topic that is new was opened while we were away.
                stream.history = head.next
                core.stream_table.begin(stream, head.start if first else None, now_ns=now_ns)
            earliest = core.evicted_before(peer, min(head.earliest, head.next), now_ns)
            stream.receiver.observe_head(head.next, now_ns=now_ns, earliest=earliest)
            core.stream_table.settle(stream)
        listed = {head.topic for head in heads.streams}
        for topic, stream in peer.streams.items():
            if not stream.receiver.started and core.member is not None and peer.group is not None:
                core.member.confirmation.want(peer, topic, now_ns)
                continue
            if not stream.receiver.started:
                core.stream_table.begin(stream, now_ns=now_ns)
            if topic not in listed:
                stream.receiver.observe_head(heads.floor, now_ns=now_ns)
            core.stream_table.settle(stream)

    def send_joined(self, peer: Session, now_ns: int) -> None:
        """Say that we are there, and whether we have everything."""
        complete = self._is_complete(peer)
        peer.told_complete = complete
        peer.keep_alive_ns = now_ns + int(self._core.config.keep_alive_ms * _MS)
        settles = self._core.is_settled is not None or self._core.relays.own is not None
        in_group = peer.group is not None
        body = control.Joined(self.subscriber, self.name, complete, in_group, settles)
        frame = wire.control_frame(Kind.JOINED, peer.session, body)
        self._core.requests.append((peer.session, frame))

    def _is_complete(self, peer: Session) -> bool:
        """Whether a closing publisher may go: nothing of it can come, or is missing, or undone."""
        waits = peer.probe is not None or any(s.receiver.missing for s in peer.streams.values())
        waits |= peer.group is not None and peer.group.is_asking
        is_settled = self._core.is_settled
        return peer.closing and not waits and (is_settled is None or is_settled(peer))

    def excuse_silence(self, now_ns: int) -> None:
        """Think nothing of the lines' silence: nobody listens to them, for want of room."""
        for line in self._core.lines:
            line.heard_ns = now_ns
        for peer in self._core.peers.values():
            peer.heard_ns = now_ns

    def note_stopped(self, stopped_ns: int, now_ns: int) -> None:
        """Leave out a time in which this process did nothing, as one that SIGSTOP stops.

        What came meanwhile lies unread: it is read before anything is asked for or given up.
        """
        core = self._core
        for line in core.lines:
            line.heard_ns = min(now_ns, line.heard_ns + stopped_ns)
        for peer in core.peers.values():
            peer.heard_ns = min(now_ns, peer.heard_ns + stopped_ns)
            for route in (peer.own, *peer.relayed):
                if route.asked_ns is not None:
                    route.asked_ns = min(now_ns, route.asked_ns + stopped_ns)
        core.gaps.postpone(now_ns=now_ns, delay_ns=5 * _MS, stopped_ns=stopped_ns)
        if core.member is not None:
            core.member.note_pause()

    def leave(self) -> None:
        """Tell all publishers that this subscriber goes."""
        for session, peer in self._core.peers.items():
            if peer.joined and peer.direct and not peer.gone:
                body = control.Joined(self.subscriber, self.name)
                self._core.requests.append((session, wire.control_frame(Kind.LEAVE, session, body)))

    def check(self, *, now_ns: int) -> None:
        """Look after silence: repeat probes, send keep-alives, give up lines."""
        self._core.relays.check(now_ns=now_ns)
        self._check_peers(now_ns)
        self._check_lines(now_ns)
        if self._core.member is not None:
            self._core.member.check(now_ns)

    def _check_peers(self, now_ns: int) -> None:
        for peer in self._core.peers.values():
            if peer.gone:
                continue
            if peer.probe is not None and now_ns >= peer.probe_due_ns:
                peer.probe_tries += 1
                peer.probe_due_ns = now_ns + probe_wait_ns(peer.probe_tries)
                self._request_probe(peer)
            if peer.joined and peer.closing and not peer.told_complete:
                if self._is_complete(peer):
                    self.send_joined(peer, now_ns)
            elif peer.joined and peer.direct and now_ns >= peer.keep_alive_ns:
                self.send_joined(peer, now_ns)
            silent = now_ns - peer.heard_ns > self._timeout_ns
            if now_ns - peer.heard_ns > self._give_up_ns:
                self._give_up(peer, now_ns)
            if silent or peer.blamed:  # or it is back: perhaps it restarted on its log
                peer.blamed = silent
                reason = LossReason.PUBLISHER_GONE if silent else LossReason.TIMEOUT
                for stream in peer.streams.values():
                    stream.receiver.blame(0, stream.receiver.head, reason)

    def _check_lines(self, now_ns: int) -> None:
        for index, line in enumerate(self._core.lines):
            if line.is_heard:
                line.was_heard_ns = line.heard_ns
            silent_ns = now_ns - line.heard_ns
            strange_ns = 0 if line.strange_ns is None else now_ns - line.strange_ns
            peer = None if line.session is None else self._core.peers.get(line.session)
            if peer is not None and not peer.gaps:
                peer.own.asked_ns = None
            asked_ns = None if peer is None or peer.gone else peer.own.asked_ns
            if line.relay is not None:
                asked_ns = self._core.relays.asked_ns(index)
            # Joining a group again does not make a feed's request servers answer.
            is_feed = peer is not None and not peer.recovery
            deaf = asked_ns is not None and now_ns - asked_ns > DEAF_NS and not is_feed
            if silent_ns > self._timeout_ns or strange_ns > STRANGE_NS or deaf:
                if line.refused_until_ns is not None:
                    continue
                if peer is not None:
                    peer.own.asked_ns = None
                self._core.relays.forget_asked(index)
                # ZeroMQ gives up some connections for good, without a word.
                line.doubted = strange_ns > STRANGE_NS
                line.heard_ns = now_ns
                if silent_ns > self._timeout_ns:
                    line.lost_ns = now_ns
                line.strange_ns = None
                self._core.commands.append(Command("reconnect", index))
            elif peer is not None and silent_ns > self._timeout_ns // 2:
                self._probe_silent(peer, index, now_ns)

    def _probe_silent(self, peer: Session, line: int, now_ns: int) -> None:
        """Ask for an echo: perhaps it has nothing to say, for no topic of its is ours."""
        if peer.joined and peer.probe is None and peer.recovery:
            self.send_probe(peer, line, now_ns)

    def end_peer(self, peer: Session, now_ns: int) -> None:
        """Give up a session for good, unless a relay has it: another one is at its place."""
        core, peer.direct = self._core, False
        if peer.current is peer.own:
            peer.current = None
        if peer.probe is not None:
            prefix = wire.control_prefix(Kind.ECHO, peer.probe)
            core.commands.append(Command("unsubscribe", peer.probe_line, prefix=prefix))
            self._hold_part(peer)
            peer.probe = None
        if peer.relayed or core.relays.may_have(peer, now_ns):
            core.commands.append(Command("disconnect", session=peer.session))
            return
        peer.gone = True
        if not peer.joined:
            self._begin_unjoined(peer, now_ns)
        elif core.member is not None:
            core.member.confirmation.believe(peer, now_ns)
        for stream in peer.streams.values():
            stream.receiver.abandon(LossReason.PUBLISHER_GONE, now_ns=now_ns)
            core.stream_table.settle(stream)
        if core.member is not None and peer.group is not None:
            core.member.confirmation.tell_unconfirmed(peer)
        core.commands.append(Command("disconnect", session=peer.session))

    def _hold_part(self, peer: Session) -> None:
        """Keep what has come of an echo of several pages."""
        part = None if peer.probe is None else self._pages.part(peer.probe)
        if part is not None and not peer.joined:
            peer.held.setdefault(peer.session, part)

    def _give_up(self, peer: Session, now_ns: int) -> None:
        """Deliver what came of a session that fell silent before it was joined, or confirmed it.

        In a multicast only of one that was joined: anybody can announce one, and send data of it.
        It is probed on: when its publisher comes back on its log, it goes on from there.
        """
        relays = self._core.relays
        if not peer.joined and relays.upstreams and relays.reforming(now_ns):
            return  # a relay has met it, and may serve what it got yet
        if peer.joined:
            if self._core.member is not None:
                self._core.member.confirmation.believe(peer, now_ns)
                self._core.member.confirmation.tell_unconfirmed(peer)
            return
        if peer.group is not None:
            return
        self._hold_part(peer)
        if peer.given_up and all(s.receiver.started for s in peer.streams.values()):
            return
        self._begin_unjoined(peer, now_ns)
        peer.given_up = True
        for stream in peer.streams.values():
            stream.receiver.abandon(LossReason.PUBLISHER_GONE, now_ns=now_ns)
            self._core.stream_table.settle(stream)

    def _begin_unjoined(self, peer: Session, now_ns: int) -> None:
        """Begin the streams of a session whose echo will not come, as far as they are known.

        Only the echo could have said where they begin. A subscriber that wants what was kept begins
        where that begins at the latest, so that what is missing is reported and not left out.
        """
        core = self._core
        heads = merge_heads([*peer.held.values()]).streams if peer.held else []
        peer.held = {}
        core.sessions_unjoined += not peer.given_up
        for head in heads:
            if head.topic not in peer.streams and not core.stream_table.is_full:
                core.stream_table.add(peer, head.topic)
        starts = {head.topic: head for head in heads}
        for topic, stream in peer.streams.items():
            receiver, found = stream.receiver, starts.get(topic)
            if receiver.started:
                continue
            if found is not None:
                core.stream_table.begin(stream, found.start, now_ns=now_ns)
                receiver.observe_head(found.next, now_ns=now_ns)
            elif peer.returning or core.start.kind == "sequence":
                core.stream_table.begin(stream, now_ns=now_ns)
            elif core.start.kind == "latest":
                core.stream_table.begin(stream, receiver.first_known, now_ns=now_ns)
            else:
                core.stream_table.begin(stream, receiver.earliest_known, now_ns=now_ns)
        if core.cursor is not None and peer.streams:
            core.cursor.note(peer)
        known = f"what it had of {len(peer.streams)} streams is delivered or reported lost"
        text = (
            f"publisher {peer.name!r} (session {peer.session:016x}) was gone before it could be "
            f"joined: {known}, and of others nothing is known"
        )
        core.commands.append(Command("warn", peer.probe_line, peer.session, text=text))

    def _forget_peers(self) -> None:
        if len(self._core.peers) < PEERS_MAX:
            return
        ended = next((session for session, peer in self._core.peers.items() if peer.gone), None)
        if ended is None:
            raise FrameError("peers_max")
        self.forget_peer(ended)

    def forget_peer(self, session: int) -> None:
        """Forget a session and its streams; what they counted stays counted."""
        peer = self._core.peers.pop(session)
        if self._core.member is not None:
            self._core.member.forget(peer)
        self._core._last = None
        self._core.stream_table.forget(peer)
