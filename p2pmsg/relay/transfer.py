"""From the subscriber's side of a relay to its publisher's side."""

from typing import TYPE_CHECKING

from p2pmsg.errors import RewoundReport
from p2pmsg.relay.core import RelayCore
from p2pmsg.subscriber.effects import Action, Command
from p2pmsg.subscriber.resume import Resume
from recovery import Delivery, Loss, LossReason, Rewound
from recovery.checks import to_ns

if TYPE_CHECKING:
    from p2pmsg.relay.session import RelayedSession
    from p2pmsg.subscriber.core import SubscriberCore
    from p2pmsg.subscriber.sessions import Session, Stream


_MS = 1_000_000
_LOOK_NS = 50 * _MS
"""How often is looked for sessions that have nothing to say."""


class Resumption(Resume):
    """Says where the streams of a relay's intake begin: where they end in the relay.

    What was served on keeps its sequences here, whatever its publisher does, so `rewind` and `note`
    have nothing to do.
    """

    def __init__(self, relay: RelayCore) -> None:
        self._relay = relay
        self.newcomers: list[Session] = []

    def start_of(self, session: int, topic: str, of_new: int) -> int | None:
        """Return where a stream begins; None: where its upstream says."""
        following = self._relay.next(session, topic)
        if following is None and session in self._relay.sessions:
            return of_new
        return following

    def known(self, session: int) -> dict[str, int]:
        """Return up to where the relay has had the streams of a session, by topic."""
        served = self._relay.sessions.get(session)
        streams = {} if served is None else served.streams
        return {topic: stream.end for topic, stream in streams.items()}


class Transfer:
    """Moves what `source` delivers into `relay`; both locks are held around every call."""

    def __init__(self, source: "SubscriberCore", relay: RelayCore) -> None:
        self._source = source
        self._relay = relay
        self._checked_ns = 0
        self._give_up_ns = to_ns(source.config.repair_timeout)
        self._cut_ns: dict[tuple[int, str], int] = {}

    def on_sessions(self, *, now_ns: int) -> None:
        """Serve the sessions that were joined, and note which have ended."""
        relay = self._relay
        source = self._source
        relay.set_path(source.relays.path_beyond())
        peers = source.peers.values()  # those met are joined soon, or what came is served at last
        joining = any(not one.is_decided for one in peers)
        reforming = source.relays.reforming(now_ns)
        if relay.cut:
            self._check_cut(reforming, now_ns)
        relay.settled = not joining and not reforming and not relay.cut
        for session, peer in list(source.peers.items()):
            if not peer.is_decided:
                continue
            served = relay.sessions.get(session)
            if peer.gone or not peer.joined:
                if served is not None:
                    served.is_live = False
                continue
            hops = 1 + min((route.hops for route in peer.routes), default=0)
            if served is None or (served.name, served.hops, served.is_live) != (
                peer.name, hops, True,
            ):  # fmt: skip
                served = relay.open_session(session, peer.name, hops)
            if served is not None:
                self._open_streams(served, peer, now_ns)

    def _check_cut(self, reforming: bool, now_ns: int) -> None:
        """Ask upstreams for what the relay's log has lost, and give up what nobody has.

        It is given up when no upstream has had it for as long as a gap is waited for. A publisher
        that is there has it, or says by itself that it has not.
        """
        source, relay = self._source, self._relay
        for place, stream in list(relay.cut.items()):
            if stream.next >= stream.end:
                del relay.cut[place]
                self._cut_ns.pop(place, None)
                continue
            since_ns = self._cut_ns.setdefault(place, now_ns)
            peer = source.peers.get(place[0])
            theirs = None if peer is None else peer.streams.get(place[1])
            if peer is not None and theirs is not None and theirs.receiver.started:
                receiver = theirs.receiver
                if not peer.direct and not peer.gone and receiver.head < stream.end:
                    start = receiver.head
                    receiver.observe_head(stream.end, now_ns=now_ns)
                    receiver.nacks.set_loss_reason(start, stream.end, LossReason.CRASH)
                    source.stream_table.drain(theirs)
                if receiver.head >= stream.end:
                    continue  # it comes, or is lost, as what is missing of any stream
            if reforming:
                self._cut_ns[place] = now_ns
            elif now_ns - since_ns > self._give_up_ns:
                del self._cut_ns[place]
                relay.give_up(*place, now_ns=now_ns)

    def _on_rewound(self, stream: "Stream", rewound: Rewound, now_ns: int) -> None:
        """Say that a publisher has gone back: what was served on keeps its sequences here."""
        place = stream.peer.session, stream.topic
        cut = self._relay.cut.get(place)
        if cut is not None:
            self._relay.lose(*place, Loss(cut.next, cut.end, LossReason.REWOUND), now_ns=now_ns)
        report = RewoundReport(stream.topic, stream.peer.session, stream.peer.name, rewound)
        text = f"{report}. Those that this relay has keep them here; it drops the other ones"
        self._source.commands.append(Command(Action.WARN, text=text))

    def _open_ended(self, peer: "Session", now_ns: int) -> None:
        """Serve a session that ended before it was noted here, perhaps before it was joined."""
        served = self._relay.open_session(peer.session, peer.name, 1)
        if served is not None:
            self._open_streams(served, peer, now_ns)
            served.is_live = False

    def _open_streams(self, served: "RelayedSession", peer: "Session", now_ns: int) -> None:
        if len(served.streams) < len(peer.streams):
            for topic, stream in list(peer.streams.items()):
                if stream.receiver.started and topic not in served.streams:
                    start = stream.receiver.start
                    self._relay.open_stream(peer.session, topic, start, now_ns=now_ns)

    def transfer(self, *, now_ns: int, wall_ns: int, count_max: int = 256) -> int:
        """Move at most `count_max` frames and losses; returns how many.

        `LogFailedError` where the log did not take the next one; it stays where it was.
        """
        source, relay = self._source, self._relay
        if now_ns >= self._checked_ns:
            self._checked_ns = now_ns + _LOOK_NS
            self.on_sessions(now_ns=now_ns)
        moved = 0
        while moved < count_max and source.ready.entries:
            stream, output = source.ready.first()
            session = stream.peer.session
            if session not in relay.sessions:
                self.on_sessions(now_ns=now_ns)
                if session not in relay.sessions:
                    self._open_ended(stream.peer, now_ns)
            relay.open_stream(session, stream.topic, stream.receiver.start, now_ns=now_ns)
            if isinstance(output, Delivery):
                if not relay.take(session, output, now_ns=now_ns, wall_ns=wall_ns):
                    sequence, count = output.sequence, output.count
                    stream.on_malformed(sequence, count)
                    loss = Loss(sequence, sequence + count, LossReason.MALFORMED)
                    relay.lose(session, stream.topic, loss, now_ns=now_ns)
            elif isinstance(output, Rewound):
                self._on_rewound(stream, output, now_ns)
            else:
                relay.lose(session, stream.topic, output, now_ns=now_ns)
            source.ready.pop()
            moved += 1
        return moved
