"""What a simulated process has of its machine: memory sockets, a clock moved by hand, a seed."""

from collections.abc import Callable
from random import Random
from typing import Any

import transports
from p2pmsg.peers.network import Network
from p2pmsg.publisher.served import PYTHON_MEMORY
from p2pmsg.testing.network import FaultyNetwork
from transports import MemoryReceiver, MemoryRecoveryClient, MemoryRecoveryServer, MemorySender

WALL_NS = 1_700_000_000 * 10**9
"""What the simulated wall clock shows when the manual clock shows 0."""


class Host(Network):
    """The `Network` of one incarnation of a simulated process.

    Args:
        network: carries the frames, and has the clock.
        name: of the process; its sockets are named after it.
        incarnation: how often it died before.

    """

    frame_memory = PYTHON_MEMORY

    def __init__(self, network: FaultyNetwork, name: str, incarnation: int = 0) -> None:
        clock = network.clock
        self.now_ns = lambda: clock.now_ns
        self.wall_ns = lambda: WALL_NS + clock.now_ns
        self.random = Random(network.rng.getrandbits(64))
        self._network = network
        self._name = f"{name}/{incarnation}"
        self._opened = 0
        self._calls: list[Callable[[], object]] = []

    def on_input(self, call: Callable[[], object]) -> None:
        """Have `call` called whenever something has come to one of its sockets."""
        self._calls.append(call)

    def sender(
        self, endpoint: transports.Endpoint, *, queue_frames: int, welcome: bytes = b"", **_: Any
    ) -> MemorySender:
        """Do as `Network.sender`."""
        return MemorySender(
            endpoint, network=self._network.sockets, queue_frames=queue_frames, welcome=welcome
        )

    def recovery_server(
        self, endpoint: transports.Endpoint, *, queue_frames: int, **_: Any
    ) -> MemoryRecoveryServer:
        """Do as `Network.recovery_server`."""
        made = MemoryRecoveryServer(
            endpoint, network=self._network.sockets, queue_frames=queue_frames
        )
        self._network.receivers[made.endpoint] = self._arrived
        return made

    def receiver(
        self, endpoint: transports.Endpoint, *, queue_frames: int, **_: Any
    ) -> MemoryReceiver:
        """Do as `Network.receiver`."""
        return MemoryReceiver(
            endpoint,
            network=self._network.sockets,
            queue_frames=queue_frames,
            name=self._next_name(),
        )

    def recovery_client(
        self, endpoint: transports.Endpoint, *, queue_frames: int, **_: Any
    ) -> MemoryRecoveryClient:
        """Do as `Network.recovery_client`."""
        return MemoryRecoveryClient(
            endpoint,
            network=self._network.sockets,
            queue_frames=queue_frames,
            name=self._next_name(),
        )

    def _next_name(self) -> str:
        name = f"{self._name}/{self._opened}"
        self._opened += 1
        self._network.receivers[name] = self._arrived
        return name

    def _arrived(self) -> None:
        for call in self._calls:
            call()
