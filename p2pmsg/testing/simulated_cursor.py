"""A subscriber's cursor in the simulator: commits at random, deaths, and what must hold after."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from p2pmsg.message import MessageBatch
from p2pmsg.stats import CursorStats
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.subscriber.resume import ResumePoints
from p2pmsg.subscriber.sessions import Stream
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.oracle import History, StreamKey, key_of, title_of
from recovery import CursorFile, Loss, MemoryCursorStore, Rewound


@dataclass(slots=True)
class Covered:
    """What the application saw of one stream, in all incarnations of its subscriber.

    Attributes:
        start: where it began.
        next: the sequence after what it saw.
        committed: below it nothing may come again after the death of the process.
        durable: below it nothing may come again after the death of the operating system.
        at_hand: the next sequence of the current incarnation; None: nothing came yet.

    """

    start: int
    next: int
    committed: int = 0
    durable: int = 0
    at_hand: int | None = None


class SimulatedCursor:
    """A cursor, through all incarnations of its subscriber.

    Attributes:
        covered: what the application saw, by (session, topic).
        delivered: how many messages it got, each once.
        repeated: how many it got again.
        lost: how many were reported lost, by reason.
        recorded: the sessions whose joining is on the disk.
        met: the endpoints at which somebody was met in former incarnations.

    """

    def __init__(
        self,
        name: str,
        network: FaultyNetwork,
        history: History,
        endpoints: list[str],
        topics: list[str],
    ) -> None:
        self.covered: dict[StreamKey, Covered] = {}
        self.delivered = self.repeated = 0
        self.lost: Counter[str] = Counter()
        self.recorded: set[int] = set()
        self.met: set[str] = set()
        self._meeting: set[str] = set()
        self._name = name
        self._network = network
        self._history = history
        self._endpoints, self._topics = endpoints, topics
        self._store = MemoryCursorStore(name)
        self._points: ResumePoints | None = None

    def open(self) -> ResumePoints:
        """Begin an incarnation."""
        file = CursorFile(self._store)
        self._points = ResumePoints(file, self._endpoints, self._topics)
        self.met |= self._meeting
        for covered in self.covered.values():
            covered.at_hand = None
        return self._points

    @property
    def is_open(self) -> bool:
        """Whether a subscriber has it."""
        return self._points is not None

    @property
    def is_waiting(self) -> bool:
        """Whether a session is to be written down before anything is delivered."""
        return self._points is not None and bool(self._points.newcomers)

    def stats(self) -> CursorStats | None:
        """Return the counters of this incarnation; None where nobody has it."""
        return None if self._points is None else self._points.stats()

    def use_for(self, endpoints: list[str], topics: list[str]) -> None:
        """Have the next incarnation connect to these endpoints, and take these topics."""
        self._endpoints, self._topics = endpoints, topics

    def commit_until(self, stream: Stream, following: int) -> bool:
        """Commit a stream up to before `following`, durably; False: it was not delivered so far."""
        points, covered = self._points, self.covered.get(key_of(stream))
        if points is None or covered is None or (covered.at_hand or 0) < following:
            return False
        covered.committed = covered.durable = max(covered.committed, following)
        self._network.note(f"{self._name} commits {stream.topic} {following}")
        points.commit([(stream, following)], durable=True)
        return True

    def crash(self) -> None:
        """End an incarnation, with the operating system's perhaps."""
        network = self._network
        self._points = None
        if network.rng.random() < network.options.system_crashes:
            network.note(f"{self._name} loses what its system had not written")
            self._store.crash(network.rng)
            for covered in self.covered.values():
                covered.committed = covered.durable
        else:
            self._store.kill()

    def record(self, core: SubscriberCore, *, hurried: bool) -> None:
        """Write down who was joined: at once where messages are to be read, or now and then."""
        points = self._points
        if points is None or not points.newcomers:
            return
        if not hurried and self._network.rng.random() >= 0.5:
            return
        newcomers, step = list(points.newcomers), self._network.step
        if step is not None:
            step("CURSOR", self._name, self._name)
            if self._points is None:
                return  # it died right before the write
        core.record_newcomers()
        for peer in newcomers:
            self.recorded.add(peer.session)
            self._meeting.add(self._endpoints[peer.handshake.line])
        if step is not None:
            step("CURSOR", self._name, self._name)

    def take(self, stream: Stream, output: MessageBatch | Loss) -> None:
        """Look at what the application gets next."""
        key = key_of(stream)
        if isinstance(output, Rewound):
            self.covered[key] = Covered(output.start, output.start)
            return
        start = output.start if isinstance(output, Loss) else output.sequence
        covered = self.covered.get(key)
        if stream.peer.session not in self.recorded:
            self._complain(stream, f"delivers {start} before it has noted the session")
        if covered is None:
            covered = self.covered[key] = Covered(start, start)
        if covered.at_hand is None:
            if start > covered.next:
                self._complain(stream, f"resumes at {start} and leaves out from {covered.next} on")
            if start < covered.committed:
                self._complain(stream, f"resumes at {start} in front of {covered.committed}")
        count = output.count if isinstance(output, Loss) else len(output)
        covered.at_hand = start + count
        new = max(0, covered.at_hand - covered.next)
        covered.next += new
        if isinstance(output, Loss):
            self.lost[output.reason.value] += new
        else:
            self.delivered += new
            self.repeated += count - new

    def commit(self, streams: Sequence[Stream], *, all_of_it: bool = False) -> None:
        """Commit what the application got, all of it or a part."""
        points, rng = self._points, self._network.rng
        if points is None:
            return
        fsync = self._network.options.fsync
        durable = all_of_it or fsync == "always" or (fsync == "interval" and rng.random() < 0.5)
        whole = all_of_it or rng.random() < 0.5
        positions: list[tuple[Stream, int]] = []
        for stream in streams:
            if stream.retired:
                continue
            covered = self.covered.get(key_of(stream))
            if covered is None or covered.at_hand is None or not (whole or rng.random() < 0.5):
                continue
            following = covered.at_hand
            if not whole:
                start = min(stream.receiver.start, following)
                following = start + int(rng.random() * (following - start + 1))
            covered.committed = max(covered.committed, following)
            positions.append((stream, following))
        self._network.note(f"{self._name} commits {[at for _, at in positions]} {durable}")
        points.commit(positions, durable=durable)
        if durable:
            for covered in self.covered.values():
                covered.durable = covered.committed

    def _complain(self, stream: Stream, what: str) -> None:
        self._history.complain(f"{title_of(self._name, stream)} {what}")
