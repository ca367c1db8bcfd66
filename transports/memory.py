"""Both channels in memory, for a simulation in one thread; without a clock and without chance.

The sockets meet in a `MemoryNetwork`, as those of ZeroMQ do in a context. Each frame passes through
the network's `deliver` hook, as a transfer on a `Link`; the hook calls `link.arrive(frame)` now,
later, twice, in another order, or `link.lose()` instead. Without a hook, frames arrive at once.

It behaves as the ZeroMQ sockets do, so far as the protocols above can see:

- A frame is taken while its link has space: frames in flight, and those that wait to be received,
  count. A frame that arrives beyond the space (a duplicate) is dropped.
- A client that connects first waits until the endpoint is bound, and again when it is unbound.
- Each new connection gets the welcome first. Frames on a link that was cut never arrive.
- Subscriptions take effect at once, which ZeroMQ's do not; delay `connect()` to delay them.
"""

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

from transports.endpoint import Endpoint, as_endpoint
from transports.errors import AddressError, ClosedError, EndpointError

QUEUE_FRAMES: Final = 1000
"""As with the ZeroMQ sockets."""


@dataclass(slots=True, eq=False)
class Link:
    """One direction of one connection."""

    kind: Literal["data", "request", "reply"]
    """Which channel and direction."""
    source: str
    """The name of the socket that sends."""
    target: str
    """The name of the socket that receives."""
    space_frames: int
    """How many frames may be in flight or wait."""
    arrived: "Callable[[Link, bytes], bool]"
    """Takes a frame at its target; returns whether it waits there."""
    breaks: "MemoryClient | None" = None
    """Whose connection ends with a frame that is lost, as one of TCP does. None: it goes on."""
    connected: bool = True
    """False forever once the connection is cut; another connection has other links."""
    in_flight: int = 0
    """How many frames were sent and neither arrived nor were lost yet."""
    waiting: int = 0
    """How many frames arrived and were not received yet."""

    @property
    def is_full(self) -> bool:
        """Whether the next frame has no space."""
        return self.in_flight + self.waiting >= self.space_frames

    def arrive(self, frame: bytes) -> None:
        """Let a frame arrive; on a link that was cut, nothing happens."""
        self.lose()
        if self.connected and not self.is_full and self.arrived(self, frame):
            self.waiting += 1

    def lose(self) -> None:
        """Note that a frame will not arrive, which makes space for another."""
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
        """Send `frame` on `link`, which has space for it."""
        link.in_flight += 1
        self._deliver(link, frame)

    def bind(self, server: "MemorySocket") -> None:
        """Enter `server`, and join it with those that wait for it; or `AddressError`."""
        if server.key in self._bound:
            raise AddressError(server.endpoint, "it is bound in this network")
        self._bound[server.key] = server
        for client in list(self._connecting.get(server.key, ())):
            client.returned(server)

    def unbind(self, server: "MemorySocket") -> None:
        """Remove `server`, and cut its connections; the other ends wait for another."""
        del self._bound[server.key]
        for client in self._connecting.get(server.key, ()):
            client.cut()

    def connect(self, client: "MemoryClient") -> None:
        """Join `client` with the server at its endpoint, now or once there is one."""
        clients = self._connecting.setdefault(client.key, [])
        if client in clients:
            return
        clients.append(client)
        if (server := self._bound.get(client.key)) is not None:
            client.returned(server)

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
        queue_frames: the bound of its links, in frames; the other end's bound counts too.
        closed: whether it was closed.

    """

    channel = ""

    def __init__(self, endpoint: str | Endpoint, network: MemoryNetwork, queue_frames: int) -> None:
        parsed = as_endpoint(endpoint)
        if parsed.scheme != "memory":
            reason = f"scheme {parsed.scheme!r} is not 'memory'"
            raise EndpointError(str(parsed), "scheme", reason)
        self._network = network
        self.queue_frames = queue_frames
        self.endpoint = str(parsed)
        self.key = (self.channel, self.endpoint)
        self.closed = False
        self._queue: deque[tuple[Link, bytes]] = deque()

    def fileno(self) -> int:
        """Return -1: it has no descriptor, and its network says when something has come."""
        return -1

    def has_message(self) -> bool:
        """Whether something has come and was not taken."""
        return bool(self._queue)

    def _require_open(self) -> None:
        if self.closed:
            raise ClosedError(self.endpoint)

    def _take(self) -> tuple[Link, bytes] | None:
        """Take out what arrived first, or None."""
        self._require_open()
        if not self._queue:
            return None
        link, frame = self._queue.popleft()
        link.waiting -= 1
        return link, frame


class MemoryConnections:
    """The connections of a socket that is bound; they come and go at once."""

    fd: Final = -1
    revoked: Final = 0

    def __init__(self, links: Collection[Any]) -> None:
        self._links = links

    def __len__(self) -> int:
        return len(self._links)

    def update(self) -> None:
        """Do nothing: it is known."""

    def update_soon(self) -> None:
        """Do nothing: it is known."""

    def end_user(self, user: str) -> None:
        """Do nothing: connections have no keys."""


class MemoryServer(MemorySocket):
    """A socket that is bound."""

    refused_by_key: Final = 0

    def close(self, linger_ms: int = 0) -> None:
        """Unbind; the other ends wait for the endpoint to be bound again."""
        if not self.closed:
            self.closed = True
            self._network.unbind(self)


class MemoryClient(MemorySocket, ABC):
    """A socket that connects.

    Args:
        endpoint: a memory endpoint.
        network: where it is found.
        queue_frames: the bound of its links, each way, in frames. Default 1000.
        name: what its links are called. Default: "peer-1", "peer-2", ...

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        network: MemoryNetwork,
        queue_frames: int = QUEUE_FRAMES,
        name: str = "",
    ) -> None:
        super().__init__(endpoint, network, queue_frames)
        self.name = name or network.next_name()
        self.refusal, self.curve = "", None
        self._joins, self._joins_seen = 0, 1
        self._server: Any = None
        self._links: tuple[Link, ...] = ()

    def connect(self) -> None:
        """Connect, or wait for the endpoint to be bound."""
        self._require_open()
        self._network.connect(self)

    def disconnect(self) -> None:
        """Cut the connection, until `connect()`; frames in flight are lost, both ways."""
        self._network.disconnect(self)

    def reconnect(self, *, follow: bool = False) -> None:
        """Cut the connection, and make another."""
        self.disconnect()
        self.connect()

    @property
    def is_receiving(self) -> bool:
        """Whether a frame is on its way to it, over the connection that it has now."""
        return any(link.in_flight for link in self._links if link.kind != "request")

    def last_byte_ns(self, now_ns: int) -> int | None:
        """Return `now_ns` while a frame is on its way to it, as if it came byte by byte."""
        return now_ns if self.is_receiving else None

    def retry(self) -> None:
        """Do nothing: connections have no keys."""

    def is_sending(self) -> bool:
        """Whether a frame that was sent has not arrived yet."""
        return any(link.in_flight for link in self._links if link.kind == "request")

    def was_ended_here(self) -> bool:
        """Return False: nothing ends a connection here but who calls `disconnect`."""
        return False

    def check(self) -> bool:
        """Return False: connections have no keys."""
        return False

    def has_returned(self) -> bool:
        """Whether it was connected again since the last call, not the first time."""
        before, self._joins_seen = self._joins_seen, max(1, self._joins)
        return self._joins > before

    def receive(self) -> bytes | None:
        """Return the next frame, or None."""
        if not self._queue and not self.closed:  # mostly so
            return None
        taken = self._take()
        return None if taken is None else taken[1]

    def close(self, linger_ms: int = 0) -> None:
        """Disconnect; what is queued is lost."""
        if not self.closed:
            self.disconnect()
            self.closed = True

    def returned(self, server: Any) -> None:
        """Take up a connection, and count it; called by the network."""
        self._joins += 1
        self.join(server)

    @abstractmethod
    def join(self, server: Any) -> None:
        """Take up a connection; called by the network."""

    def cut(self) -> None:
        """Give up the connection, if there is one; called by the network."""
        if self._links:
            for link in self._links:
                link.connected = False
            self._server._detach(self._links[0])
            self._links, self._server = (), None

    def _arrived(self, link: Link, frame: bytes) -> bool:
        if len(self._queue) >= self.queue_frames:
            return False  # frames of earlier connections are still there
        self._queue.append((link, frame))
        return True


