"""Joins publishers' sessions, and keeps in touch with them.

For each connection::

    WELCOME ──▶ PROBE (over recovery) ──▶ ECHO (over data: heads) ──▶ JOINED ──▶ keep-alives

The probe's prefix is subscribed to after the topics, on the same connection, so an echo proves that
the topics are subscribed to as well. Each new connection is probed, and the heads of its echo show
at once what was missed in between. A silent line is probed too, and a publisher that closes.
"""

from collections.abc import Callable, Iterator
from typing import Final

from p2pmsg import control
from p2pmsg.subscriber.rejoin import ANSWER_NS
from p2pmsg.subscriber.resume import find_rewound, take_incarnation
from p2pmsg.subscriber.route import Route
from p2pmsg.subscriber.session_table import SessionTable
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.states import Event, RouteState, State
from p2pmsg.topics import matches
from p2pmsg.wire import Frame, Kind
from recovery.checks import to_ns

_MS = 1_000_000
CHECK_NS: Final = 250 * _MS
"""How often sessions are checked, at least: are they silent, and is a keep-alive due?"""
HURRIED_CHECK_NS: Final = 25 * _MS
"""The same while one is being probed, or is closing."""
_KEEP_ALIVE_NS = 5_000_000_000
"""How often a subscriber reports that it is there, at least: a third of `subscriber_timeout`."""
AGAIN_NS = 1000 * _MS
"""How long a publisher that was not joined yet has to answer on a connection made again."""


