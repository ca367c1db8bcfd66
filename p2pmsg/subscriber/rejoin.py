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

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from p2pmsg import control, wire
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.relays import RelayClient
from p2pmsg.subscriber.servers import Servers
from p2pmsg.subscriber.sessions import Route, Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.states import Event
from p2pmsg.subscriber.streams import StreamTable
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
_WARN_NS: Final = 60_000 * _MS
_NEVER_NS: Final = 2**62
_Place = tuple[int, int]
"""A session, and the key of a route to it."""


class Joiner(Protocol):
    """Owns the sessions, and what is known of them."""

    settings: Settings
    stream_table: StreamTable
    effects: Effects
    invalid: Counter[str]
    servers: Servers | None
    relays: RelayClient

    @property
    def lines(self) -> Sequence[Connection]:
        """The connections of the data path."""

    @property
    def peers(self) -> Mapping[int, Session]:
        """The sessions by their ids."""

    def on_last_heads(self, peer: Session, now_ns: int) -> None:
        """Note that a publisher closes, and has said its last heads."""

    def begin_again(self, peer: Session, now_ns: int) -> None:
        """Join a session again: its publisher was restarted."""

    def hurry(self, due_ns: int) -> None:
        """Let sessions be checked by a time."""


@dataclass(slots=True)
class _Question:
    """What is asked over one route."""

    retry: RetryPolicy
    topics: list[str] | None = None
    """What to ask about next; empty: whether anybody is there. None: nothing."""
    body: control.Probe | None = None
    """What was asked and has no answer."""
    since_ns: int = 0
    """Since when."""
    due_ns: int = 0
    tries: int = 0
    """How often it was asked since an answer brought something."""
    answers: bool = False
    """Whether it was answered before."""


