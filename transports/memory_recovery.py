"""The recovery channel in memory."""

from collections import deque

from transports.endpoint import Endpoint
from transports.errors import PeerUnreachableError
from transports.memory import QUEUE_FRAMES, Link, MemoryClient, MemoryNetwork, MemoryServer


class MemoryRecoveryServer(MemoryServer):
    """The publisher's end of the recovery channel; see `transports.base.RecoveryServer`."""

    channel = "recovery"

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        network: MemoryNetwork,
        queue_frames: int = QUEUE_FRAMES,
    ) -> None:
        """Bind; `AddressInUseError` if somebody is bound there.

        Args:
            endpoint: a memory endpoint.
            network: where it is bound and found.
            queue_frames: the bound of each requester's links, each way, in frames; the requester's
                own bound counts too, the lower one. Default 1000.

        """
        super().__init__(endpoint, network, queue_frames)
        self._replies: dict[bytes, Link] = {}
        self._requesters: dict[Link, bytes] = {}
        self._queue: deque[tuple[Link, bytes]] = deque()
        self._connections = 0
        network.bind(self)

    def receive(self) -> tuple[bytes, bytes] | None:
        """Return the next request as (requester, frame), or None."""
        self._require_open()
        if not self._queue:
            return None
        link, frame = self._queue.popleft()
        link.waiting -= 1
        return self._requesters[link], frame

    def reply(self, requester: bytes, frame: bytes | memoryview) -> bool:
        """Send to one requester; False: its link is full. `PeerUnreachableError`: it is gone."""
        self._require_open()
        link = self._replies.get(requester)
        if link is None:
            raise PeerUnreachableError(self.endpoint, requester)
        if link.is_full:
            return False
        self._network.transfer(link, bytes(frame))
        return True

    def _attach(self, client: "MemoryRecoveryClient") -> tuple[Link, Link]:
        self._connections += 1
        requester = b"\x00" + self._connections.to_bytes(4, "big")
        room_frames = min(self.queue_frames, client.queue_frames)
        request = Link("request", client.name, self.endpoint, room_frames, self._arrived)
        reply = Link("reply", self.endpoint, client.name, room_frames, client._arrived)
        self._requesters[request] = requester
        self._replies[requester] = reply
        return request, reply

    def _detach(self, request: Link) -> None:
        del self._replies[self._requesters.pop(request)]
        self._queue = deque(waiting for waiting in self._queue if waiting[0] is not request)

    def _arrived(self, link: Link, frame: bytes) -> bool:
        self._queue.append((link, frame))
        return True


class MemoryRecoveryClient(MemoryClient):
    """A subscriber's end of the recovery channel; see `transports.base.RecoveryClient`."""

    channel = "recovery"

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        network: MemoryNetwork,
        queue_frames: int = QUEUE_FRAMES,
        name: str = "",
    ) -> None:
        """Make it, unconnected.

        Args:
            endpoint: a memory endpoint.
            network: where it is bound and found.
            queue_frames: the bound of its links, each way, and of the requests that wait for a
                connection, in frames. Default 1000.
            name: what its links are called. Default: "peer-1", "peer-2", ...

        """
        super().__init__(endpoint, network, queue_frames, name)
        self._unsent: deque[bytes] = deque()
        self._queue: deque[tuple[Link, bytes]] = deque()
        self._links: tuple[Link, Link] | None = None
        self._server: MemoryRecoveryServer | None = None

    def send(self, frame: bytes) -> bool:
        """Send one request; unconnected, it waits in a queue. False: the queue is full."""
        self._require_open()
        if self._links is None:
            if len(self._unsent) >= self.queue_frames:
                return False
            self._unsent.append(frame)
            return True
        request, _ = self._links
        if request.is_full:
            return False
        self._network.transfer(request, frame)
        return True

    def receive(self) -> bytes | None:
        """Return the next reply, or None."""
        self._require_open()
        if not self._queue:
            return None
        link, frame = self._queue.popleft()
        link.waiting -= 1
        return frame

    def _arrived(self, link: Link, frame: bytes) -> bool:
        if len(self._queue) >= self.queue_frames:
            # Replies of earlier connections are still there.
            link.overflowed += 1
            return False
        self._queue.append((link, frame))
        return True

    def join(self, server: MemoryRecoveryServer) -> None:
        """Take up a connection; called by the network."""
        self._server = server
        self._links = server._attach(self)
        while self._unsent and not self._links[0].is_full:
            self._network.transfer(self._links[0], self._unsent.popleft())
        # The server's bound may be lower than this one; what it has no room for is lost.
        self._unsent.clear()

    def cut(self) -> None:
        """Give up the connection, if there is one; called by the network."""
        if self._links is not None and self._server is not None:
            for link in self._links:
                link.connected = False
            self._server._detach(self._links[0])
            self._links = self._server = None
