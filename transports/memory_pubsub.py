"""The data channel in memory."""

from collections import Counter, deque
from typing import Final

from transports.endpoint import Endpoint
from transports.memory import QUEUE_FRAMES, Link, MemoryClient, MemoryNetwork, MemoryServer

SUBSCRIPTIONS_MAX: Final = 1000
"""How many unread notes on subscriptions a sender keeps; the oldest go first."""


class MemorySender(MemoryServer):
    """The publisher's end of the data channel; see `transports.base.DataSender`."""

    channel = "data"

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        network: MemoryNetwork,
        queue_frames: int = QUEUE_FRAMES,
        welcome: bytes = b"",
    ) -> None:
        """Bind; `AddressInUseError` if somebody is bound there.

        Args:
            endpoint: a memory endpoint.
            network: where it is bound and found.
            queue_frames: the bound of each receiver's link, in frames; the receiver's own bound
                counts too, the lower one. Default 1000.
            welcome: what every connection gets first. Default: nothing.

        """
        super().__init__(endpoint, network, queue_frames)
        self._welcome = welcome
        self._receivers: dict[Link, MemoryReceiver] = {}
        self._prefixes: Counter[bytes] = Counter()
        self._notes: deque[bytes] = deque(maxlen=SUBSCRIPTIONS_MAX)
        network.bind(self)

    def send(self, frame: bytes | memoryview, *, wait_ms: int = 0) -> bool:
        """Send to all who match, or to nobody and return False; it never waits."""
        frame = bytes(frame)
        links = self._links_for(frame)
        if any(link.is_full for link in links):
            return False
        self._send(links, frame)
        return True

    def send_now(self, frame: bytes | memoryview) -> bool:
        """Do as `send(frame)` does."""
        return self.send(frame)

    def send_shedding(self, frame: bytes | memoryview) -> None:
        """Send to those who match and have room."""
        frame = bytes(frame)
        self._send([link for link in self._links_for(frame) if not link.is_full], frame)

    def receive_subscriptions(self) -> list[bytes]:
        """Return what came in about subscriptions since the last call, oldest first."""
        self._require_open()
        notes = list(self._notes)
        self._notes.clear()
        return notes

    def _links_for(self, frame: bytes) -> list[Link]:
        self._require_open()
        return [link for link, receiver in self._receivers.items() if receiver._wants(frame)]

    def _send(self, links: list[Link], frame: bytes) -> None:
        for link in links:
            self._network.transfer(link, frame)

    def _attach(self, receiver: "MemoryReceiver") -> Link:
        room_frames = min(self.queue_frames, receiver.queue_frames)
        link = Link("data", self.endpoint, receiver.name, room_frames, receiver._arrived)
        self._receivers[link] = receiver
        for prefix in receiver._prefixes:
            self._note(prefix, 1)
        return link

    def _greet(self, link: Link) -> None:
        if self._welcome:
            self._network.transfer(link, self._welcome)

    def _detach(self, link: Link) -> None:
        receiver = self._receivers.pop(link)
        for prefix in receiver._prefixes:
            self._note(prefix, -1)

    def _note(self, prefix: bytes, change: int) -> None:
        before = self._prefixes[prefix]
        self._prefixes[prefix] += change
        if before == 0:
            self._notes.append(b"\x01" + prefix)
        elif before + change == 0:
            del self._prefixes[prefix]
            self._notes.append(b"\x00" + prefix)


class MemoryReceiver(MemoryClient):
    """A subscriber's end of the data channel; see `transports.base.DataReceiver`."""

    channel = "data"

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
            queue_frames: the bound of its link, in frames. Default 1000.
            name: what its link is called. Default: "peer-1", "peer-2", ...

        """
        super().__init__(endpoint, network, queue_frames, name)
        self._prefixes: Counter[bytes] = Counter()
        self._prefix_tuple: tuple[bytes, ...] | None = None
        self._queue: deque[tuple[Link, bytes]] = deque()
        self._link: Link | None = None
        self._sender: MemorySender | None = None

    def subscribe(self, prefix: bytes) -> None:
        """Receive frames that begin with `prefix`."""
        self._require_open()
        self._prefixes[prefix] += 1
        self._prefix_tuple = None
        if self._prefixes[prefix] == 1 and self._sender is not None:
            self._sender._note(prefix, 1)

    def unsubscribe(self, prefix: bytes) -> None:
        """Undo one `subscribe(prefix)`; without one, nothing happens."""
        self._require_open()
        self._prefix_tuple = None
        if self._prefixes[prefix] > 1:
            self._prefixes[prefix] -= 1
        elif self._prefixes.pop(prefix, 0) and self._sender is not None:
            self._sender._note(prefix, -1)

    def receive(self) -> bytes | None:
        """Return the next frame, or None."""
        self._require_open()
        if not self._queue:
            return None
        link, frame = self._queue.popleft()
        link.waiting -= 1
        return frame

    def receive_wait(self, timeout_ms: int) -> bytes | None:
        """Do as `receive` does: in one thread nothing can come while it waits."""
        return self.receive()

    def _wants(self, frame: bytes) -> bool:
        if self._prefix_tuple is None:
            self._prefix_tuple = tuple(self._prefixes)
        return frame.startswith(self._prefix_tuple)

    def _arrived(self, link: Link, frame: bytes) -> bool:
        # Once more, as SUB does: a welcome is not filtered before, and subscriptions change.
        if not self._wants(frame):
            return False
        if len(self._queue) >= self.queue_frames:
            # Frames of earlier connections are still there.
            link.overflowed += 1
            return False
        self._queue.append((link, frame))
        return True

    def join(self, sender: MemorySender) -> None:
        """Take up a connection; called by the network."""
        self._sender = sender
        self._link = sender._attach(self)
        sender._greet(self._link)

    def cut(self) -> None:
        """Give up the connection, if there is one; called by the network."""
        if self._link is not None and self._sender is not None:
            self._link.connected = False
            self._sender._detach(self._link)
            self._link = self._sender = None