class Rejoin:
    """Asks for heads over the recovery channels of publishers and relays.

    Args:
        joiner: owns the sessions, and joins them.
        rng: source of the questions' ids.

    Attributes:
        due_ns: when `check` has something to do.

    """

    def __init__(self, joiner: Joiner, rng: Random) -> None:
        config = joiner.settings.config
        self._joiner = joiner
        self._rng = rng
        self._silent_ns = max(SILENT_NS, to_ns(config.publisher_timeout))
        self._pages = control.HeadPages(config.streams_max)
        # By session and route: what does not fit, and what is asked where the data path is silent.
        self._urgent: dict[_Place, _Question] = {}
        self._silent: dict[_Place, _Question] = {}
        self._warn_ns: dict[int, int] = {}
        self.due_ns = _NEVER_NS

    def ask(self, peer: Session, now_ns: int, topics: Sequence[str] = ()) -> None:
        """Ask a publisher for heads; without topics, whether it is there and not started again."""
        if peer.gone or not peer.joined or not peer.direct:
            return  # its probe is this question
        question = self._urgent.get((peer.session, peer.session))
        if question is None:
            question = _Question(_URGENT)
            self._urgent[peer.session, peer.session] = question
        wanted = question.topics or []
        wanted += [topic for topic in topics if topic not in wanted]
        question.topics = wanted if len(wanted) <= TOPICS_ASKED_MAX else self._patterns
        self._poll(peer, question, now_ns)

    @property
    def _patterns(self) -> list[str]:
        return list(self._joiner.settings.patterns)

    def is_asking(self, session: int) -> bool:
        """Whether a session's publisher, or a relay of it, was asked and has not answered."""
        return any(
            question.body is not None
            for questions in (self._urgent, self._silent)
            for (asked, _), question in questions.items()
            if asked == session
        )

    def is_lost(self, peer: Session, now_ns: int) -> bool:
        """Whether a publisher has not answered for `LOST_NS` where it is, so that it is not there.

        One that is not joined has been sent a probe.
        """
        question = self._urgent.get((peer.session, peer.session))
        since_ns = peer.handshake.began_ns
        if peer.joined:
            if question is None or question.body is None:
                return False
            since_ns = question.since_ns
        return now_ns - max(since_ns, peer.answered_ns) > LOST_NS

    def forget(self, session: int) -> None:
        """Forget the questions to a session's publisher: it is at another place, or is gone."""
        self._urgent.pop((session, session), None)

    def check(self, now_ns: int) -> None:
        """Ask over the routes that are silent, and again what has no answer."""
        self.due_ns = _NEVER_NS
        silent: set[_Place] = set()
        peers = self._joiner.peers
        for peer in peers.values():
            for route in _routes(peer):
                if now_ns - self._last_heard_ns(peer, route) > self._silent_ns:
                    silent.add((peer.session, route.key))
                    self._check_silent(peer, route, now_ns)
            if peer.is_one_way and (peer.session, peer.session) not in silent:
                peer.on(Event.HEARD)
        for place in [one for one in self._silent if one not in silent]:
            del self._silent[place]
        for (session, _), question in list(self._urgent.items()):
            if session not in peers or peers[session].gone:
                self.forget(session)
            else:
                self._poll(peers[session], question, now_ns)

    def _check_silent(self, peer: Session, route: Route, now_ns: int) -> None:
        place = peer.session, route.key
        question = self._silent.get(place)
        if question is None:
            question = self._silent[place] = _Question(_SILENT)
        question.topics = self._patterns
        if peer.gaps:  # what is missing comes over TCP only
            question.tries = 0
            question.due_ns = min(question.due_ns, self._next_ns(peer, question, question.since_ns))
        if question.answers and _needs_data(peer, route):
            line = self._joiner.lines[route.handshake.line]
            line.one_way = line.one_way or self._text(peer, route, now_ns)
        self._poll(peer, question, now_ns, route.key)

    def _poll(
        self, peer: Session, question: _Question, now_ns: int, key: int | None = None
    ) -> None:
        """Send a question that is due; one without an answer is sent again as it was."""
        if question.body is None and question.topics is None:
            return
        if now_ns < question.due_ns:
            self._check_at(question.due_ns)
            return
        if question.body is None:
            topics, question.topics = question.topics or [], None
            question.body = control.Probe(self._rng.getrandbits(62), topics, "latest")
            question.since_ns = now_ns
        question.due_ns = max(self._next_ns(peer, question, now_ns), now_ns + ANSWER_NS)
        question.tries += 1
        self._joiner.effects.send(
            peer.session if key is None else key, Kind.HEADS_REQUEST, peer.session, question.body,
            sequence=question.body.probe,
        )  # fmt: skip
        self._check_at(question.due_ns)

    def _next_ns(self, peer: Session, question: _Question, now_ns: int) -> int:
        """Return when to ask next; of many streams later, so that long answers are rare."""
        return now_ns + question.retry.wait_ns(question.tries) + len(peer.streams) * NS_PER_STREAM

    def _check_at(self, due_ns: int) -> None:
        self.due_ns = min(self.due_ns, due_ns)
        self._joiner.hurry(due_ns)

    def receive(self, peer: Session, route: Route, frame: Frame, now_ns: int) -> None:
        """Take a page of an answer; one to another question came too late."""
        place = peer.session, route.key
        for questions in (self._urgent, self._silent):
            question = questions.get(place)
            if question is None or question.body is None or question.body.probe != frame.sequence:
                continue
            question.due_ns = now_ns + ANSWER_NS  # the next page may be on its way
            heads = self._pages.take(frame.sequence, control.read_body(frame, control.Heads))
            if heads is None:
                return
            is_all = question.body.topics == self._joiner.settings.patterns
            question.body, question.answers = None, True
            if questions is self._silent and _needs_data(peer, route):
                if route is peer.own:
                    peer.on(Event.ANSWERED)
                self._warn(peer, route, now_ns)
            if self._take(peer, route, heads, now_ns):
                question.tries = 0
            question.due_ns = self._next_ns(peer, question, now_ns)
            if frame.flags & wire.FLAG_CLOSING and route is peer.own and is_all:
                self._joiner.on_last_heads(peer, now_ns)
            if question.topics is not None:
                self._check_at(question.due_ns)

    def _take(self, peer: Session, route: Route, heads: control.Heads, now_ns: int) -> bool:
        """Take heads of the known incarnation; returns whether they bring anything new."""
        joiner = self._joiner
        if heads.incarnation and peer.incarnation not in (0, heads.incarnation):
            if peer.group is not None and peer.probe is None:
                joiner.begin_again(peer, now_ns)
            return False  # over TCP its welcome, or a heartbeat, leads to a probe
        if peer.is_held:
            return False
        if joiner.servers is not None:
            heads = joiner.servers.allowed(heads, route, peer)
        brought = False
        for head in heads.streams:
            stream = peer.streams.get(head.topic)
            brought |= stream is None or head.next > stream.receiver.head
            if not joiner.stream_table.take_head(peer, head, now_ns):
                joiner.invalid["streams_max"] += 1
        return brought

    def _last_heard_ns(self, peer: Session, route: Route) -> int:
        """Return when anything of a session last came over the data path of a route."""
        lines = self._joiner.lines
        if route is not peer.own:
            upstream = self._joiner.relays.upstreams.get(route.key)
            over = [route.handshake.line] if upstream is None else upstream.lines
            return max((lines[at].last_heard_ns for at in over), default=0)
        own = [one.last_heard_ns for one in lines if one.session == peer.session and not one.shared]
        return max(own, default=peer.last_heard_ns)

    def _warn(self, peer: Session, route: Route, now_ns: int) -> None:
        """Say it, once a minute for each line."""
        line = route.handshake.line
        if now_ns >= self._warn_ns.get(line, now_ns):
            self._warn_ns[line] = now_ns + _WARN_NS
            self._joiner.effects.warn(line, peer.session, self._text(peer, route, now_ns))

    def _text(self, peer: Session, route: Route, now_ns: int) -> str:
        what, name, recovery = "publisher", peer.name, peer.own.recovery
        upstream = self._joiner.relays.upstreams.get(route.key)
        if route is not peer.own and upstream is not None:
            what, name, recovery = "relay", upstream.name, upstream.recovery
        silent_ns = now_ns - self._last_heard_ns(peer, route)
        return (
            f"{what} {name!r} answers at its recovery endpoint {recovery}, but nothing of "
            f"it has come over the data path for {silent_ns / 1e9:.0f} s: what is missing is asked "
            f"for there, some seconds late. Does anything drop the data path (a firewall, a switch "
            f"that forgot this member of a group)?"
        )


def _needs_data(peer: Session, route: Route) -> bool:
    """Whether a data path that is silent must be broken: a group may have no streams yet."""
    return route is not peer.own or peer.group is None or bool(peer.streams)


def _routes(peer: Session) -> list[Route]:
    """Return the routes over which a session that is joined can be asked about."""
    if peer.gone or not peer.joined:
        return []
    routes = [route for route in peer.relayed if route.handshake.joined]
    if peer.direct and peer.own.recovery:
        if peer.closing and peer.handshake.reported_complete:
            return []  # it may have gone on that
        routes.insert(0, peer.own)
    return routes
