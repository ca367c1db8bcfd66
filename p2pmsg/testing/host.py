"""What a simulated process has of its machine: memory sockets, a clock moved by hand, a seed."""

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, TypeVar

from p2pmsg.driver.virtual import EventDriver, VirtualDriver, VirtualLoopDriver
from p2pmsg.log import LogConfig
from p2pmsg.peers.network import Network
from p2pmsg.store import Store
from p2pmsg.testing.memory_group import MemoryGroupReceiver, MemoryGroupSender
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.toolkit import Endpoint, Peer
from recovery.log import MemoryStore
from recovery.memory_store import MemoryStoreFile
from transports.memory import (
    MemoryPull,
    MemoryPush,
    MemoryReceiver,
    MemoryRecoveryClient,
    MemoryRecoveryServer,
    MemorySender,
    MemoryServer,
)

WALL_NS = 1_700_000_000 * 10**9
"""What the simulated wall clock shows when the manual clock shows 0."""


_JOBS_MAX: Final = 100_000
_PULLED_FRAMES: Final = 1000
_ODD: Final = re.compile(r"\W+")


class _Closes(Protocol):
    def close(self) -> None: ...


S = TypeVar("S", bound=_Closes)
B = TypeVar("B", bound=MemoryServer)
D = TypeVar("D", bound=EventDriver)


def place_of(endpoint: Endpoint) -> str:
    """Return the memory endpoint that stands for one of another kind."""
    if endpoint.scheme == "memory":
        return str(endpoint)
    return f"memory://{_ODD.sub('-', endpoint.address)}"


