"""Asks publishers and relays over TCP where their streams stand, and rejoins by the answer. No I/O.

A subscriber asks when the data path cannot be all there is to say::

    a head far ahead, a closing, an announcement that does not fit (of a group): at once ──┐
    nothing of a session's streams over the data path for `publisher_timeout` ────────────┤
                                                                                          ▼
             no answer: again, and after `LOST_NS` `is_lost` ◀── HEADS_REQUEST, one at a time
                                                                       │ HEADS
             of another incarnation: PROBE, ECHO, as at first ◀────────┴─▶ of the known one:
                                                                           its heads are taken

Without keys the network is trusted, and datagrams of the known incarnation are taken as they come.
What contradicts them is neither believed nor refused: the publisher's answer counts. Only one that
does not answer is looked for where it is announced, or ends when another session has its name.
"""

from collections.abc import Sequence
from typing import Final

from p2pmsg import control, wire
from p2pmsg.subscriber.route import Question, Route
from p2pmsg.subscriber.session_table import SessionTable
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.states import Event, RouteEvent, RouteState
from p2pmsg.wire import Frame, Kind
from recovery.checks import to_ns
from recovery.retry import RetryPolicy

_MS: Final = 1_000_000
TOPICS_ASKED_MAX: Final = 128
"""Topics in one question; with more, it is about all. They fit a request of 64 KiB."""
ANSWER_NS: Final = 250 * _MS
"""How long to wait for an answer before the same question is sent again."""
KEEP_ALIVE_NS: Final = 6000 * _MS
"""The publisher of a group answers each JOINED, one each 5 s at least. Without an answer for longer
another endpoint of it is used."""
LOST_NS: Final = 1000 * _MS
"""How long a publisher of a group does not answer until what is announced otherwise is believed."""
SILENT_NS: Final = 3000 * _MS
"""How long a data path is silent until its publisher is asked, at least: three of the slowest
heartbeats of its streams; else `publisher_timeout`, in which it is also probed."""
NS_PER_STREAM: Final = _MS
"""How much longer to wait for each stream, so that long answers are rare."""
_URGENT: Final = RetryPolicy(10 * _MS, 500 * _MS)
_SILENT: Final = RetryPolicy(3000 * _MS, 30_000 * _MS)
"""When to ask again, ever more rarely while answers bring nothing."""
_NEVER_NS: Final = 2**62