class MemorySender(MemoryServer):
    """The publisher's end of the data channel; see `transports.base.DataSender`."""

    channel = "data"
    has_more: Final = False

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        network: MemoryNetwork,
        queue_frames: int = QUEUE_FRAMES,
        welcome: bytes = b"",
    ) -> None:
        """Bind; `AddressError` if another sender is bound there.

        Args:
            endpoint: a memory endpoint.
            network: where it is bound and found.
            queue_frames: the bound of each receiver's link, in frames. Default 1000.
            welcome: what every connection gets first. Default: nothing.

        """
        super().__init__(endpoint, network, queue_frames)
        self._welcome = welcome
        self._receivers: dict[Link, MemoryReceiver] = {}
        self.connections = MemoryConnections(self._receivers)
        network.bind(self)

    def send(self, frame: bytes | memoryview) -> bool:
        """Send to all who match, or to nobody and return False; it never waits."""
        frame = bytes(frame)
        links = self._links_for(frame)
        if any(link.is_full for link in links):
            return False
        self._send(links, frame)
        return True

    def send_shedding(self, frame: bytes | memoryview) -> None:
        """Send to those who match and have space."""
        frame = bytes(frame)
        self._send([link for link in self._links_for(frame) if not link.is_full], frame)

    def take_subscriptions(self) -> int:
        """Return 0: they take effect at once."""
        self._require_open()
        return 0

    def _links_for(self, frame: bytes) -> list[Link]:
        self._require_open()
        return [link for link, receiver in self._receivers.items() if receiver._wants(frame)]

    def _send(self, links: list[Link], frame: bytes) -> None:
        for link in links:
            self._network.transfer(link, frame)

    def _attach(self, receiver: "MemoryReceiver") -> Link:
        space_frames = min(self.queue_frames, receiver.queue_frames)
        link = Link("data", self.endpoint, receiver.name, space_frames, receiver._arrived)
        self._receivers[link] = receiver
        return link

    def _greet(self, link: Link) -> None:
        if self._welcome:
            self._network.transfer(link, self._welcome)

    def _detach(self, link: Link) -> None:
        del self._receivers[link]


