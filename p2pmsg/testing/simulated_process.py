"""What the simulated publishers and subscribers have in common: a peer that lives and dies."""

from collections.abc import Callable
from typing import Generic, TypeVar

from p2pmsg.driver.peer import Peer
from p2pmsg.driver.virtual import VirtualDriver
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


class SimulatedProcess(Generic[P]):
    """A process, through all its incarnations.

    Args:
        name: of the process.
        network: carries the frames.
        history: what was published.

    Attributes:
        name: of the process.
        host: its sockets, clock, chance and disk.
        peer: the real one, or None while it is dead.
        crashes: how often it died.
        is_gone: whether it ended and will not return.

    """

    peer: P | None
    _driver: SimulatedDriver

    def __init__(self, name: str, network: FaultyNetwork, history: History) -> None:
        self.name = name
        self.host = Host(network, name)
        self.peer = None
        self.is_gone = False
        self._network = network
        self._history = history

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
        if self.peer is not None:
            self.peer = None
            self.host.kill()

    def pump(self) -> None:
        """Have a turn taken now."""
        if self.peer is not None:
            self._driver.arrived()

    def _drive(self, peer: P) -> SimulatedDriver:
        """Give a new incarnation's peer its driver, to be started."""
        self.peer = peer
        self._driver = self.host.drive(SimulatedDriver(peer, self._network, self._on_turn))
        return self._driver

    def _on_turn(self) -> None:
        """Look at the peer after one of its turns."""
