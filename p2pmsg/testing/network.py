"""The simulated network: which frames arrive, when, and how often.

It is the `deliver` hook of a `transports.MemoryNetwork`, whose sockets do what those of ZeroMQ do;
here every frame meets its fate, drawn from one seeded source.
"""

import heapq
import math
import zlib
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from random import Random
from typing import Any

from p2pmsg.driver.virtual import Turns
from p2pmsg.multicast.run import is_sealed
from p2pmsg.multicast.seal import OpeningKey, Secret, key_id
from p2pmsg.security import Security
from p2pmsg.testing.clock import ManualClock
from p2pmsg.testing.options import NetworkOptions
from p2pmsg.wire import FrameError, Kind
from recovery.checks import to_ns
from recovery.memory_store import MemoryStoreFile
from transports import CurveKeys, MemoryNetwork
from transports.memory import Link, MemoryClient

MS = 1_000_000
_NAMES = {kind.value: kind.name for kind in Kind}
_NOBODY = "no file of known peers"
_SEAL_HEADER_BYTES = 16
_PORT_BYTES = 4
"""What follows each datagram; see `memory_group`."""
_AWAY_S = 0.1
"""How long a connection that broke takes to be there again."""
_REORDERING_S = 0.01
"""How much longer a frame takes at most that others may overtake."""