class MemoryReceiver(MemoryClient):
    """A subscriber's end of the data channel."""

    channel = "data"

    def __init__(self, endpoint: str | Endpoint, **options: Any) -> None:
        super().__init__(endpoint, **options)
        self._prefixes: Counter[bytes] = Counter()
        self._prefix_tuple: tuple[bytes, ...] | None = None

    def subscribe(self, prefix: bytes) -> None:
        """Receive frames that begin with `prefix`."""
        self._require_open()
        self._prefixes[prefix] += 1
        self._prefix_tuple = None

    def unsubscribe(self, prefix: bytes) -> None:
        """Undo one `subscribe(prefix)`; without one, nothing happens."""
        self._require_open()
        self._prefix_tuple = None
        self._prefixes = +(self._prefixes - Counter([prefix]))

    @property
    def waiting(self) -> int:
        """How many frames have come and were not taken yet."""
        return len(self._queue)

    def receive_awake(self) -> bytes | None:
        """Do as `receive` does: in one thread nothing can come while it looks."""
        return self.receive()

    def on_waited(self) -> None:
        """Do nothing."""

    def _wants(self, frame: bytes) -> bool:
        if self._prefix_tuple is None:
            self._prefix_tuple = tuple(self._prefixes)
        return frame.startswith(self._prefix_tuple)

    def _arrived(self, link: Link, frame: bytes) -> bool:
        # Once more, as SUB does: a welcome is not filtered before, and subscriptions change.
        return self._wants(frame) and super()._arrived(link, frame)

    def join(self, server: MemorySender) -> None:
        """Take up a connection; called by the network."""
        self._server = server
        link = server._attach(self)
        self._links = (link,)
        server._greet(link)


class MemoryRecoveryServer(MemoryServer):
    """The publisher's end of the recovery channel."""

    channel = "recovery"
    malformed: Final = 0
    user: Final = ""

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        network: MemoryNetwork,
        queue_frames: int = QUEUE_FRAMES,
    ) -> None:
        """Bind; `AddressError` if another server is bound there.

        Args:
            endpoint: a memory endpoint.
            network: where it is bound and found.
            queue_frames: the bound of each requester's links, each way, in frames. Default 1000.

        """
        super().__init__(endpoint, network, queue_frames)
        self._replies: dict[bytes, Link] = {}
        self._requesters: dict[Link, bytes] = {}
        self.connections = MemoryConnections(self._requesters)
        self._joined = self._broken = self._broken_seen = 0
        network.bind(self)

    def receive_some(self, count_max: int) -> list[tuple[bytes, bytes]]:
        """Return requests that are there as (requester, frame), oldest first."""
        found: list[tuple[bytes, bytes]] = []
        if not self._queue and not self.closed:  # mostly so
            return found
        while len(found) < count_max and (taken := self._take()) is not None:
            link, frame = taken
            found.append((self._requesters[link], frame))
        return found

    @property
    def bound_to(self) -> Endpoint:
        """Where it is bound."""
        return as_endpoint(self.endpoint)

    def broke(self) -> bool:
        """Whether a connection broke since the last call."""
        before, self._broken_seen = self._broken_seen, self._broken
        return before != self._broken

    def resync(self) -> None:
        """Do nothing: a request comes whole, and a reply goes so."""

    def end_last(self) -> None:
        """Do nothing: connections have no keys."""

    def reply(self, requester: bytes, frame: bytes | memoryview) -> bool | None:
        """Send to one requester; False: its link is full. None: it is gone."""
        self._require_open()
        link = self._replies.get(requester)
        if link is None or not link.connected:
            return None
        if link.is_full:
            return False
        self._network.transfer(link, bytes(frame))
        return True

    def _attach(self, client: "MemoryRecoveryClient") -> tuple[Link, Link]:
        self._joined += 1
        requester = b"\x00" + self._joined.to_bytes(4, "big")
        space_frames = min(self.queue_frames, client.queue_frames)
        breaks = client if client.keeps_all else None
        request = Link("request", client.name, self.endpoint, space_frames, self._arrived, breaks)
        reply = Link("reply", self.endpoint, client.name, space_frames, client._arrived, breaks)
        self._requesters[request] = requester
        self._replies[requester] = reply
        return request, reply

    def _detach(self, request: Link) -> None:
        self._broken += 1
        del self._replies[self._requesters.pop(request)]
        self._queue = deque(waiting for waiting in self._queue if waiting[0] is not request)

    def _arrived(self, link: Link, frame: bytes) -> bool:
        self._queue.append((link, frame))
        return True


