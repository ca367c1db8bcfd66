"""Asks publishers over the recovery channel where they stand, while their data path is silent.

The end of a stream that is lost shows in what comes later over the data path: heartbeats, echoes.
Where nothing comes there at all, and only the recovery channel works, nobody would ever know of it.
Mostly a firewall, or a switch, lets the one through and not the other.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

from p2pmsg import control, wire
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.servers import Servers
from p2pmsg.subscriber.sessions import Session
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.wire import Frame, Kind
from recovery._checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.subscriber.group import MulticastReceiver

_MS: Final = 1_000_000
QUIET_NS: Final = 3000 * _MS
"""How long nothing comes until a publisher is asked, at least: three of the slowest heartbeats of
its streams; else `publisher_timeout`, in which it is also probed."""
FIRST_WAIT_NS: Final = 3000 * _MS
"""Between two questions, while the answers show what is missing; it doubles while they do not."""
WAIT_NS_MAX: Final = 30_000 * _MS
NS_PER_STREAM: Final = _MS
"""How much longer to wait for each stream, so that long answers are rare."""
WARN_NS: Final = 60_000 * _MS


class Joiner(Protocol):
    """Owns the sessions, and what is known of them."""

    settings: Settings
    stream_table: StreamTable
    effects: Effects
    invalid: Counter[str]
    servers: Servers | None
    member: "MulticastReceiver | None"

    @property
    def lines(self) -> Sequence[Connection]:
        """The connections of the data path."""

    @property
    def peers(self) -> Mapping[int, Session]:
        """The sessions by their ids."""

    def note_last_heads(self, peer: Session, now_ns: int) -> None:
        """Note that a publisher closes, and has said its last heads."""


@dataclass(slots=True)
class _Quiet:
    """What is asked of a session whose data path is silent."""

    due_ns: int
    wait_ns: int
    asked_ns: int = 0
    request: int | None = None


class QuietPaths:
    """Looks for publishers whose data path is silent, and asks them for their heads.

    Args:
        joiner: owns the sessions, and joins them.
        rng: source of the questions' ids.

    """

    def __init__(self, joiner: Joiner, rng: Random) -> None:
        config = joiner.settings.config
        self._joiner = joiner
        self._rng = rng
        self._quiet_ns = max(QUIET_NS, to_ns(config.publisher_timeout))
        self._pages = control.HeadPages(config.streams_max)
        self._found: dict[int, _Quiet] = {}
        self._warn_ns: dict[int, int] = {}

    def is_asked(self, session: int) -> bool:
        """Whether a session was asked, and has not answered."""
        state = self._found.get(session)
        return state is not None and state.request is not None

    def look(self, now_ns: int) -> None:
        """Ask who is silent, at most every 3 s."""
        peers = self._joiner.peers
        for session in [one for one in self._found if one not in peers]:
            del self._found[session]
        for session, peer in peers.items():
            silent_ns = now_ns - peer.came_ns
            if silent_ns > self._quiet_ns:
                silent_ns = self._silent_ns(peer, now_ns)
            if silent_ns <= self._quiet_ns:
                if self._found.pop(session, None) is not None:
                    peer.quiet = False
                continue
            state = self._found.get(session)
            if state is None:
                state = self._found[session] = _Quiet(now_ns, FIRST_WAIT_NS)
            if peer.gaps:
                self._note_missing(peer, state, now_ns)
            if peer.quiet:
                self._note_deaf(peer, silent_ns)
            if now_ns >= state.due_ns:
                self._ask(peer, state, now_ns)

    def _note_missing(self, peer: Session, state: _Quiet, now_ns: int) -> None:
        """Ask again soon, since there was something; what is missing comes over TCP only."""
        state.wait_ns = FIRST_WAIT_NS
        soon_ns = state.asked_ns + FIRST_WAIT_NS + len(peer.streams) * NS_PER_STREAM
        state.due_ns = min(state.due_ns, max(now_ns, soon_ns))

    def _silent_ns(self, peer: Session, now_ns: int) -> int:
        """Return how long nothing came over the data path; 0 where nobody can be asked."""
        if not (peer.joined and peer.direct and peer.recovery) or peer.gone:
            return 0
        if peer.closing and peer.handshake.reported_complete:
            return 0  # it may have gone on that
        heard_ns = peer.came_ns
        for line in self._joiner.lines:
            if line.session == peer.session and not line.shared:
                heard_ns = max(heard_ns, line.heard_ns)
        return now_ns - heard_ns

    def _ask(self, peer: Session, state: _Quiet, now_ns: int) -> None:
        state.request = self._rng.getrandbits(62)
        state.due_ns = now_ns + state.wait_ns + len(peer.streams) * NS_PER_STREAM
        state.asked_ns = now_ns
        state.wait_ns = min(2 * state.wait_ns, WAIT_NS_MAX)
        topics: list[str] = []  # of a multicast: its answer shows that it is there
        if peer.group is None:
            topics = self._joiner.settings.patterns
        body = control.Probe(state.request, topics, "latest")
        key = peer.session
        self._joiner.effects.send(key, Kind.HEADS_REQUEST, key, body, sequence=state.request)

    def receive(self, peer: Session, frame: Frame, now_ns: int) -> bool:
        """Take a page of an answer; False: it is of another question."""
        state = self._found.get(peer.session)
        if state is None or state.request != frame.sequence:
            return peer.group is None  # too late: something has come over the data path
        heads = self._pages.take(frame.sequence, control.read_body(frame, control.Heads))
        if heads is None:
            return True
        state.request, peer.quiet = None, True
        self._warn(peer, now_ns)
        member = self._joiner.member
        if peer.group is not None and member is not None:
            member.confirmation.want(peer, None, now_ns)
        elif now_ns >= peer.doubt_until_ns and (not heads.life or heads.life == peer.life):
            self._take(peer, heads, now_ns)
            if frame.flags & wire.FLAG_CLOSING:
                self._joiner.note_last_heads(peer, now_ns)
        return True

    def _take(self, peer: Session, heads: control.Heads, now_ns: int) -> None:
        """Take the heads that a publisher of one's own connection has said."""
        joiner = self._joiner
        table = joiner.stream_table
        if joiner.servers is not None:
            heads = joiner.servers.allowed(heads, peer.own, peer)
        for head in heads.streams:
            stream = peer.streams.get(head.topic)
            if stream is None:
                if not table.has_space(peer):
                    joiner.invalid["streams_max"] += 1
                    continue
                stream = table.add(peer, head.topic)
            if not stream.receiver.started:
                table.begin(stream, now_ns=now_ns)
            stream.receiver.observe_head(head.next, now_ns=now_ns)
            table.settle(stream)

    def _warn(self, peer: Session, now_ns: int) -> None:
        line = peer.handshake.line
        if now_ns >= self._warn_ns.get(line, now_ns):
            self._warn_ns[line] = now_ns + WARN_NS
            text = _text(peer, self._silent_ns(peer, now_ns))
            self._joiner.effects.warn(line, peer.session, text)

    def _note_deaf(self, peer: Session, silent_ns: int) -> None:
        line = self._joiner.lines[peer.handshake.line]
        line.deaf = line.deaf or _text(peer, silent_ns)


def _text(peer: Session, silent_ns: int) -> str:
    return (
        f"publisher {peer.name!r} answers at its recovery endpoint {peer.recovery}, but nothing of "
        f"it has come over the data path for {silent_ns / 1e9:.0f} s: what is missing is asked for "
        f"there, some seconds late. Does anything drop the data path (a firewall, a switch that "
        f"forgot this member of a group)?"
    )
