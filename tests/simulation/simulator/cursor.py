"""A subscriber's cursor in the simulator: commits at random, deaths, and what must hold after."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from recovery import CursorConfig, Loss, Rewound
from recovery.memory_store import MemoryStoreFile
from tests.simulation.simulator.oracle import key_of, title_of


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


class Killed(BaseException):
    """The process died within a call."""


class SimulatedCursor:
    """A cursor, through all incarnations of its subscriber.

    Attributes:
        config: of the cursor.
        covered: what the application saw, by (session, topic).
        delivered: how many messages it got, each once.
        repeated: how many it got again.
        lost: how many were reported lost, by reason.
        recorded: the sessions whose joining is on the disk.
        met: the endpoints at which somebody was met in former incarnations.

    """

    def __init__(self, name, network, history):
        self.config = CursorConfig(name, fsync=network.options.fsync)
        self.covered = {}
        self.delivered = self.repeated = 0
        self.lost = Counter()
        self.recorded = set()
        self.met = set()
        self._name = name
        self._network = network
        self._history = history
        self._deaths = 0
        self._file = network.stores[name] = MemoryStoreFile(name, self._step)
        self._face = None
        self._returned = {}

    def begin(self, core, face):
        """Begin an incarnation."""
        self._face = face
        self._returned.clear()
        self.met = set(self._file_of(core).cursor.endpoints)
        self.look(core)
        for covered in self.covered.values():
            covered.at_hand = None

    def look(self, core):
        """See which sessions are on the disk."""
        self.recorded.update(self._file_of(core).cursor.sessions)

    @staticmethod
    def _file_of(core):
        return core.cursor.file

    def crash(self):
        """End an incarnation, with the operating system's perhaps."""
        network = self._network
        self._face = None
        self._deaths += 1
        if network.rng.random() < network.options.system_crashes:
            network.note(f"{self._name} loses what its system had not written")
            self._file.crash(network.rng)
            for covered in self.covered.values():
                covered.committed = covered.durable
        else:
            self._file.kill()

    def take(self, stream, output):
        """Look at what the application gets next."""
        key = key_of(stream)
        if isinstance(output, Rewound):
            self.covered[key] = Covered(output.start, output.start)
            self._returned.pop(key, None)
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
        if not isinstance(output, Loss):
            self._returned.setdefault(key, []).append(output)
        new = max(0, covered.at_hand - covered.next)
        covered.next += new
        if isinstance(output, Loss):
            self.lost[output.reason.value] += new
        else:
            self.delivered += new
            self.repeated += count - new

    def commit(self, streams, *, all_of_it=False):
        """Commit what the application got, all of it or a part."""
        face, rng = self._face, self._network.rng
        if face is None:
            return
        if all_of_it or rng.random() < 0.5:
            self._call(face.commit)
            for stream in streams:
                covered = self.covered.get(key_of(stream))
                if covered is not None and covered.at_hand is not None and not stream.retired:
                    self._on_committed(covered, covered.at_hand)
            return
        for stream in streams:
            returned = self._returned.get(key_of(stream))
            if returned and not stream.retired and rng.random() < 0.5:
                batch = returned[int(rng.random() * len(returned))]
                self._call(face.commit, batch)
                self._on_committed(self.covered[key_of(stream)], batch[len(batch) - 1].sequence + 1)

    def _step(self):
        """Let the process die within a write, perhaps."""
        deaths = self._deaths
        if self._network.step is not None:
            self._network.step("CURSOR", self._name, self._name)
        if self._deaths != deaths:
            raise Killed

    def _call(self, call, *arguments):
        with suppress(Killed):
            call(*arguments)

    def _on_committed(self, covered, following):
        if self._face is None:
            return
        covered.committed = max(covered.committed, following)
        if self.config.fsync != "never":
            covered.durable = covered.committed

    def _complain(self, stream, what):
        self._history.complain(f"{title_of(self._name, stream)} {what}")
