"""Owns the sessions: asks them for echoes, ends them, and forgets them.

Those that ended first are forgotten first, where sessions or streams are as many as may be.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from p2pmsg import control
from p2pmsg.subscriber.connections import Connection
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.relays import RelayClient, merge_heads
from p2pmsg.subscriber.resume import is_compared, on_probed
from p2pmsg.subscriber.route import RETRY, Route
from p2pmsg.subscriber.servers import Denials, Servers
from p2pmsg.subscriber.sessions import Session, Stream
from p2pmsg.subscriber.settings import Settings
from p2pmsg.subscriber.states import Event, RouteEvent, State
from p2pmsg.subscriber.streams import StreamTable
from p2pmsg.topics import matches
from p2pmsg.wire import FrameError, Kind
from recovery import LossReason

if TYPE_CHECKING:
    from p2pmsg.subscriber.group_keys import GroupKeyClient

_MS: Final = 1_000_000
PEERS_MAX = 4096
"""Sessions known at once."""
UNJOINED_MAX = 64
"""Sessions of groups that were announced and not joined; with more, further ones have to wait."""
UNJOINED_NS: Final = 10_000 * _MS
"""How long such a session may be announced without being joined, before it is forgotten."""
_WARN_NS: Final = 60_000 * _MS


class SessionTable:
    """The sessions, and what is sent to join them.

    Args:
        relay: the id of the relay that this subscriber is the receiving side of, or None.
        forget_last: called when the stream of the last frame may have ended.
        denials: takes what publishers do not deny any more.

    Attributes:
        peers: the sessions by their ids.
        effects: what the shell is to do and to send.
        relays: the relays that are connected.
        servers: checks what servers may send; None: all of it.
        keys: opens the datagrams of sealed groups; None: there are none.
        pages: the pages of echoes that have come.
        asked: the sequence to start at, else 0.
        next_check_ns: when sessions are to be checked.
        unjoined: how many ended, or fell silent and stayed so, before they were joined.

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
    ) -> None:
        self.settings = settings
        self.start, self.cursor = settings.start, settings.cursor
        self.stream_table = stream_table
        self.lines = lines
        self.invalid = invalid
        self.denials = denials
        self.rng = rng
        self.peers: dict[int, Session] = {}
        self.effects = Effects(settings.config.frame_bytes_max)
        self.relays = RelayClient(
            settings, relay, peers=self.peers, lines=lines, effects=self.effects,
            hurry=self.hurry, rng=rng, now_ns=now_ns,
        )  # fmt: skip
        self.servers: Servers | None = None
        self.keys: GroupKeyClient | None = None
        self.pages = control.HeadPages(settings.config.streams_max)
        self.asked = self.start.position if self.start.kind == "sequence" else 0
        self.next_check_ns = now_ns
        self.unjoined = self._refused_logged = self._warn_ns = 0
        self.forget_last = forget_last
        self._ended: dict[int, None] = {}

    def hurry(self, due_ns: int) -> None:
        """Let sessions be checked by a time."""
        self.next_check_ns = min(self.next_check_ns, due_ns)

    # ------------------------------------------------------------------------- asking

    def send_probe(self, peer: Session, line: int, now_ns: int) -> None:
        """Ask the publisher itself for an echo over a line."""
        on_probed(peer, self.asked)
        newer = is_compared(peer, self.committed(peer))
        self._begin_probe(peer, peer.own, line, newer, now_ns)

    def probe_route(self, peer: Session, route: Route, now_ns: int) -> None:
        """Ask a relay for an echo."""
        self.hurry(now_ns + RETRY.wait_ns(0))
        self._begin_probe(peer, route, route.line, False, now_ns)

    def _begin_probe(
        self, peer: Session, route: Route, line: int, newer: bool, now_ns: int
    ) -> None:
        start, topics = peer.start, self.settings.patterns
        number = self.rng.getrandbits(64)
        body = control.Probe(number, topics, start.kind, start.position, newer)
        route.begin_probe(line, body, self.effects, now_ns)
        self.repeat_probe(peer, route)

    def repeat_probe(self, peer: Session, route: Route) -> None:
        """Ask again for the echo over a route, if it is awaited."""
        body, keys = route.echo.body, None
        if route is peer.own and peer.group is not None:
            keys = self.keys
        if body is None or (keys is not None and keys.begin_with(peer)):
            return  # without keys the echo could not be read
        self.effects.send(route.key, Kind.PROBE, peer.session, body)

    def committed(self, peer: Session) -> Mapping[str, int]:
        """Return where the streams of a session that is not joined yet resume."""
        cursor, patterns = self.cursor, self.settings.patterns
        known = {} if cursor is None or peer.joined else cursor.known(peer.session)
        return {topic: at for topic, at in known.items() if matches(topic, patterns)}

    def on_incarnation(self, peer: Session, incarnation: int) -> bool:
        """Note which incarnation a publisher says it is; True: another one, and to be probed."""
        if not (peer.incarnation and peer.direct) or peer.is_held:
            return False
        if incarnation in (0, peer.incarnation):
            return False
        peer.on(Event.OTHER_INCARNATION)
        self.forget_last()  # so that no frame takes the fast path
        return True

    def begin_again(self, peer: Session, now_ns: int) -> None:
        """Join a session again over the same channels: its publisher was restarted."""
        self.begin_incarnation(peer)
        peer.own.on(RouteEvent.ANNOUNCED)
        peer.own.asked_ns, peer.own.refused = None, {}
        self.next_check_ns = now_ns
        self.send_probe(peer, peer.own.line, now_ns)

    def begin_incarnation(self, peer: Session) -> None:
        """Start over with a session: its publisher was started again, or is elsewhere."""
        if self.keys is not None:
            self.keys.begin_incarnation(peer.session)
        if peer.group is not None:
            peer.group.begin_incarnation()
        for stream in peer.streams.values():  # what it sent before is in its log only
            stream.repairs.history = max(stream.repairs.history, stream.receiver.head)

    # ------------------------------------------------------------------------- ending

    def end_replaced(self, former: int | None, now_ns: int) -> int | None:
        """End the session that a line had, and return it, unless another line still has it."""
        if former not in self.peers or self.has_line(former):
            return None
        self.end(self.peers[former], now_ns)
        return former

    def has_line(self, session: int | None) -> bool:
        """Whether a line has a session."""
        return any(line.session == session for line in self.lines)

    def draining(self) -> list[Session]:
        """Return the sessions of feeds that no line has any more: their servers still answer."""
        return [
            peer
            for peer in self.peers.values()
            if peer.direct and not peer.own.recovery and not self.has_line(peer.session)
        ]

    def end_unrouted(self, now_ns: int) -> None:
        """End the sessions to which no relay leads any more."""
        for peer in self.relays.unrouted():
            self.end(peer, now_ns)

    def end(self, peer: Session, now_ns: int) -> None:
        """End a session whose place another one has taken, unless a relay has it."""
        peer.own.on(RouteEvent.REPLACED)
        peer.own.urgent = peer.own.silent = None
        peer.own.cancel(self.effects)
        if peer.relayed or self.relays.may_have(peer, now_ns):
            self.effects.disconnect(peer.session)
            return
        if not peer.joined:
            self._begin_unjoined(peer, now_ns)
        peer.on(Event.REPLACED)
        self._ended.pop(peer.session, None)
        self._ended[peer.session] = None
        self._give_up_streams(peer)
        self.effects.disconnect(peer.session)

    def give_up(self, peer: Session, now_ns: int) -> None:
        """Deliver what came from a session that fell silent before it was joined.

        In a multicast only of one that was joined: anybody can announce one, and send data of it.
        It is still probed: when its publisher comes back on its log, it goes on from there.
        """
        if not peer.joined and self.relays.reforming(now_ns):
            return  # a relay that has met it may still serve it
        if peer.joined or peer.group is not None:
            return
        if peer.state is State.GIVEN_UP and all(s.receiver.started for s in peer.streams.values()):
            return
        self._begin_unjoined(peer, now_ns)
        peer.on(Event.ABANDONED)
        self._give_up_streams(peer)

    def _give_up_streams(self, peer: Session) -> None:
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
        self.unjoined += peer.state is not State.GIVEN_UP
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
        self.effects.warn(peer.own.line, peer.session, text)

    def forget(self, session: int) -> None:
        """Forget a session and its streams; what they counted stays counted."""
        peer = self.peers.pop(session)
        if not peer.gone:
            self.effects.disconnect(session)
        self._ended.pop(session, None)
        self.relays.forget(session)
        if self.keys is not None:
            self.keys.forget(session)
        if self.cursor is not None:
            self.cursor.forget(peer)
        for line in self.lines:
            if line.shared and line.session == session:
                line.session = None
        self.forget_last()
        self.stream_table.forget(peer)

    # -------------------------------------------------------------------------- space

    def add(self, peer: Session) -> None:
        """Add a session; where there are too many, the one that ended first is forgotten.

        Raises:
            FrameError: none has ended.

        """
        if len(self.peers) >= PEERS_MAX and not self._forget_first(None):
            raise FrameError("peers_max")
        self.peers[peer.session] = peer

    def forget_unjoined(self, now_ns: int) -> int:
        """Forget sessions that groups announce and that do not answer; return how many are left."""
        left = 0
        for peer in list(self.peers.values()):
            if peer.group is None or peer.joined:
                continue
            if now_ns - peer.own.met_ns > UNJOINED_NS:
                self.invalid["unanswered"] += 1
                self.forget(peer.session)
            else:
                left += 1
        return left

    def has_space(self, peer: Session) -> bool:
        """Whether a session may have another stream; sessions that have ended make space for it."""
        while self.stream_table.is_full:
            if not self._forget_first(peer):
                return False
        return True

    def open_stream(self, peer: Session, topic: str, now_ns: int) -> Stream:
        """Return a stream that a frame mentions; `FrameError` where it cannot be."""
        stream = peer.streams.get(topic)
        if stream is None:
            self.has_space(peer)
            stream = self.stream_table.open(peer, topic, now_ns)
        return stream

    def _forget_first(self, but: Session | None) -> bool:
        for session in [*self._ended]:
            peer = self.peers[session]
            if peer is but:
                continue
            del self._ended[session]
            if peer.gone:
                self.forget(session)
                return True
        return False

    def warn_of_space(self, now_ns: int) -> None:
        """Say that sessions or streams were refused, at the first time and then once a minute."""
        sessions, streams = self.invalid["peers_max"], self.invalid["streams_max"]
        if sessions + streams > self._refused_logged and now_ns >= self._warn_ns:
            self._refused_logged, self._warn_ns = sessions + streams, now_ns + _WARN_NS
            most = f"{self.settings.config.streams_max:,} streams (`streams_max`) of {PEERS_MAX:,}"
            self.effects.warn(
                -1, 0,
                f"there are as many as may be, {most} publishers' sessions, and none has ended: "
                f"frames of others were refused, {streams:,} of streams and {sessions:,} of "
                f"sessions, so that their messages are neither delivered nor reported lost",
            )  # fmt: skip
