"""Subscriptions that are decided on one by one: an XPUB takes on those that its owner allows.

With XPUB_MANUAL libzmq reports each subscription of each connection, and takes it on only if that
is said before the next one is received. It says with whose key the connection was made, until that
ends; then it reports once more what the connection had subscribed to, and of whom no more. So what
a connection has is kept here, by its descriptor. Where it is not allowed any more the connection is
ended: libzmq has no call that takes a subscription away, and its owner subscribes again.
"""

from collections.abc import Callable

import zmq

from transports.connections import Connections
from transports.context import Socket
from transports.zmq_socket import source_of, user_of


class _Subscriber:
    """What one connection subscribes to: by prefix, whether it was allowed."""

    __slots__ = ("prefixes", "user")

    def __init__(self, user: str) -> None:
        self.user = user
        self.prefixes: dict[bytes, bool] = {}


class AllowedSubscriptions:
    """The subscriptions of one XPUB, which is set to XPUB_MANUAL.

    Args:
        socket: not bound yet.
        connections: its connections; their bounds on subscriptions hold.
        allows: whether a user id may have all frames that begin with a prefix.

    Attributes:
        refused: subscriptions that were not taken on.
        ended: connections that were ended because what they may have has changed.
        revoked: connections that were ended by `end_user`.

    """

    def __init__(
        self, socket: Socket, connections: Connections, allows: Callable[[str, bytes], bool]
    ) -> None:
        self._socket = socket
        self._connections = connections
        self._allows = allows
        self.refused = self.ended = self.revoked = 0
        self._subscribers: dict[int, _Subscriber] = {}
        connections.on_end = self._forget
        socket.set(zmq.XPUB_MANUAL, 1)

    def take(self, note: zmq.Frame) -> None:
        """Take what the socket has just reported."""
        fd, data = source_of(note), note.bytes
        kind, prefix = data[:1], data[1:]
        if kind == b"\0" and fd < 0:
            self._connections.unsubscribed(prefix)  # its connection has ended
        elif kind == b"\0":
            subscriber = self._subscribers.get(fd)
            if subscriber is not None and prefix in subscriber.prefixes:
                self._connections.unsubscribed(prefix, fd)
                if subscriber.prefixes.pop(prefix):
                    self._socket.set(zmq.UNSUBSCRIBE, prefix)
        elif kind == b"\1" and fd >= 0 and self._connections.is_open(fd):
            self._subscribe(fd, user_of(note), prefix)

    def _subscribe(self, fd: int, user: str, prefix: bytes) -> None:
        subscriber = self._subscribers.get(fd)
        if subscriber is None or subscriber.user != user:
            subscriber = self._subscribers[fd] = _Subscriber(user)
        is_new = prefix not in subscriber.prefixes
        if is_new:
            allowed = subscriber.prefixes[prefix] = self._allows(user, prefix)
            self.refused += not allowed
        if subscriber.prefixes[prefix]:  # again for one that had this descriptor before, perhaps
            self._socket.set(zmq.SUBSCRIBE, prefix)
        if is_new:
            self._connections.subscribed(fd, prefix)

    def recheck(self) -> None:
        """End connections with a subscription on which is decided otherwise now."""
        self._connections.update()  # another connection may have a descriptor now
        for fd, one in list(self._subscribers.items()):
            decided = one.prefixes.items()
            if any(self._allows(one.user, prefix) != allowed for prefix, allowed in decided):
                self.ended += 1
                self._connections.end(fd)

    def end_user(self, user: str) -> None:
        """End all connections of a user that have subscribed to anything.

        Who has not is sent nothing, and is asked about when it subscribes.
        """
        self._connections.update()  # another connection may have a descriptor now
        for fd in [fd for fd, one in self._subscribers.items() if one.user == user]:
            self.revoked += 1
            self._connections.end(fd)

    def _forget(self, fd: int) -> None:
        """Note that a connection has ended."""
        self._subscribers.pop(fd, None)