class MemoryRecoveryClient(MemoryClient):
    """A subscriber's end of the recovery channel.

    With `keeps_all` each frame arrives, once and in order, or the connection ends, as over TCP: so
    it is for jobs and requests.
    """

    channel = "recovery"

    def __init__(
        self, endpoint: str | Endpoint, *, keeps_all: bool = False, **options: Any
    ) -> None:
        super().__init__(endpoint, **options)
        self.keeps_all = keeps_all
        self.malformed = 0
        self._unsent: deque[bytes] = deque()

    def send(self, frame: bytes) -> bool:
        """Send one request; unconnected, it waits in a queue. False: the queue is full."""
        self._require_open()
        if not self._links:
            if len(self._unsent) >= self.queue_frames:
                return False
            self._unsent.append(frame)
            return True
        request = self._links[0]
        if request.is_full:
            return False
        self._network.transfer(request, frame)
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Disconnect; with `linger_ms`, requests that are on their way arrive all the same."""
        if linger_ms and not self.closed and self._links and self._links[0].in_flight:
            self._links[1].connected = False
            self._links, self._server = (), None
        super().close()

    def join(self, server: MemoryRecoveryServer) -> None:
        """Take up a connection; called by the network."""
        self._server = server
        self._links = server._attach(self)
        while self._unsent and self._links and not self._links[0].is_full:
            self._network.transfer(self._links[0], self._unsent.popleft())
        # The server's bound may be lower than this one; what it has no space for is lost.
        self._unsent.clear()


class MemoryPush(MemoryServer):
    """A pusher's end of a queue by the batch; see `transports.base.PushSocket`."""

    channel = "push"

    def __init__(
        self, endpoint: str | Endpoint, *, network: MemoryNetwork, queue_frames: int
    ) -> None:
        super().__init__(endpoint, network, queue_frames)
        self._pullers: list[Link] = []
        network.bind(self)

    def wait_for_space(self, timeout_ms: int) -> bool:
        """Return whether something can be sent: in one thread nothing changes while it waits."""
        return any(not link.is_full for link in self._pullers)

    def send(self, parts: list[bytes]) -> bool:
        """Send a message of one part to whom there is space for; False: there is nobody."""
        self._require_open()
        for link in self._pullers:
            if not link.is_full:
                self._network.transfer(link, b"".join(parts))
                return True
        return False

    def _attach(self, client: "MemoryPull") -> Link:
        space_frames = min(self.queue_frames, client.queue_frames)
        link = Link("data", self.endpoint, client.name, space_frames, client._arrived, client)
        self._pullers.append(link)
        return link

    def _detach(self, link: Link) -> None:
        self._pullers.remove(link)


class MemoryPull(MemoryClient):
    """A puller's end of a queue by the batch; see `transports.base.PullSocket`."""

    channel = "push"

    def open(self) -> None:
        """Connect."""
        self.connect()

    @property
    def connections(self) -> int:
        """How many connections it has made, one after the other."""
        return self._joins

    def receive_singles(self, count_max: int) -> tuple[list[bytes | list[bytes]], int, bool]:
        """Return messages that have come, their bytes, and whether there may be more."""
        taken: list[bytes | list[bytes]] = []
        size = 0
        while len(taken) < count_max and (frame := self.receive()) is not None:
            taken.append(frame)
            size += len(frame)
        return taken, size, self.has_message()

    def join(self, server: MemoryPush) -> None:
        """Take up a connection; called by the network."""
        self._server = server
        self._links = (server._attach(self),)
