"""What a transport does: frames in, frames out.

Two channels connect a publisher with its subscribers. On the *data* channel frames fan out, chosen
by a prefix. On the *recovery* channel a subscriber asks its publisher for something (a NACK, a
replay) and gets frames that are for it alone. A frame is bytes; nothing here looks inside, except
for the prefix.

No method blocks unless its name or a parameter says so. No class here is thread-safe: one thread at
a time uses an object. `close()` may be called again, and by another thread than the owner's once
that one has stopped. Any other method of an object that is closed raises `ClosedError`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from transports.curve import CurveClient
    from transports.endpoint import Endpoint

RECEIVE_BUFFER_BYTES: Final = 16 * 2**20
"""20 ms of what one Python process can take in; with more, what is read is only older."""


class OpenConnections(Protocol):
    """The connections that a bound socket has."""

    @property
    def fd(self) -> int:
        """What is readable when a connection may have come or ended; -1: nothing is."""

    def __len__(self) -> int:
        """How many there are."""

    def update(self) -> None:
        """Look which have come, and which have ended."""

    def update_soon(self) -> None:
        """Do as `update`, but seldom where it is called often."""

    @property
    def revoked(self) -> int:
        """How many were ended since their keys were revoked."""

    def end_user(self, user: str) -> None:
        """End all connections of a user that have sent something."""


class Socket(Protocol):
    """What all of them have."""

    @property
    def endpoint(self) -> str:
        """Where it is bound, with the port that the system picked; or connects to."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def fileno(self) -> int:
        """Return what becomes readable when something has come; -1: nothing does."""

    def has_message(self) -> bool:
        """Whether something has come and was not taken."""

    def close(self, linger_ms: int = 0) -> None:
        """Close; frames that are still queued get `linger_ms` to leave. Default 0: none."""


class BoundSocket(Socket, Protocol):
    """What the publisher's ends have."""

    @property
    def connections(self) -> OpenConnections:
        """Who is connected."""

    @property
    def refused_by_key(self) -> int:
        """How many connections were refused by their keys."""


class ConnectingSocket(Socket, Protocol):
    """What the subscriber's ends have."""

    @property
    def refusal(self) -> str:
        """Why the last connection was refused by its keys; "" where it was not."""

    @property
    def curve(self) -> "CurveClient | None":
        """Its keys."""

    def connect(self) -> None:
        """Connect, once; a peer that is away is waited for without end."""

    def disconnect(self) -> None:
        """Give up the connection, until `connect`; frames not received yet may be lost."""

    def reconnect(self, *, follow: bool = False) -> None:
        """Give up the connection and make another; `follow`: its bytes are to be followed."""

    def was_ended_here(self) -> bool:
        """Whether the connection was ended since the last call, and is not made again by itself."""

    def last_byte_ns(self, now_ns: int) -> int | None:
        """Return when the last byte came, of a whole frame or not; None where it is not known."""

    def check(self) -> bool:
        """Whether the connection was refused by its keys since the last call."""

    def has_returned(self) -> bool:
        """Whether it was made again since the last call, where that is followed."""


class DataSender(BoundSocket, Protocol):
    """The publisher's end of the data channel."""

    @property
    def has_more(self) -> bool:
        """Whether `take_subscriptions` left some, to be fetched soon."""

    @property
    def send(self) -> Callable[[bytes | memoryview], bool]:
        """Sends a frame to all receivers whose prefix matches, or to none; it never waits.

        It returns whether it was sent. False: the queue of one receiver at least is full.
        """

    def send_shedding(self, frame: bytes | memoryview) -> None:
        """Send to all receivers whose prefix matches and whose queue has space; the others miss it.

        A receiver that missed a frame may miss the following ones too, even those that `send` took,
        until it has caught up.
        """

    def take_subscriptions(self) -> int:
        """Take what came in about subscriptions; return how many changes that were.

        It must be called now and then: what is not taken has no bound.
        """


class DataReceiver(ConnectingSocket, Protocol):
    """A subscriber's end of the data channel: subscribe, then connect, then receive."""

    def subscribe(self, prefix: bytes) -> None:
        """Receive frames that begin with `prefix`; as often as it is called, as often undo it."""

    def unsubscribe(self, prefix: bytes) -> None:
        """Undo one `subscribe(prefix)`; without one, nothing happens."""

    def receive(self) -> bytes | None:
        """Return the next frame, or None where there is none yet."""

    def receive_awake(self) -> bytes | None:
        """Do as `receive`, but look for it a moment where that is worth it."""

    def on_waited(self) -> None:
        """Note that a frame has come for which `receive_awake` looked in vain."""