class Rejoin:
    """Asks for heads over the recovery channels of publishers and relays.

    Args:
        table: owns the sessions, and joins them.

    Attributes:
        due_ns: when `check` has something to do.

    """

    def __init__(self, table: SessionTable) -> None:
        config = table.settings.config
        self._table = table
        self._silent_ns = max(SILENT_NS, to_ns(config.publisher_timeout))
        self._pages = control.HeadPages(config.streams_max)
        self._patterns = table.settings.patterns
        self.due_ns = _NEVER_NS

    def ask(self, peer: Session, now_ns: int, topics: Sequence[str] = ()) -> None:
        """Ask a publisher for heads; without topics, whether it is there and not started again."""
        if peer.gone or not peer.joined or not peer.direct:
            return  # its probe is this question
        question = peer.own.urgent = peer.own.urgent or Question(_URGENT)
        wanted = question.topics or []
        wanted += [topic for topic in topics if topic not in wanted]
        question.topics = wanted if len(wanted) <= TOPICS_ASKED_MAX else [*self._patterns]
        self._poll(peer, peer.own, question, now_ns)

    def is_lost(self, peer: Session, now_ns: int) -> bool:
        """Whether a publisher has not answered for `LOST_NS` where it is, so that it is not there.

        One that is not joined has been sent a probe.
        """
        question, since_ns = peer.own.urgent, peer.own.echo.since_ns
        if peer.joined:
            if question is None or question.body is None:
                return False
            since_ns = question.since_ns
        return now_ns - max(since_ns, peer.answered_ns) > LOST_NS

    def check(self, now_ns: int) -> None:
        """Ask over the routes that are silent, and again what has no answer."""
        self.due_ns = _NEVER_NS
        for peer in self._table.peers.values():
            if peer.gone:
                continue
            asked = _routes(peer)
            for route in (peer.own, *peer.relayed):
                is_silent = now_ns - self.last_heard_ns(peer, route) > self._silent_ns
                if route in asked and is_silent:
                    self._check_silent(peer, route, now_ns)
                else:
                    route.silent = None
            if peer.is_one_way and peer.own.silent is None:
                peer.on(Event.HEARD)
            own = peer.own
            is_unconfirmed = own.state is RouteState.CLOSING and not own.is_asking
            if is_unconfirmed and peer.group is not None:
                self.ask(peer, now_ns, self._patterns)  # anybody can say so in a group
            if own.urgent is not None:
                self._poll(peer, own, own.urgent, now_ns)

    def _check_silent(self, peer: Session, route: Route, now_ns: int) -> None:
        question = route.silent = route.silent or Question(_SILENT)
        question.topics = [*self._patterns]
        if peer.gaps:  # what is missing comes over TCP only
            question.tries = 0
            question.due_ns = min(question.due_ns, self._next_ns(peer, question, question.since_ns))
        self._poll(peer, route, question, now_ns)

    def _poll(self, peer: Session, route: Route, question: Question, now_ns: int) -> None:
        """Send a question that is due; one without an answer is sent again as it was."""
        if question.body is None and question.topics is None:
            return
        if now_ns < question.due_ns:
            self._check_at(question.due_ns)
            return
        if question.body is None:
            topics, question.topics = question.topics or [], None
            question.body = control.Probe(self._table.rng.getrandbits(62), topics, "latest")
            question.since_ns = now_ns
        question.due_ns = max(self._next_ns(peer, question, now_ns), now_ns + ANSWER_NS)
        question.tries += 1
        self._table.effects.send(
            route.key, Kind.HEADS_REQUEST, peer.session, question.body,
            sequence=question.body.probe,
        )  # fmt: skip
        self._check_at(question.due_ns)

    def _next_ns(self, peer: Session, question: Question, now_ns: int) -> int:
        """Return when to ask next; of many streams later, so that long answers are rare."""
        return now_ns + question.retry.wait_ns(question.tries) + len(peer.streams) * NS_PER_STREAM

    def _check_at(self, due_ns: int) -> None:
        self.due_ns = min(self.due_ns, due_ns)
        self._table.hurry(due_ns)

    def receive(self, peer: Session, route: Route, frame: Frame, now_ns: int) -> None:
        """Take a page of an answer; one to another question came too late."""
        for question in (route.urgent, route.silent):
            if question is None or question.body is None or question.body.probe != frame.sequence:
                continue
            question.due_ns = now_ns + ANSWER_NS  # the next page may be on its way
            heads = self._pages.take(frame.sequence, control.read_body(frame, control.Heads))
            if heads is None:
                return
            is_all = set(self._patterns) <= set(question.body.topics)
            question.body, question.answers = None, True
            if question is peer.own.silent and needs_data(peer, route):
                peer.on(Event.ANSWERED)
            if self._take(peer, route, heads, now_ns):
                question.tries = 0
            question.due_ns = self._next_ns(peer, question, now_ns)
            if route is peer.own and is_all:
                if frame.flags & wire.FLAG_CLOSING:
                    route.on(RouteEvent.LAST_HEADS)
                    self._table.hurry(now_ns)
                elif route.state is RouteState.CLOSING and peer.group is not None:
                    route.on(RouteEvent.ANNOUNCED)
            if question.topics is not None:
                self._check_at(question.due_ns)

    def _take(self, peer: Session, route: Route, heads: control.Heads, now_ns: int) -> bool:
        """Take heads of the known incarnation; returns whether they bring anything new."""
        table = self._table
        if table.on_incarnation(peer, heads.incarnation):
            table.begin_again(peer, now_ns)
        if peer.is_held:
            return False
        if table.servers is not None:
            heads = table.servers.allowed(heads, route, peer)
        brought = False
        for head in heads.streams:
            stream = peer.streams.get(head.topic)
            brought |= stream is None or head.next > stream.receiver.head
            if stream is None:
                table.has_space(peer)
            if not table.stream_table.take_head(peer, head, now_ns):
                table.invalid["streams_max"] += 1
        return brought

    def last_heard_ns(self, peer: Session, route: Route) -> int:
        """Return when anything of a session last came over the data path of a route."""
        lines = self._table.lines
        if route is not peer.own:
            upstream = self._table.relays.upstreams.get(route.key)
            over = [route.line] if upstream is None else upstream.lines
            return max((lines[at].silent_from_ns for at in over), default=0)
        own = [
            one.silent_from_ns for one in lines if one.session == peer.session and not one.shared
        ]
        return max(own, default=peer.last_heard_ns)


def needs_data(peer: Session, route: Route) -> bool:
    """Whether a data path that is silent must be broken: a group may have no streams yet."""
    return route is not peer.own or peer.group is None or bool(peer.streams)


def _routes(peer: Session) -> list[Route]:
    """Return the routes over which a session that is joined can be asked about."""
    if peer.gone or not peer.joined:
        return []
    routes = [route for route in peer.relayed if route.joined]
    if peer.direct and peer.own.recovery:
        if peer.own.is_complete:
            return []  # it may have gone on that
        routes.insert(0, peer.own)
    return routes
