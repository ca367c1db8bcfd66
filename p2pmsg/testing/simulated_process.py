"""What simulated publishers, relays and subscribers have in common: a peer that lives and dies."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from p2pmsg.driver.peer import Peer
from p2pmsg.driver.virtual import EventDriver, VirtualDriver
from p2pmsg.testing.host import Host
from p2pmsg.testing.network import FaultyNetwork
from p2pmsg.testing.oracle import History

P = TypeVar("P", bound=Peer)


class SimulatedDriver(VirtualDriver):
    """The virtual driver, for a simulated application: it waits for nothing, and sees each turn.

    Args:
        peer: as `VirtualDriver`.
        network: as `VirtualDriver`.
        on_turn: called after each turn.

    """

    may_wait = False

    def __init__(self, peer: Peer, network: FaultyNetwork, on_turn: Callable[[], object]) -> None:
        super().__init__(peer, network, network.turns)
        self._on_turn = on_turn

    def _take_turn(self) -> None:
        super()._take_turn()
        if not self.stopping:
            self._on_turn()


class SimulatedHost(Host):
    """The host of one peer, whose application sees each of its turns.

    Args:
        network: as `Host`.
        name: as `Host`.
        on_turn: called after each turn.

    Attributes:
        driver: of the peer; None while it is dead.

    """

    driver: SimulatedDriver | None = None

    def __init__(self, network: FaultyNetwork, name: str, on_turn: Callable[[], object]) -> None:
        super().__init__(network, name)
        self._on_turn = on_turn

    def thread_driver(self, peer: Peer) -> SimulatedDriver:
        """Do as `Machine.thread_driver`."""
        self.driver = self.drive(SimulatedDriver(peer, self._network, self._on_turn))
        return self.driver

    def kill(self) -> list[EventDriver]:
        """Do as `Host.kill`."""
        self.driver = None
        return super().kill()


class SimulatedProcess(Generic[P]):
    """A process, through all its incarnations.

    Args:
        name: of the process.
        network: carries the frames.
        history: what was published.

    Attributes:
        name: of the process.
        host: its sockets, clock, chance and disk, and its peer.
        is_gone: whether it ended and will not return.

    """

    def __init__(self, name: str, network: FaultyNetwork, history: History) -> None:
        self.name = name
        self.host = SimulatedHost(network, name, self._on_turn)
        self.is_gone = False
        self._network = network
        self._history = history

    @property
    def peer(self) -> P | None:
        """The real one, or None while it is dead."""
        driver: Any = self.host.driver
        return None if driver is None else driver.peer

    @property
    def crashes(self) -> int:
        """How often it died."""
        return self.host.incarnation

    def leave_for_good(self) -> None:
        """Crash, never to come back."""
        self.crash()
        self.is_gone = True

    def crash(self) -> None:
        """Crash; what was on its way is lost."""
        if self.host.driver is not None:
            self.host.kill()

    def pump(self) -> None:
        """Have a turn taken now."""
        if self.host.driver is not None:
            self.host.driver.arrived()

    def _on_turn(self) -> None:
        """Look at the peer after one of its turns."""
