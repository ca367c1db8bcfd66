"""Joins publishers' sessions, keeps in touch with them and ends them.

For each connection::

    WELCOME ──▶ PROBE (over recovery) ──▶ ECHO (over data: heads) ──▶ JOINED ──▶ keep-alives

The probe's prefix is subscribed to after the topics, on the same connection, so an echo proves that
the topics are subscribed to as well. Each new connection is probed, and the heads of its echo show
at once what was missed in between. A silent line is probed too, and a publisher that closes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from p2pmsg import control
from p2pmsg.subscriber.announcement import Announcements
from p2pmsg.subscriber.connections import Connection, ConnectionMonitor
from p2pmsg.subscriber.draining_feeds import DrainingFeeds
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.handshake import RETRY
from p2pmsg.subscriber.reachable import Reached
from p2pmsg.subscriber.rejoin import ANSWER_NS, Rejoin
from p2pmsg.subscriber.relays import RelayClient, merge_heads
from p2pmsg.subscriber.resume import (
    find_below,
    find_rewound,
    is_compared,
    on_incarnation,
    on_probed,
    take_incarnation,
)
from p2pmsg.subscriber.servers import Denials, Servers
from p2pmsg.subscriber.sessions import Route, Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.space import Space
from p2pmsg.subscriber.states import Event, State
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.topics import matches
from p2pmsg.wire import Frame, Kind
from recovery import LossReason
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.subscriber.group import MulticastReceiver

_MS = 1_000_000
CHECK_NS: Final = 250 * _MS
"""How often sessions are checked, at least: are they silent, and is a keep-alive due?"""
HURRIED_CHECK_NS: Final = 25 * _MS
"""The same while one is being probed, or is closing."""
_NEVER_NS = 2**62
_KEEP_ALIVE_NS = 5_000_000_000
"""How often a subscriber reports that it is there, at least: a third of `subscriber_timeout`."""
AGAIN_NS = 1000 * _MS
"""How long a publisher that was not joined yet has to answer on a connection made again."""


class SessionJoiner:
    """Owns the sessions, and what is done and sent to join them and to stay joined.

    Args:
        relay: the id of the relay that this subscriber is the receiving side of, or None.
        forget_last: called when the stream of the last frame may have ended.
        denials: takes what publishers do not deny any more.

    Attributes:
        peers: the sessions by their ids.
        effects: what the shell is to do and to send.
        relays: the relays that are connected.
        multicast: takes datagrams; None: there are none.
        servers: checks what servers may send; None: all of it.
        announcements: takes who is where.
        rejoin: asks publishers for what the data path does not say.
        former: asks for what is missing of feeds' sessions when others have begun.
        space: makes space for new sessions and streams.
        next_check_ns: when `check` is due.

    """

    def __init__(
        self,
        settings: Settings,
        stream_table: StreamTable,
        lines: Sequence[Connection],
        *,
        relay: int | None,
        invalid: Counter[str],
        forget_last: Callable[[], None],
        denials: Denials,
        rng: Random,
        now_ns: int,
        is_drained: Callable[[Session], bool] | None = None,
    ) -> None:
        config = settings.config
        self.settings = settings
        self.start, self.cursor = settings.start, settings.cursor
        self.stream_table = stream_table
        self.lines = lines
        self.invalid = invalid
        self.peers: dict[int, Session] = {}
        self.effects = Effects()
        self.relays = RelayClient(
            settings, relay, peers=self.peers, lines=lines, effects=self.effects,
            hurry=self.hurry, rng=rng, now_ns=now_ns,
        )  # fmt: skip
        self.multicast: MulticastReceiver | None = None
        self.servers: Servers | None = None
        self.next_check_ns = now_ns
        self._unjoined = 0
        self._is_drained = is_drained
        self._forget_last = forget_last
        self._denials = denials
        self._rng = rng
        self._timeout_ns = to_ns(config.publisher_timeout)
        self._keep_alive_ns = min(_KEEP_ALIVE_NS, self._timeout_ns)
        soonest_ns = min(self._timeout_ns, self._keep_alive_ns)
        self._check_ns = min(CHECK_NS, max(HURRIED_CHECK_NS, soonest_ns // 4))
        self._monitor = ConnectionMonitor(lines, self._timeout_ns)
        # Not before a silent line was connected again, and a publisher there could answer.
        again_ns = self._timeout_ns + min(AGAIN_NS, self._timeout_ns)
        self._give_up_ns = max(again_ns, to_ns(config.repair_timeout))
        self._asked = self.start.position if self.start.kind == "sequence" else 0
        self._pages = control.HeadPages(config.streams_max)
        self._reached = Reached(lines, self.peers, self.relays.upstreams, self.effects)
        self.announcements = Announcements(self)
        self.rejoin, self.former = Rejoin(self, rng), DrainingFeeds(self)
        self.space = Space(self.peers, stream_table, self.effects, invalid, self.forget_peer)

    def receive_multicast(self) -> "MulticastReceiver":
        """Return what takes the datagrams of multicasts."""
        from p2pmsg.subscriber.group import MulticastReceiver  # over TCP it is not imported

        self.multicast = MulticastReceiver(
            self.settings, self.stream_table, self, lines=self.lines, peers=self.peers,
            effects=self.effects, invalid=self.invalid, rng=self._rng,
        )  # fmt: skip
        return self.multicast

    @property
    def sessions_unjoined(self) -> int:
        """How many sessions ended, or fell silent and stayed so, before they were joined."""
        return self._unjoined

    def is_connected(self, line: int, now_ns: int) -> bool:
        """Whether a publisher, or relay, at a line was joined, and is neither silent nor gone."""
        state = self.lines[line]
        if not (state.is_heard and now_ns - state.last_heard_ns <= self._timeout_ns):
            return False
        if state.relay is not None:
            up = self.relays.upstreams.get(state.relay)
            return up is not None and up.complete and state.refused_until_ns is None
        return any(
            peer.joined
            and not peer.gone
            and not (peer.closing and peer.handshake.reported_complete)
            and not (state.shared and peer.state is State.ONE_WAY)
            for peer in self._peers_at(line)
        )

    def _peers_at(self, line: int) -> Iterator[Session]:
        """Return the sessions that are announced over a line."""
        last = self.lines[line].session
        for peer in self.peers.values():
            group = peer.group
            if peer.session == last or (group is not None and line in group.sources):
                yield peer

    def end_replaced(self, former: int | None, now_ns: int) -> int | None:
        """End the session that a line had, and return it, unless another line still has it."""
        if former not in self.peers or any(line.session == former for line in self.lines):
            return None
        self.end_peer(self.peers[former], now_ns)
        return former

    def end_unrouted(self, now_ns: int) -> None:
        """End the sessions to which no relay leads any more."""
        for peer in self.relays.unrouted():
            self.end_peer(peer, now_ns)

    def receive_announcement(self, line: int, frame: Frame, address: Any, now_ns: int) -> None:
        """Take what a publisher to a group says again and again."""
        self.announcements.receive_of_group(line, frame, address, now_ns)

    def hurry(self, due_ns: int) -> None:
        """Let `check` be due by a time."""
        self.next_check_ns = min(self.next_check_ns, due_ns)

    def on_incarnation(self, peer: Session, incarnation: int, now_ns: int) -> bool:
        """Note which incarnation of a publisher a frame is of; True: another one than is known."""
        is_other = on_incarnation(peer, incarnation)
        if is_other:
            self._forget_last()  # so that no frame takes the fast path
        return is_other

    def evicted_before(self, peer: Session, earliest: int, now_ns: int) -> int | None:
        """Return `earliest` if all before it is evicted; None: another route may keep more."""
        several = len(peer.routes) > 1 or self.relays.unsettled(now_ns)
        return None if several else earliest

    def on_last_heads(self, peer: Session, now_ns: int) -> None:
        """Note that a publisher has said over TCP that it closes, and what its last heads are."""
        if not peer.closing:
            peer.handshake.on_closing()
        peer.handshake.has_last = True
        self.hurry(now_ns)

    def begin_again(self, peer: Session, now_ns: int) -> None:
        """Join a session again over the same channels: its publisher was restarted."""
        peer.on(Event.OTHER_INCARNATION)
        self._forget_last()
        if self.multicast is not None:
            self.multicast.begin_incarnation(peer)
        peer.handshake.on_open()
        peer.current, peer.own.refused = None, {}
        self.next_check_ns = now_ns
        self.send_probe(peer, peer.handshake.line, now_ns)

    def on_unknown_session(self, line: int, now_ns: int) -> None:
        """Note that a frame came of another session than the line's welcome announced."""
        if self.lines[line].unknown_ns is None:
            self.lines[line].unknown_ns = now_ns

    def send_probe(self, peer: Session, line: int, now_ns: int) -> None:
        """Ask the publisher itself for an echo over a line."""
        on_probed(peer, self._asked)
        probe = peer.handshake.begin(line, self.effects, rng=self._rng, now_ns=now_ns)
        self._request_probe(peer, peer.own, probe)

    def repeat_probe(self, peer: Session) -> None:
        """Ask again for the publisher's own echo, if it is awaited."""
        if peer.probe is not None:
            self._request_probe(peer, peer.own, peer.probe)

    def probe_route(self, peer: Session, route: Route, now_ns: int) -> None:
        """Ask a relay for an echo."""
        handshake = route.handshake
        probe = handshake.begin(handshake.line, self.effects, rng=self._rng, now_ns=now_ns)
        self.hurry(now_ns + RETRY.wait_ns(0))
        self._request_probe(peer, route, probe)

    def _request_probe(self, peer: Session, route: Route, probe: int) -> None:
        start, newer = peer.start, False
        if route is peer.own:
            keys = None if self.multicast is None or peer.group is None else self.multicast.keys
            if keys is not None and keys.begin_with(peer):
                return  # without them the echo could not be read
            newer = is_compared(peer, self._committed(peer))
        topics = self.settings.patterns
        body = control.Probe(probe, topics, start.kind, start.position, newer)
        self.effects.send(route.key, Kind.PROBE, peer.session, body)

    def receive_echo(self, frame: Frame, now_ns: int) -> bool:
        """Take an echo; False where it is not for us."""
        found = self._route_of(frame.session)
        if found is None:
            return False  # a subscriber to all topics gets others' echoes, too
        body = self._pages.take(frame.session, control.read_body(frame, control.Heads))
        if body is not None:
            self._take_echo(*found, body, now_ns)
        return True

    def _route_of(self, probe: int) -> tuple[Session, Route] | None:
        """Return the session and route whose echo is awaited under this id, or None."""
        for peer in self.peers.values():
            for route in (peer.own, *peer.relayed):
                if route.handshake.probe == probe:
                    return peer, route
        return None

    def _take_echo(self, peer: Session, route: Route, body: control.Heads, now_ns: int) -> None:
        is_own = route is peer.own
        self._denials.answered(peer.name, body.denied)
        if self.servers is not None:
            body = self.servers.allowed(body, route, peer)
        if is_own:
            self._find_rewound(peer, body, now_ns)
        heads = self.relays.hold(peer, route.key, body, now_ns)
        if heads is None:
            route.handshake.repeat_soon()
            return
        self.take_heads(peer, heads, now_ns)
        if is_own:
            take_incarnation(peer, body)
        # Last, so that an exception before it leads to another probe.
        peer.on(Event.ECHOED if is_own else Event.RELAY_ECHOED)
        route.handshake.echoed(self.effects)
        if not is_own:
            route.handshake.keep_alive_ns = self.next_check_ns = now_ns
            return
        if peer.group is not None:
            self.next_check_ns = now_ns  # it may be asked now
            line = self.lines[peer.handshake.line]
            if not line.contacted:
                line.contacted, line.contacted_ns = True, peer.own.met_ns
        if self.cursor is None or peer not in self.cursor.newcomers:
            self.send_joined(peer, now_ns)
        else:  # it has joined once the cursor says so: see `ResumePoints.record`
            peer.handshake.keep_alive_ns = _NEVER_NS

    def _committed(self, peer: Session) -> Mapping[str, int]:
        """Return where the streams of a session that is not joined yet resume."""
        cursor = self.cursor
        return {} if cursor is None or peer.joined else cursor.known(peer.session)

    def _find_rewound(self, peer: Session, heads: control.Heads, now_ns: int) -> None:
        """Begin again with the streams whose publisher has gone back."""
        table = self.stream_table
        for back in find_rewound(peer, heads, self._asked):
            table.rewind(back, now_ns)
            self._forget_last()
        topics = self.settings.patterns
        for below in find_below(heads, self._committed(peer), topics, self._asked):
            if below.topic not in peer.streams and not table.has_space(peer):
                self.invalid["streams_max"] += 1
            else:
                table.rewind_committed(peer, below, now_ns)

    def take_heads(self, peer: Session, heads: control.Heads, now_ns: int) -> None:
        """Take where the streams of a session stand, from an echo."""
        first = not peer.joined
        if self.cursor is not None and first:
            self.cursor.note(peer)  # before anything of it can be delivered
        peer.last_heard_ns = now_ns
        for head in heads.streams:
            known = head.topic in peer.streams
            if not known and not self.stream_table.has_space(peer):
                self.invalid["streams_max"] += 1
                continue
            stream = peer.streams.get(head.topic) or self.stream_table.add(peer, head.topic)
            if not stream.receiver.started:
                # A topic that is new on a later connection was opened while we were away.
                stream.history = head.next
                start, following = head.start if first else None, head.next
                self.stream_table.begin(stream, start, now_ns=now_ns, following=following)
            earliest = self.evicted_before(peer, min(head.earliest, head.next), now_ns)
            stream.receiver.observe_head(head.next, now_ns=now_ns, earliest=earliest)
            self.stream_table.drain(stream)
        listed = {head.topic for head in heads.streams}
        for topic, stream in peer.streams.items():
            if not stream.receiver.started:
                self.stream_table.begin(stream, now_ns=now_ns)
            if topic not in listed and not (heads.denied and matches(topic, heads.denied)):
                stream.receiver.observe_head(heads.floor, now_ns=now_ns)
            self.stream_table.drain(stream)

    def send_joined(self, peer: Session, now_ns: int) -> None:
        """Report to the publisher that we are there, and whether we have everything."""
        self._report(peer, peer.own, now_ns, complete=self._is_complete(peer, peer.own))

    def _report(self, peer: Session, route: Route, now_ns: int, *, complete: bool) -> None:
        body = control.Joined(self.settings.subscriber, self.settings.name, complete)
        if route is peer.own:
            body.wants_token = peer.group is not None
            body.settles = self._is_drained is not None or self.relays.own is not None
        self.effects.send(route.key, Kind.JOINED, peer.session, body)
        is_admitted = route is not peer.own or peer.group is None or peer.group.token
        due_ns = now_ns + (self._keep_alive_ns if is_admitted else ANSWER_NS)
        route.handshake.on_report(due_ns, complete=complete)

    def _is_complete(self, peer: Session, route: Route) -> bool:
        """Whether a closing publisher, or relay, may go: all of it has come, and was processed."""
        handshake, group, cursor = route.handshake, peer.group, self.cursor
        if handshake.reported_complete:
            return True  # it may have gone on that: a probe would not be answered any more
        if not handshake.closing or peer.missing:
            return False
        if handshake.probe is not None and not handshake.has_last:
            return False
        if route is peer.own and group is not None and self.rejoin.is_asking(peer.session):
            return False
        if cursor is not None and peer in cursor.newcomers:
            return False
        return self._is_drained is None or self._is_drained(peer)

    def excuse_silence(self, now_ns: int) -> None:
        """Do not count the silence of connections that are not read, because all is full."""
        self._monitor.excuse_silence(now_ns)
        for peer in self.peers.values():
            peer.last_heard_ns = now_ns

    def on_stopped(self, stopped_ns: int, now_ns: int) -> None:
        """Leave out a time in which this process was stopped, as by SIGSTOP.

        What came meanwhile is read before anything is asked for or given up.
        """
        self._monitor.on_stopped(stopped_ns, now_ns)
        for peer in self.peers.values():
            peer.last_heard_ns = min(now_ns, peer.last_heard_ns + stopped_ns)
            for route in (peer.own, *peer.relayed):
                if route.asked_ns is not None:
                    route.asked_ns = min(now_ns, route.asked_ns + stopped_ns)
        self.stream_table.gaps.postpone(now_ns=now_ns, delay_ns=5 * _MS, stopped_ns=stopped_ns)
        if self.multicast is not None:
            self.multicast.on_pause()

    def leave(self) -> None:
        """Announce to all publishers and relays that this subscriber goes."""
        body = control.Joined(self.settings.subscriber, self.settings.name)
        for session, peer in self.peers.items():
            if peer.joined and peer.direct and not peer.gone:
                self.effects.send(session, Kind.LEAVE, session, body)
        for session, peer in self.peers.items():
            for route in peer.relayed:
                if route.handshake.joined:
                    self.effects.send(route.key, Kind.LEAVE, session, body)

    def ask_relays_again(self, now_ns: int) -> None:
        """Ask relays, and over all routes, again after an exception cut something short."""
        self.relays.ask_again(now_ns)
        for peer in self.peers.values():
            for route in peer.relayed:
                self.probe_route(peer, route, now_ns)

    def check(self, *, now_ns: int) -> None:
        """Repeat probes, send keep-alives, and make silent connections again."""
        self.relays.check(now_ns)
        for peer in self.peers.values():
            for route in peer.relayed:
                self._check_relayed(peer, route, now_ns)
        self.end_unrouted(now_ns)
        self._check_peers(now_ns)
        self._check_lines(now_ns)
        self.space.warn(now_ns)
        self._reached.check(now_ns)
        self.rejoin.check(now_ns)
        self.former.check(now_ns)
        if self.multicast is not None:
            self.multicast.check(now_ns)
        hurried = bool(self.relays.waiting) or any(
            (p.probe or p.closing or (p.relayed and not p.joined)) and not p.gone
            for p in self.peers.values()
        )
        due_ns = now_ns + (HURRIED_CHECK_NS if hurried else self._check_ns)
        self.next_check_ns = min(due_ns, max(self.rejoin.due_ns, now_ns + _MS))

    def _check_relayed(self, peer: Session, route: Route, now_ns: int) -> None:
        handshake = route.handshake
        if not peer.gaps:
            route.asked_ns = None
        if (probe := handshake.take_due(now_ns)) is not None:
            self._request_probe(peer, route, probe)
        if not handshake.joined:
            return
        complete = self._is_complete(peer, route)
        if not handshake.is_report_due(now_ns, complete=complete):
            return
        if self.cursor is None or peer not in self.cursor.newcomers:  # else it has not joined yet
            self._report(peer, route, now_ns, complete=complete)

    def _check_peers(self, now_ns: int) -> None:
        for peer in self.peers.values():
            if peer.gone:
                continue
            handshake = peer.handshake
            if (probe := handshake.take_due(now_ns)) is not None:
                self._request_probe(peer, peer.own, probe)
            if not peer.joined:
                is_due = False
            elif handshake.closing and not handshake.reported_complete:
                is_due = self._is_complete(peer, peer.own)
            elif handshake.reported_complete and now_ns - peer.heard_ns > self._timeout_ns // 2:
                is_due = (
                    False  # it has gone: its next incarnation would get this, queued, as its own
                )
            else:
                is_due = peer.direct and handshake.is_report_due(now_ns, complete=False)
            if is_due:
                self.send_joined(peer, now_ns)
            if peer.relayed and now_ns - peer.handshake.began_ns > self._timeout_ns:
                peer.on(Event.UNREACHED)
            silent = now_ns - peer.heard_ns > self._timeout_ns
            if now_ns - peer.heard_ns > self._give_up_ns:
                self._give_up(peer, now_ns)
            if silent or peer.state is State.SILENT:
                peer.on(Event.SILENCE if silent else self._back(peer, now_ns))
                reason = LossReason.PUBLISHER_GONE if silent else LossReason.TIMEOUT
                for stream in peer.streams.values():
                    stream.receiver.nacks.set_loss_reason(0, stream.receiver.head, reason)

    def _back(self, peer: Session, now_ns: int) -> Event:
        """Return how a session that was silent is back; it was perhaps restarted on its log."""
        data_path_ns = max(peer.last_heard_ns, peer.own.announced_ns)
        if now_ns - data_path_ns > self._timeout_ns:
            return Event.ANSWERED
        is_known = peer.probe is None or peer.relayed
        return Event.HEARD if is_known else Event.OTHER_INCARNATION

    def _check_lines(self, now_ns: int) -> None:
        for index, line in enumerate(self.lines):
            silent_ns = now_ns - line.since_ns
            peer = None if line.session is None else self.peers.get(line.session)
            if peer is not None and not peer.gaps:
                peer.own.asked_ns = None
            asked_ns = None if peer is None or peer.gone else peer.own.asked_ns
            if line.relay is not None:
                asked_ns = self.relays.asked_ns(index)
            if peer is not None and not peer.own.recovery:
                asked_ns = None  # a connection made again does not make a feed's servers answer
            if self._monitor.is_broken(line, asked_ns, now_ns):
                if peer is not None:
                    peer.own.asked_ns = None
                self.relays.forget_asked(index)
                self.effects.reconnect(index)
            elif peer is None or silent_ns <= self._timeout_ns // 2:
                pass
            elif peer.handshake.reported_complete:
                pass  # it has gone on that
            elif line.shared and now_ns - peer.heard_ns <= self._timeout_ns // 2:
                pass  # it is heard over another line
            elif peer.joined and peer.probe is None and peer.own.recovery:
                self.send_probe(peer, index, now_ns)  # perhaps it only has no topic that is ours

    def end_peer(self, peer: Session, now_ns: int) -> None:
        """End a session whose place another one has taken, unless a relay has it."""
        peer.own.is_open = False
        if peer.current is peer.own:
            peer.current = None
        self._hold_part(peer)
        peer.handshake.cancel(self.effects)
        if peer.relayed or self.relays.may_have(peer, now_ns):
            self.effects.disconnect(peer.session)
            return
        if not peer.joined:
            self._begin_unjoined(peer, now_ns)
        peer.on(Event.REPLACED)
        self.space.on_end(peer.session)
        for stream in peer.streams.values():
            stream.receiver.give_up(LossReason.PUBLISHER_GONE)
            self.stream_table.drain(stream)
        self.effects.disconnect(peer.session)

    def _hold_part(self, peer: Session) -> None:
        """Keep what has come of an echo of several pages."""
        part = None if peer.probe is None else self._pages.part(peer.probe)
        if part is not None and not peer.joined:
            self.relays.hold_part(peer, part)

    def _give_up(self, peer: Session, now_ns: int) -> None:
        """Deliver what came from a session that fell silent before it was joined.

        In a multicast only of one that was joined: anybody can announce one, and send data of it.
        It is still probed: when its publisher comes back on its log, it goes on from there.
        """
        relays = self.relays
        if not peer.joined and relays.upstreams and relays.reforming(now_ns):
            return  # a relay that has met it may still serve it
        if peer.joined or peer.group is not None:
            return
        self._hold_part(peer)
        if peer.state is State.GIVEN_UP and all(s.receiver.started for s in peer.streams.values()):
            return
        self._begin_unjoined(peer, now_ns)
        peer.on(Event.ABANDONED)
        for stream in peer.streams.values():
            stream.receiver.give_up(LossReason.PUBLISHER_GONE)
            self.stream_table.drain(stream)

    def _begin_unjoined(self, peer: Session, now_ns: int) -> None:
        """Begin the streams of a session whose echo will not come, as far as they are known.

        Only the echo could have said where they begin. A subscriber that wants what was kept begins
        no later than that, so that what is missing is reported and not left out.
        """
        held = self.relays.take_held(peer.session)
        heads = merge_heads(held).streams if held else []
        self._unjoined += peer.state is not State.GIVEN_UP
        for head in heads:
            if head.topic not in peer.streams and not self.stream_table.is_full:
                self.stream_table.add(peer, head.topic)
        starts = {head.topic: head for head in heads}
        for topic, stream in peer.streams.items():
            receiver, found = stream.receiver, starts.get(topic)
            if receiver.started:
                continue
            if found is not None:
                self.stream_table.begin(stream, found.start, now_ns=now_ns)
                receiver.observe_head(found.next, now_ns=now_ns)
                continue
            at: int | None = receiver.earliest_known
            if peer.start.kind == "sequence":
                at = None
            elif peer.start.kind == "latest":
                at = receiver.first_known
            self.stream_table.begin(stream, at, now_ns=now_ns)
        if self.cursor is not None and peer.streams:
            self.cursor.note(peer)
        known = f"what it had of {len(peer.streams)} streams is delivered or reported lost"
        text = (
            f"publisher {peer.name!r} (session {peer.session:016x}) was gone before it could be "
            f"joined: {known}, and of others nothing is known"
        )
        self.effects.warn(peer.handshake.line, peer.session, text)

    def forget_peer(self, session: int) -> None:
        """Forget a session and its streams; what they counted stays counted."""
        peer = self.peers.pop(session)
        if not peer.gone:
            self.effects.disconnect(session)
        self.space.on_forgotten(session)
        self.relays.forget(session)
        if self.multicast is not None:
            self.multicast.forget(peer)
        self._forget_last()
        self.stream_table.forget(peer)