class FaultyNetwork:
    """Discrete events on a manual clock, and a memory network whose frames they carry.

    Attributes:
        options: the circumstances, until `heal`.
        clock: the time.
        rng: the only source of chance.
        sockets: where the simulated processes meet.
        receivers: called when a frame has arrived at the socket of that name.
        step: called with a frame's kind and its two sockets, right before it arrives and right
            after its receiver has worked on it; None after `heal`.
        watchers: called with the link and the bytes of each frame that is not lost otherwise; it
            is lost where one returns True. `heal` ends them.
        owners: on whose host the memory endpoints are bound that stand for others.
        turns: let time pass while callers, or tasks, wait.
        security: of all peers, where groups are sealed; their connections have no keys here.
        stores: files of SQLite, by name.
        secrets: return with which keys publishers seal, so that kinds of frames are known.
        sent: frames put on the way, by kind.
        lost: frames that did not arrive.
        answered_bytes: what was sent to strangers, or to all because of them.

    """

    def __init__(self, options: NetworkOptions, log: Callable[[str], object] | None) -> None:
        self.options = options
        self.clock = ManualClock()
        self.rng = Random(options.seed)
        self.sockets = MemoryNetwork(self._deliver)
        self.receivers: dict[str, Callable[[], None]] = {}
        self.step: Callable[[str, str, str], None] | None = None
        self.watchers: list[Callable[[Link, bytes], bool]] = []
        self.sent: Counter[str] = Counter()
        self.lost = 0
        self.answered_bytes = 0
        self._log = log
        self.owners: dict[str, str] = {}
        self.turns = Turns(self)
        self.security: Security | None = None
        if options.multicast in ("sealed", "signed"):
            self.security = Security(CurveKeys.new(), _NOBODY)
        self.stores: dict[str, MemoryStoreFile] = {}
        self.secrets: list[Callable[[], Secret]] = []
        self._sealed_kinds: dict[bytes, str] = {}
        self._opening: dict[bytes, OpeningKey] = {}
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self._latest: dict[Link, int] = {}
        self._slow: dict[tuple[str, str], deque[tuple[Link, bytes]]] = {}
        self._partitions: dict[tuple[str, str], int] = {}
        self._one_way: dict[tuple[str, str], float] = {}
        self._hash = blake2b(digest_size=16)
        shortest, longest = (to_ns(seconds) for seconds in options.delay)
        self._delay_ns, self._spread_ns = shortest, longest - shortest

    @property
    def trace(self) -> str:
        """A hash of everything that has happened."""
        return self._hash.copy().hexdigest()

    def at(self, time_ns: int, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen at a time."""
        self._serial += 1
        heapq.heappush(self._queue, (time_ns, self._serial, action, args))

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen in so many seconds."""
        self.at(self.clock.now_ns + to_ns(seconds), action, *args)

    @property
    def next_ns(self) -> int | None:
        """When the next thing happens; None: nothing does."""
        return self._queue[0][0] if self._queue else None

    def after_chance(self, rate: float, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen after a random time, at `rate` a second on average."""
        self.after(self.rng.expovariate(rate), action, *args)

    def run_until(self, end_ns: int) -> None:
        """Let happen what happens up to a time."""
        queue, clock = self._queue, self.clock
        while queue and queue[0][0] <= end_ns:
            time_ns, _, action, args = heapq.heappop(queue)
            clock.now_ns = time_ns
            action(*args)
        clock.now_ns = end_ns

    def note(self, what: str) -> None:
        """Put `what` into the trace."""
        now_ns = self.clock.now_ns
        self._hash.update(f"{now_ns} {what}".encode())
        if self._log is not None:
            self._log(f"{now_ns / MS:.6f} {what}")

    def part(self, publisher: str, subscriber: str, seconds: float) -> None:
        """Let nothing pass between two for a while."""
        self._partitions[publisher, subscriber] = self.clock.now_ns + to_ns(seconds)

    def deafen(self, publisher: str, subscriber: str, seconds: float) -> None:
        """Let nothing pass over the data path between two for a while; `inf`: also after `heal`."""
        until = math.inf if math.isinf(seconds) else self.clock.now_ns + to_ns(seconds)
        ends = publisher, subscriber
        self._one_way[ends] = max(until, self._one_way.get(ends, 0))

    def is_one_way(self, publisher: str, subscriber: str) -> bool:
        """Whether nothing passes over the data path between two."""
        return self._one_way.get((publisher, subscriber), 0) > self.clock.now_ns

    def heal(self) -> None:
        """From now on every frame arrives, in order, after its delay."""
        self.options = replace(self.options, loss=0.0, duplication=0.0, reordering=0.0)
        self.step = None
        self.watchers.clear()
        self._partitions.clear()
        self._one_way = {ends: until for ends, until in self._one_way.items() if math.isinf(until)}

    def _deliver(self, link: Link, frame: bytes) -> None:
        """Decide what becomes of a frame; the hook of the memory network."""
        kind = self.kind_of(frame)
        self.sent[kind] += 1
        self.note(f"{link.source}>{link.target} {kind} {zlib.crc32(frame):x}")
        loss = self.options.loss
        is_lost = bool(loss) and self.rng.random() < loss
        is_lost = is_lost or self._is_parted(link)
        if is_lost or any(watcher(link, frame) for watcher in self.watchers):
            self.lost += 1
            link.lose()
            if self._log is not None:
                self._log("    lost")
            if link.breaks is not None:
                self._break(link.breaks)
            return
        if self.options.bytes_per_s:
            path = self.name_of(link.source), self.name_of(link.target)
            waiting = self._slow.setdefault(path, deque())
            waiting.append((link, frame))
            if len(waiting) == 1:
                self._carry(waiting)
        else:
            self._send_off(link, frame)

    def _break(self, client: MemoryClient) -> None:
        """End a connection that has lost something; it is made again a little later."""

        def connect() -> None:
            if not client.closed:
                client.connect()

        client.disconnect()
        self.after(_AWAY_S, connect)

    def _carry(self, waiting: deque[tuple[Link, bytes]]) -> None:
        """Have a slow path carry the first frame that waits; what a cut link had takes no time."""
        while waiting:
            link, frame = waiting[0]
            if link.connected:
                self.after(len(frame) / self.options.bytes_per_s, self._carried, waiting)
                return
            waiting.popleft()

    def _carried(self, waiting: deque[tuple[Link, bytes]]) -> None:
        self._send_off(*waiting.popleft())
        self._carry(waiting)

    def _send_off(self, link: Link, frame: bytes) -> None:
        """Decide when a frame arrives, and how often."""
        rng = self.rng
        arrival_ns = self.clock.now_ns + self._delay_ns
        if self._spread_ns:
            arrival_ns += int(rng.random() * self._spread_ns)
        options, is_tcp = self.options, link.breaks is not None
        if options.reordering and not is_tcp and rng.random() < options.reordering:
            arrival_ns += to_ns(rng.random() * _REORDERING_S)
        else:
            arrival_ns = max(arrival_ns, self._latest.get(link, 0))
            self._latest[link] = arrival_ns
        self.at(arrival_ns, self._arrive, link, frame)
        if options.duplication and not is_tcp and rng.random() < options.duplication:
            again_ns = to_ns(rng.random() * _REORDERING_S)
            self.at(arrival_ns + again_ns, self._arrive, link, frame)

    def kind_of(self, frame: bytes) -> str:
        """Return the name of a frame's kind; of one that a receiver has sealed, `SEALED`."""
        if not is_sealed(frame):
            return kind_of(frame)
        header = frame[:_SEAL_HEADER_BYTES]
        if (kind := self._sealed_kinds.get(header)) is None:
            kind = self._sealed_kinds[header] = self._kind_of_sealed(frame[:-_PORT_BYTES])
        return kind

    def _kind_of_sealed(self, datagram: bytes) -> str:
        key = key_id(datagram) or b""
        if key not in self._opening:
            secrets = (secret() for secret in self.secrets)
            self._opening |= {one.id: OpeningKey(one, 0) for one in secrets}
        with suppress(FrameError):
            if (opening := self._opening.get(key)) is not None:
                return kind_of(opening.open(datagram))
        return "SEALED"

    def name_of(self, socket: str) -> str:
        """Return whose socket that is: `memory://p0.recovery` belongs to `p0`, `s1/0` to `s1`."""
        place = socket.removeprefix("memory://").partition("/")[0].partition(".")[0]
        return self.owners.get(f"memory://{place}", place)

    def _is_parted(self, link: Link) -> bool:
        if not (self._partitions or self._one_way):
            return False
        sockets = (link.source, link.target)
        if link.kind == "request":
            sockets = (link.target, link.source)
        publisher, subscriber = map(self.name_of, sockets)
        if link.kind == "data" and self.is_one_way(publisher, subscriber):
            return True
        return self._partitions.get((publisher, subscriber), 0) > self.clock.now_ns

    def _arrive(self, link: Link, frame: bytes) -> None:
        if self.step is not None and link.connected:
            self.step(self.kind_of(frame), link.source, link.target)
        link.arrive(frame)
        if not link.connected:
            self._latest.pop(link, None)
            return
        receiver = self.receivers.get(link.target)
        if receiver is not None:
            receiver()
            if self.step is not None:
                self.step(self.kind_of(frame), link.source, link.target)


def kind_of(frame: bytes) -> str:
    """Return the name of a frame's kind."""
    at = frame.index(b"\0") + 4
    return _NAMES[frame[at]]
