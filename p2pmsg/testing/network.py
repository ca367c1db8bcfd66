"""A network in memory whose frames take their time, get lost, and overtake one another."""

import heapq
from collections.abc import Callable
from random import Random
from typing import Any, Final

from p2pmsg.driver.virtual import Turns
from p2pmsg.testing.clock import ManualClock
from p2pmsg.toolkit import to_ns
from recovery.memory_store import MemoryStoreFile
from transports.memory import Link, MemoryClient, MemoryNetwork

_AWAY_S: Final = 0.1
"""How long a connection that broke takes to be there again."""
_REORDERING_S: Final = 0.01
"""How much longer a frame takes at most that others may overtake."""


class FaultyNetwork:
    """Discrete events on a manual clock, and a memory network whose frames they carry.

    Args:
        seed: of all chance.
        loss: part of the frames that are lost, 0 to 1.
        duplication: part of the frames that arrive twice, but over TCP.
        reordering: part of the frames that others may overtake, but over TCP.
        delay: the shortest and longest time that a frame takes, in seconds.

    Attributes:
        loss, duplication, reordering: as given, until `heal`.
        clock: the time.
        rng: the only source of chance.
        sockets: where the processes meet.
        receivers: called when a frame has arrived at the socket of that name.
        owners: on whose host the memory endpoints are bound that stand for others.
        turns: let time pass while callers, or tasks, wait.
        stores: files of SQLite, by name.
        keeps_replies: whether a recovery channel that loses anything ends, as one of TCP does.
        sent, lost: how many frames were put on the way, and how many of them did not arrive.

    """

    keeps_replies = False

    def __init__(
        self,
        seed: int,
        *,
        loss: float = 0.0,
        duplication: float = 0.0,
        reordering: float = 0.0,
        delay: tuple[float, float] = (0.0001, 0.001),
    ) -> None:
        self.loss, self.duplication, self.reordering = loss, duplication, reordering
        self.clock = ManualClock()
        self._began_ns = self.clock.now_ns
        self.rng = Random(seed)
        self.sockets = MemoryNetwork(self.deliver)
        self.receivers: dict[str, Callable[[], None]] = {}
        self.owners: dict[str, str] = {}
        self.turns = Turns(self)
        self.stores: dict[str, MemoryStoreFile] = {}
        self.sent = self.lost = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0
        self._latest: dict[Link, int] = {}
        self._partitions: dict[tuple[str, str], int] = {}
        shortest, longest = map(to_ns, delay)
        self._delay_ns, self._spread_ns = shortest, longest - shortest

    def at(self, time_ns: int, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen at a time."""
        self._serial += 1
        heapq.heappush(self._queue, (time_ns, self._serial, action, args))

    def after(self, seconds: float, action: Callable[..., None], *args: Any) -> None:
        """Let `action(*args)` happen in so many seconds."""
        self.at(self.clock.now_ns + to_ns(seconds), action, *args)

    @property
    def now(self) -> float:
        """How long it has run, in seconds."""
        return (self.clock.now_ns - self._began_ns) / 1e9

    @property
    def next_ns(self) -> int | None:
        """When the next thing happens; None: nothing does."""
        return self._queue[0][0] if self._queue else None

    def run_until(self, end_ns: int) -> None:
        """Let happen what happens up to a time."""
        queue, clock = self._queue, self.clock
        while queue and queue[0][0] <= end_ns:
            time_ns, _, action, args = heapq.heappop(queue)
            clock.now_ns = time_ns
            action(*args)
        clock.now_ns = end_ns

    def part(self, publisher: str, subscriber: str, seconds: float) -> None:
        """Let nothing pass between two for a while."""
        self._partitions[publisher, subscriber] = self.clock.now_ns + to_ns(seconds)

    def heal(self) -> None:
        """From now on every frame arrives, in order, after its delay."""
        self.loss = self.duplication = self.reordering = 0.0
        self._partitions.clear()

    def name_of(self, socket: str) -> str:
        """Return whose socket that is: `memory://p0.recovery` belongs to `p0`, `s1/0` to `s1`."""
        place = socket.removeprefix("memory://").partition("/")[0].partition(".")[0]
        return self.owners.get(f"memory://{place}", place)

    def ends_of(self, link: Link) -> tuple[str, str]:
        """Return who publishes and who subscribes, at the ends of a link."""
        sockets = (link.source, link.target)
        if link.kind == "request":
            sockets = (link.target, link.source)
        return self.name_of(sockets[0]), self.name_of(sockets[1])

    def is_lost(self, link: Link, frame: bytes) -> bool:
        """Decide whether a frame is lost."""
        if self.loss and self.rng.random() < self.loss:
            return True
        if not self._partitions:
            return False
        return self._partitions.get(self.ends_of(link), 0) > self.clock.now_ns

    def deliver(self, link: Link, frame: bytes) -> None:
        """Decide what becomes of a frame; the hook of the memory network."""
        self.sent += 1
        if not self.is_lost(link, frame):
            self.carry(link, frame)
            return
        self.lost += 1
        link.lose()
        if link.breaks is not None:
            self._break(link.breaks)

    def carry(self, link: Link, frame: bytes) -> None:
        """Decide when a frame arrives, and how often."""
        rng, is_tcp = self.rng, link.breaks is not None
        arrival_ns = self.clock.now_ns + self._delay_ns
        if self._spread_ns:
            arrival_ns += int(rng.random() * self._spread_ns)
        if self.reordering and not is_tcp and rng.random() < self.reordering:
            arrival_ns += to_ns(rng.random() * _REORDERING_S)
        else:
            arrival_ns = max(arrival_ns, self._latest.get(link, 0))
            self._latest[link] = arrival_ns
        self.at(arrival_ns, self.arrive, link, frame)
        if self.duplication and not is_tcp and rng.random() < self.duplication:
            again_ns = to_ns(rng.random() * _REORDERING_S)
            self.at(arrival_ns + again_ns, self.arrive, link, frame)

    def arrive(self, link: Link, frame: bytes) -> None:
        """Let a frame arrive, and who has the socket take its turn."""
        link.arrive(frame)
        if not link.connected:
            self._latest.pop(link, None)
        elif (receiver := self.receivers.get(link.target)) is not None:
            receiver()

    def _break(self, client: MemoryClient) -> None:
        """End a connection that has lost something; it is made again a little later."""

        def connect() -> None:
            if not client.closed:
                client.connect()

        client.disconnect()
        self.after(_AWAY_S, connect)