class RecoveryServer(BoundSocket, Protocol):
    """The end of a publisher's recovery channel, of a pusher, of a responder: it answers."""

    @property
    def bound_to(self) -> "Endpoint":
        """Where it is bound, with the port that the system picked."""

    def broke(self) -> bool:
        """Whether a connection broke since the last call."""

    @property
    def malformed(self) -> int:
        """How many requests were dropped because they were not of one part."""

    @property
    def user(self) -> str:
        """Who sent the request that was received last, where connections have keys; or ""."""

    def receive_some(self, count_max: int) -> list[tuple[bytes, bytes]]:
        """Return requests that are there as (requester, frame), oldest first."""

    def reply(self, requester: bytes, frame: bytes | memoryview) -> bool | None:
        """Send to one requester; False: its queue is full. None: it is gone."""

    def resync(self) -> None:
        """End what an exception cut short in `receive_some` or `reply`."""

    def end_last(self) -> None:
        """End the connection of the request that was received last, where it has keys."""


class RecoveryClient(ConnectingSocket, Protocol):
    """The other end, of a subscriber, a puller or a requester: it asks."""

    malformed: int
    """How many replies were dropped because they were not of one part."""

    def send(self, frame: bytes) -> bool:
        """Send one request; False: the queue is full."""

    def receive(self) -> bytes | None:
        """Return the next reply, or None where there is none yet."""

    def retry(self) -> None:
        """Connect again now, where a connection was refused by its keys."""

    def is_sending(self) -> bool:
        """Whether bytes that were sent have not arrived yet; False where it is not known."""


class PushSocket(Socket, Protocol):
    """Where one worker's jobs leave, by the batch; it is bound."""

    def wait_for_space(self, timeout_ms: int) -> bool:
        """Wait at most so long until something can be sent; return whether it can."""

    def send(self, parts: list[bytes]) -> bool:
        """Send a message; False: there is no space for it, or nobody to take it."""


class PullSocket(ConnectingSocket, Protocol):
    """Where one pusher's jobs come, by the batch."""

    @property
    def connections(self) -> int:
        """How many connections it has made, one after the other; 0 where that is not known."""

    def open(self) -> None:
        """Connect."""

    def receive_singles(self, count_max: int) -> tuple[list[bytes | list[bytes]], int, bool]:
        """Return messages that have come, their bytes, and whether there may be more."""


class GroupSocket(Protocol):
    """What both ends of a multicast have; of UDP, but in memory."""

    kernel_drops: int
    """Datagrams that were dropped because the buffer was full."""
    buffer_bytes: int
    """How large the buffer for what comes is."""

    @property
    def endpoint(self) -> str:
        """Where it sends to, or listens."""

    def close(self, linger_ms: int = 0) -> None:
        """Close; what is still queued is lost."""


class GroupSender(GroupSocket, Protocol):
    """The publisher's end: to a group, and back from each of its members."""

    datagram_bytes: int
    """How large a datagram may be to go in one packet."""

    def fileno(self) -> int:
        """Return what becomes readable when something has come; -1: nothing does."""

    def find_source(self) -> Any:
        """Return the address that receivers see its datagrams come from; None: there is no way."""

    def send(self, datagram: bytes, address: Any = None) -> bool:
        """Send one datagram, to one receiver where `address` is given; False: no space."""

    def send_train(self, pieces: Sequence[bytes], segment: int) -> bool:
        """Send what `pieces` make, cut into datagrams of `segment` bytes; False: no space."""

    def receive(self) -> tuple[bytes, Any] | None:
        """Return the next datagram sent back to us, and by whom; or None."""


class GroupReceiver(GroupSocket, Protocol):
    """A subscriber's end."""

    def fds(self) -> tuple[int, ...]:
        """Return what becomes readable when something has come."""

    def connect(self) -> None:
        """Join the group."""

    def reconnect(self) -> None:
        """Leave the group, and join it once more."""

    def receive(self) -> tuple[memoryview, int, Any] | None:
        """Return what came, as (datagrams, how long each is but the last one, whose); or None."""

    def receive_back(self) -> tuple[bytes, Any] | None:
        """Return the next datagram that came for this receiver alone; or None."""

    def queued_bytes(self) -> int:
        """Return how much of the buffer is in use."""

    def send(self, datagram: bytes, address: Any) -> None:
        """Send one datagram back to a sender."""
