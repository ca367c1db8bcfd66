"""Both channels in memory, for a simulation in one thread; without a clock and without chance.

The sockets of `transports.memory_pubsub` and `transports.memory_recovery` meet in a
`MemoryNetwork`, as those of ZeroMQ do in a context. Each frame passes through the network's
`deliver` hook, as a transfer on a `Link`; the hook calls `link.arrive(frame)` now, later, twice, in
another order, or `link.lose()` instead. Without a hook, frames arrive at once.

It behaves as the ZeroMQ sockets do, so far as the protocols above can tell:

- A frame is taken while its link has room: frames in flight, and those that wait to be received,
  count. A frame that arrives beyond the room (a duplicate) is dropped and counted.
- Who connects before somebody has bound waits for it, and comes back when it is bound anew.
- Each new connection gets the welcome first. Frames on a link that was cut never arrive.
- Subscriptions take effect at once, which ZeroMQ's do not; delay `connect()` to delay them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Literal

from transports.endpoint import Endpoint, as_endpoint
from transports.errors import AddressInUseError, ClosedError, EndpointError

QUEUE_FRAMES: Final = 1000
"""As with the ZeroMQ sockets."""


class Link:
    """One direction of one connection.

    Attributes:
        kind: which channel and direction.
        source: the name of the socket that sends.
        target: the name of the socket that receives.
        connected: False for good once the connection is cut; another connection has other links.
        in_flight: how many frames were sent and neither arrived nor were lost yet.
        waiting: how many frames arrived and were not received yet.
        overflowed: how many frames arrived where there was no room.

    """

    __slots__ = (
        "_arrived",
        "_room_frames",
        "connected",
        "in_flight",
        "kind",
        "overflowed",
        "source",
        "target",
        "waiting",
    )

    def __init__(
        self,
        kind: Literal["data", "request", "reply"],
        source: str,
        target: str,
        room_frames: int,
        arrived: "Callable[[Link, bytes], bool]",
    ) -> None:
        self.kind = kind
        self.source = source
        self.target = target
        self.connected = True
        self.in_flight = 0
        self.waiting = 0
        self.overflowed = 0
        self._room_frames = room_frames
        self._arrived = arrived

    @property
    def is_full(self) -> bool:
        """Whether the next frame has no room."""
        return self.in_flight + self.waiting >= self._room_frames

    def arrive(self, frame: bytes) -> None:
        """Let a frame arrive; on a link that was cut, nothing happens."""
        self.lose()
        if not self.connected:
            return
        if self.is_full:
            self.overflowed += 1
        elif self._arrived(self, frame):
            self.waiting += 1

    def lose(self) -> None:
        """Note that a frame will not arrive, which makes room for another."""
        # Not below zero: a duplicate arrives more often than it was sent.
        self.in_flight = max(0, self.in_flight - 1)


Deliver = Callable[[Link, bytes], None]
"""What takes each transfer of a `MemoryNetwork`."""


class MemoryNetwork:
    """The place where memory endpoints are bound and found."""

    def __init__(self, deliver: Deliver = Link.arrive) -> None:
        """Make an empty network.

        Args:
            deliver: takes each transfer. Default: it arrives at once.

        """
        self._deliver = deliver
        self._bound: dict[tuple[str, str], MemorySocket] = {}
        self._connecting: dict[tuple[str, str], list[MemoryClient]] = {}
        self._named = 0

    def next_name(self) -> str:
        """Return a name for a socket that was given none."""
        self._named += 1
        return f"peer-{self._named}"

    def transfer(self, link: Link, frame: bytes) -> None:
        """Send `frame` on `link`, which has room for it."""
        link.in_flight += 1
        self._deliver(link, frame)

    def bind(self, server: "MemorySocket") -> None:
        """Enter `server`, and join it with those that wait for it; or `AddressInUseError`."""
        if server.key in self._bound:
            raise AddressInUseError(server.endpoint, "it is bound in this network")
        self._bound[server.key] = server
        for client in list(self._connecting.get(server.key, ())):
            client.join(server)

    def unbind(self, server: "MemorySocket") -> None:
        """Remove `server`, and cut its connections; the other ends wait for another."""
        del self._bound[server.key]
        for client in self._connecting.get(server.key, ()):
            client.cut()

    def connect(self, client: "MemoryClient") -> None:
        """Join `client` with who is bound at its endpoint, now or once somebody is."""
        clients = self._connecting.setdefault(client.key, [])
        if client in clients:
            return
        clients.append(client)
        if (server := self._bound.get(client.key)) is not None:
            client.join(server)

    def disconnect(self, client: "MemoryClient") -> None:
        """Cut the connection of `client`, which no longer waits either."""
        clients = self._connecting.get(client.key, [])
        if client in clients:
            clients.remove(client)
            client.cut()


class MemorySocket:
    """What the four sockets have in common.

    Attributes:
        endpoint: where it is bound, or connects to, as text.
        key: the channel and the endpoint; the two channels do not see each other.
        closed: whether it was closed.

    """

    channel = ""

    def __init__(self, endpoint: str | Endpoint, network: MemoryNetwork, queue_frames: int) -> None:
        parsed = as_endpoint(endpoint)
        if parsed.scheme != "memory":
            reason = f"scheme {parsed.scheme!r} is not 'memory'"
            raise EndpointError(str(parsed), "scheme", reason)
        if queue_frames < 1:
            raise ValueError(f"queue_frames is at least 1, not {queue_frames}")
        self._network = network
        self.queue_frames = queue_frames
        self.endpoint = str(parsed)
        self.key = (self.channel, self.endpoint)
        self.closed = False

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError(self.endpoint)


class MemoryServer(MemorySocket):
    """A socket that is bound."""

    def close(self, linger_ms: int = 0) -> None:
        """Unbind; the other ends wait for the endpoint to be bound again."""
        if not self.closed:
            self.closed = True
            self._network.unbind(self)


class MemoryClient(MemorySocket, ABC):
    """A socket that connects.

    Attributes:
        name: what its links are called.

    """

    def __init__(
        self, endpoint: str | Endpoint, network: MemoryNetwork, queue_frames: int, name: str
    ) -> None:
        super().__init__(endpoint, network, queue_frames)
        self.name = name or network.next_name()

    def connect(self) -> None:
        """Connect, or wait for the endpoint to be bound."""
        self._require_open()
        self._network.connect(self)

    def disconnect(self) -> None:
        """Cut the connection, until `connect()`; frames in flight are lost, both ways."""
        self._network.disconnect(self)

    def reconnect(self) -> None:
        """Cut the connection, and make another."""
        self.disconnect()
        self.connect()

    def close(self) -> None:
        """Disconnect; what is queued is lost."""
        if not self.closed:
            self.disconnect()
            self.closed = True

    @abstractmethod
    def join(self, server: Any) -> None:
        """Take up a connection; called by the network."""

    @abstractmethod
    def cut(self) -> None:
        """Give up the connection, if there is one; called by the network."""