class Host(Network):
    """The `Network` of a simulated process, through all its incarnations.

    Endpoints of all kinds are names here, of memory sockets.

    Args:
        network: carries the frames, and has the clock.
        name: of the process; its sockets are named after it.

    Attributes:
        incarnation: how often it died.
        disk: holds the files of its log.
        queue_disks: by directory, hold those of queues' logs.
        opened: the sockets of this incarnation.

    """

    in_memory = True
    group_sender_type, group_receiver_type = MemoryGroupSender, MemoryGroupReceiver

    def __init__(self, network: FaultyNetwork, name: str) -> None:
        clock = network.clock
        self.now_ns = lambda: clock.now_ns
        self.wall_ns = lambda: WALL_NS + clock.now_ns
        self.random = Random(network.rng.getrandbits(64))
        self.incarnation = 0
        self.disk = MemoryStore()
        self.queue_disks: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)
        self.keeps_replies = network.keeps_replies
        self.network = network
        self.name = name
        self.opened: list[_Closes] = []
        self._names: list[str] = []
        self._drivers: list[EventDriver] = []

    def thread_driver(self, peer: Peer) -> VirtualDriver:
        """Do as `Machine.thread_driver`: time passes while it waits."""
        return self.drive(VirtualDriver(peer, self.network, self.network.turns))

    def loop_driver(self, peer: Peer) -> Any:
        """Do as `Machine.loop_driver`: time passes while all tasks wait."""
        return self.drive(VirtualLoopDriver(peer, self.network, self.network.turns))

    async def pause(self, seconds: float, until: "asyncio.Event") -> None:
        """Do as `Machine.pause`, by the network's time."""
        await self.network.turns.wait_for(until.is_set, seconds)

    def at_work(self) -> AbstractContextManager[None]:
        """Do as `Machine.at_work`: no time passes meanwhile."""
        return self.network.turns.at_work()

    def drive(self, driver: D) -> D:
        """Have a driver take a turn whenever something has come; return it."""
        self._drivers.append(driver)
        return driver

    def kill(self) -> list[EventDriver]:
        """End all that is here, as when a process ends; another incarnation opens what is next.

        What was on its way is lost. It returns the drivers of the peers that were here.
        """
        ended, self._drivers = self._drivers, []
        for driver in ended:
            driver.kill()
        for one in self.opened:
            one.close()
        for name in self._names:
            self.network.receivers.pop(name, None)
        self.opened.clear()
        self._names.clear()
        for disk in (self.disk, *self.queue_disks.values()):
            disk.kill()
        self.incarnation += 1
        return ended

    def log_store(self, config: LogConfig) -> MemoryStore:
        """Do as `Network.log_store`."""
        return self.disk

    def queue_store(self, directory: "str | PathLike[str]") -> MemoryStore:
        """Do as `Network.queue_store`."""
        return self.queue_disks[str(directory)]

    def open_store(self, path: "str | Path", tables: str) -> Store:
        """Do as `Network.open_store`: one of that name is there for all hosts."""
        stores = self.network.stores
        return stores.setdefault(str(path), MemoryStoreFile(str(path))).open(tables)

    def sender(
        self, endpoint: Endpoint, *, queue_frames: int, welcome: bytes = b"", **_: Any
    ) -> MemorySender:
        """Do as `Network.sender`."""
        place = self._bound(endpoint)
        return self._bind(MemorySender, place, queue_frames=queue_frames, welcome=welcome)

    def recovery_server(
        self, endpoint: Endpoint, *, queue_frames: int, **_: Any
    ) -> MemoryRecoveryServer:
        """Do as `Network.recovery_server`; each incarnation has another place, as by port 0."""
        place = f"{self._bound(endpoint)}.{self.incarnation}"
        return self._bind(MemoryRecoveryServer, place, queue_frames=queue_frames)

    def receiver(self, endpoint: Endpoint, *, queue_frames: int, **_: Any) -> MemoryReceiver:
        """Do as `Network.receiver`."""
        return self._connect(MemoryReceiver, endpoint, queue_frames=queue_frames)

    def recovery_client(
        self, endpoint: Endpoint, *, queue_frames: int, **_: Any
    ) -> MemoryRecoveryClient:
        """Do as `Network.recovery_client`."""
        return self._connect(MemoryRecoveryClient, endpoint, queue_frames=queue_frames)

    def queue_server(self, endpoint: Endpoint, **_: Any) -> MemoryRecoveryServer:
        """Do as `Network.queue_server`."""
        return self._bind(MemoryRecoveryServer, self._bound(endpoint), queue_frames=_JOBS_MAX)

    def queue_client(self, endpoint: Endpoint, **_: Any) -> MemoryRecoveryClient:
        """Do as `Network.queue_client`."""
        client = MemoryRecoveryClient
        return self._connect(client, endpoint, queue_frames=_JOBS_MAX, keeps_all=True)

    def push_socket(self, endpoint: Endpoint, **_: Any) -> MemoryPush:
        """Do as `Network.push_socket`."""
        return self._bind(MemoryPush, self._bound(endpoint), queue_frames=_JOBS_MAX)

    def pull_socket(self, endpoint: Endpoint, **_: Any) -> MemoryPull:
        """Do as `Network.pull_socket`."""
        return self._connect(MemoryPull, endpoint, queue_frames=_PULLED_FRAMES)

    def group_sender(self, endpoint: Endpoint) -> MemoryGroupSender:
        """Do as `Network.group_sender`."""
        made = self.group_sender_type(self.network, self._bound(endpoint), 1 + self.incarnation)
        return self._kept(made, made.answers)

    def group_receiver(
        self, endpoint: Endpoint, *, buffer_bytes: int = 16 * 2**20
    ) -> MemoryGroupReceiver:
        """Do as `Network.group_receiver`."""
        made = self.group_receiver_type(
            self.network, place_of(endpoint), self._next_name(), buffer_bytes=buffer_bytes
        )
        return self._kept(made, *made.names)

    def _bind(self, kind: Callable[..., B], place: str, **options: Any) -> B:
        made = kind(place, network=self.network.sockets, **options)
        return self._kept(made, made.endpoint)

    def _connect(self, kind: Callable[..., S], endpoint: Endpoint, **options: Any) -> S:
        name, sockets = self._next_name(), self.network.sockets
        return self._kept(kind(place_of(endpoint), network=sockets, name=name, **options), name)

    def _bound(self, endpoint: Endpoint) -> str:
        """Return the place of what is bound on this host; one for each port 0."""
        if endpoint.scheme == "memory":
            return str(endpoint)
        if endpoint.has_port and not endpoint.port:
            return f"memory://{self.name}/{endpoint.scheme}-{len(self.opened)}"
        place = place_of(endpoint)
        self.network.owners[place] = self.name
        return place

    def _next_name(self) -> str:
        return f"{self.name}/{self.incarnation}/{len(self.opened)}"

    def _kept(self, made: S, *names: str) -> S:
        self.opened.append(made)
        for name in names:
            self.network.receivers[name] = self._on_input
            self._names.append(name)
        return made

    def _on_input(self) -> None:
        for driver in self._drivers:
            driver.arrived()