class SessionJoiner:
    """Takes echoes, and sends what is due to join sessions and to stay joined.

    Args:
        table: owns the sessions.
        is_drained: whether all of a closing session was processed; see `SubscriberCore`.

    """

    def __init__(
        self, table: SessionTable, *, is_drained: Callable[[Session], bool] | None = None
    ) -> None:
        config = table.settings.config
        self._table = table
        self._is_drained = is_drained
        self._timeout_ns = to_ns(config.publisher_timeout)
        self._keep_alive_ns = min(_KEEP_ALIVE_NS, self._timeout_ns)
        soonest_ns = min(self._timeout_ns, self._keep_alive_ns)
        self._check_ns = min(CHECK_NS, max(HURRIED_CHECK_NS, soonest_ns // 4))
        # Not before a silent line was connected again, and a publisher there could answer.
        again_ns = self._timeout_ns + min(AGAIN_NS, self._timeout_ns)
        self._give_up_ns = max(again_ns, to_ns(config.repair_timeout))

    def is_connected(self, line: int, now_ns: int) -> bool:
        """Whether a publisher, or relay, at a line was joined, and is neither silent nor gone."""
        table = self._table
        state = table.lines[line]
        if not (state.is_heard and now_ns - state.silent_from_ns <= self._timeout_ns):
            return False
        if state.relay is not None:
            up = table.relays.upstreams.get(state.relay)
            return up is not None and up.complete and state.refused_until_ns is None
        return any(
            peer.joined
            and not peer.gone
            and not peer.own.is_complete
            and not (state.shared and peer.state is State.ONE_WAY)
            for peer in self._peers_at(line)
        )

    def _peers_at(self, line: int) -> Iterator[Session]:
        """Return the sessions that are announced over a line."""
        last = self._table.lines[line].session
        for peer in self._table.peers.values():
            group = peer.group
            if peer.session == last or (group is not None and line in group.sources):
                yield peer

    def evicted_before(self, peer: Session, earliest: int, now_ns: int) -> int | None:
        """Return `earliest` if all before it is evicted; None: another route may keep more."""
        several = len(peer.routes) > 1 or self._table.relays.unsettled(now_ns)
        return None if several else earliest

    def receive_echo(self, frame: Frame, now_ns: int) -> bool:
        """Take an echo; False where it is not for us."""
        found = self._route_of(frame.session)
        if found is None:
            return False  # a subscriber to all topics gets others' echoes, too
        body = self._table.pages.take(frame.session, control.read_body(frame, control.Heads))
        if body is not None:
            self._take_echo(*found, body, now_ns)
        return True

    def _route_of(self, probe: int) -> tuple[Session, Route] | None:
        """Return the session and route whose echo is awaited under this id, or None."""
        for peer in self._table.peers.values():
            for route in (peer.own, *peer.relayed):
                if route.probe == probe:
                    return peer, route
        return None

    def _take_echo(self, peer: Session, route: Route, body: control.Heads, now_ns: int) -> None:
        table, is_own = self._table, route is peer.own
        table.denials.answered(peer.name, body.denied)
        if table.servers is not None:
            body = table.servers.allowed(body, route, peer)
        if is_own:
            self._find_rewound(peer, body, now_ns)
        heads = table.relays.hold(peer, route.key, body, now_ns)
        if heads is None:
            return
        self.take_heads(peer, heads, now_ns)
        if is_own:
            take_incarnation(peer, body)
        # Last, so that an exception before it leads to another probe.
        peer.on(Event.ECHOED if is_own else Event.RELAY_ECHOED)
        route.echoed(table.effects)
        route.keep_alive_ns = table.next_check_ns = now_ns
        line = table.lines[route.line]
        if is_own and peer.group is not None and not line.contacted:
            line.contacted, line.contacted_ns = True, peer.own.met_ns

    def _find_rewound(self, peer: Session, heads: control.Heads, now_ns: int) -> None:
        """Begin again with the streams whose publisher has gone back."""
        table = self._table
        for back in find_rewound(peer, heads, table.committed(peer), table.asked):
            if back.topic not in peer.streams and not table.has_space(peer):
                table.invalid["streams_max"] += 1
                continue
            table.stream_table.rewind(peer, back, now_ns)
            table.forget_last()

    def take_heads(self, peer: Session, heads: control.Heads, now_ns: int) -> None:
        """Take where the streams of a session stand, from an echo."""
        first, table, streams = not peer.joined, self._table, self._table.stream_table
        if table.cursor is not None and first:
            table.cursor.note(peer)  # before anything of it can be delivered
        peer.last_heard_ns = now_ns
        for head in heads.streams:
            known = head.topic in peer.streams
            if not known and not table.has_space(peer):
                table.invalid["streams_max"] += 1
                continue
            stream = peer.streams.get(head.topic) or streams.add(peer, head.topic)
            if not stream.receiver.started:
                # A topic that is new on a later connection was opened while we were away.
                stream.repairs.history = head.next
                start, following = head.start if first else None, head.next
                streams.begin(stream, start, now_ns=now_ns, following=following)
            earliest = self.evicted_before(peer, min(head.earliest, head.next), now_ns)
            stream.receiver.observe_head(head.next, now_ns=now_ns, earliest=earliest)
            streams.drain(stream)
        listed = {head.topic for head in heads.streams}
        for topic, stream in peer.streams.items():
            if not stream.receiver.started:
                streams.begin(stream, now_ns=now_ns)
            if topic not in listed and not (heads.denied and matches(topic, heads.denied)):
                stream.receiver.observe_head(heads.floor, now_ns=now_ns)
            streams.drain(stream)

    def _report(self, peer: Session, route: Route, now_ns: int, *, complete: bool) -> None:
        """Report that we are there, and whether we have everything."""
        table = self._table
        body = control.Joined(table.settings.subscriber, table.settings.name, complete)
        if route is peer.own:
            body.wants_token = peer.group is not None
            body.settles = self._is_drained is not None or table.relays.own is not None
        table.effects.send(route.key, Kind.JOINED, peer.session, body)
        is_admitted = route is not peer.own or peer.group is None or peer.group.token
        due_ns = now_ns + (self._keep_alive_ns if is_admitted else ANSWER_NS)
        route.on_report(due_ns, complete=complete)

    def _is_complete(self, peer: Session, route: Route) -> bool:
        """Whether a closing publisher, or relay, may go: all of it has come, and was processed."""
        if route.is_complete:
            return True  # it may have gone on that: a probe would not be answered any more
        if not route.closing or peer.missing:
            return False
        if route.state is not RouteState.LAST_KNOWN and (
            route.probe is not None or (route is peer.own and peer.group is not None)
        ):
            return False  # its last heads may show more
        return self._is_drained is None or self._is_drained(peer)

    def excuse_silence(self, now_ns: int) -> None:
        """Do not count the silence of connections that are not read, because all is full."""
        for line in self._table.lines:
            line.excused_ns = now_ns
        for peer in self._table.peers.values():
            peer.last_heard_ns = now_ns

    def on_stopped(self, stopped_ns: int, now_ns: int, *, delay_ns: int = 0) -> None:
        """Leave out a time in which this process was stopped, as by SIGSTOP.

        What came meanwhile is read before anything is asked for, for `delay_ns`, or given up.
        """
        for line in self._table.lines:
            line.on_stopped(stopped_ns, now_ns)
        for up in self._table.relays.upstreams.values():
            up.met_ns = min(now_ns, up.met_ns + stopped_ns)
        for peer in self._table.peers.values():
            peer.last_heard_ns = min(now_ns, peer.last_heard_ns + stopped_ns)
            if peer.answered_ns >= 0:
                peer.answered_ns = min(now_ns, peer.answered_ns + stopped_ns)
            for route in (peer.own, *peer.relayed):
                route.echo.since_ns = min(now_ns, route.echo.since_ns + stopped_ns)
                if route.asked_ns is not None:
                    route.asked_ns = min(now_ns, route.asked_ns + stopped_ns)
        self._table.stream_table.gaps.postpone(
            now_ns=now_ns, delay_ns=delay_ns, stopped_ns=stopped_ns
        )

    def leave(self) -> None:
        """Announce to all publishers and relays that this subscriber goes."""
        table = self._table
        body = control.Joined(table.settings.subscriber, table.settings.name)
        for session, peer in table.peers.items():
            routes = [route for route in peer.relayed if route.joined]
            if peer.joined and peer.direct and not peer.gone:
                routes.append(peer.own)
            for route in routes:
                table.effects.send(route.key, Kind.LEAVE, session, body)

    def check(self, now_ns: int) -> None:
        """Repeat probes, send keep-alives, and make silent connections again."""
        table = self._table
        table.relays.check(now_ns)
        table.end_unrouted(now_ns)
        for peer in table.draining():
            if not peer.missing:
                table.end(peer, now_ns)
        self._check_peers(now_ns)
        self._check_lines(now_ns)
        table.forget_unjoined(now_ns)
        table.warn_of_space(now_ns)

    def next_ns(self, now_ns: int) -> int:
        """Return when to check again."""
        hurried = bool(self._table.relays.waiting) or any(
            (p.probe or (p.closing and p.own.joined) or (p.relayed and not p.joined)) and not p.gone
            for p in self._table.peers.values()
        )
        return now_ns + (HURRIED_CHECK_NS if hurried else self._check_ns)

    def _check_route(self, peer: Session, route: Route, now_ns: int) -> None:
        """Repeat a probe that is due, or else report that we are there."""
        cursor = self._table.cursor
        if not peer.gaps:
            route.asked_ns = None
        if route.is_probe_due(now_ns):
            self._table.repeat_probe(peer, route)
        if not (peer.joined and route.joined):
            return
        if cursor is not None and peer in cursor.newcomers:
            return  # it has joined once the cursor says so: see `ResumePoints.recording`
        if route.is_complete and now_ns - peer.heard_ns > self._timeout_ns // 2:
            return  # it has gone: its next incarnation would get this, queued, as its own
        complete = self._is_complete(peer, route)
        if route.is_report_due(now_ns, complete=complete):
            self._report(peer, route, now_ns, complete=complete)

    def _check_peers(self, now_ns: int) -> None:
        for peer in self._table.peers.values():
            if peer.gone:
                continue
            for route in (peer.own, *peer.relayed):
                self._check_route(peer, route, now_ns)
            if peer.relayed and now_ns - peer.own.echo.since_ns > self._timeout_ns:
                peer.on(Event.UNREACHED)
            silent = now_ns - peer.heard_ns > self._timeout_ns
            if now_ns - peer.heard_ns > self._give_up_ns:
                self._table.give_up(peer, now_ns)
            if silent or peer.state is State.SILENT:
                peer.on(Event.SILENCE if silent else self._back(peer, now_ns))

    def _back(self, peer: Session, now_ns: int) -> Event:
        """Return how a session that was silent is back; it was perhaps restarted on its log."""
        data_path_ns = max(peer.last_heard_ns, peer.own.announced_ns)
        if now_ns - data_path_ns > self._timeout_ns:
            return Event.ANSWERED
        is_known = peer.probe is None or peer.relayed
        return Event.HEARD if is_known else Event.OTHER_INCARNATION

    def _check_lines(self, now_ns: int) -> None:
        table = self._table
        for index, line in enumerate(table.lines):
            silent_ns = now_ns - line.since_ns
            peer = None if line.session is None else table.peers.get(line.session)
            routes = [route for _, route in table.relays.routes_over(index)]
            if peer is not None and not peer.gone and peer.own.recovery:
                routes.append(peer.own)  # a connection made again makes no feed's servers answer
            asked = [one.asked_ns for one in routes if one.asked_ns is not None]
            if line.is_broken(self._timeout_ns, min(asked, default=None), now_ns):
                for route in routes:
                    route.asked_ns = None
                table.effects.reconnect(index)
            elif peer is None or silent_ns <= self._timeout_ns // 2:
                pass
            elif peer.own.is_complete:
                pass  # it has gone on that
            elif line.shared and now_ns - peer.heard_ns <= self._timeout_ns // 2:
                pass  # it is heard over another line
            elif peer.joined and peer.probe is None and peer.own.recovery:
                table.send_probe(peer, index, now_ns)  # perhaps it only has no topic that is ours
