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


class AllowedSubscriptions:
    """The subscriptions of one XPUB, which is set to XPUB_MANUAL.

    Args:
        socket: not bound yet.
        connections: its connections; their bounds on subscriptions hold.
        allows: whether a user id may have all frames that begin with a prefix.

    Attributes:
        refused: subscriptions that were not taken on.
        ended: connections that were ended because what they may have has changed.

    """

    def __init__(
        self, socket: Socket, connections: Connections, allows: Callable[[str, bytes], bool]
    ) -> None:
        self._socket = socket
        self._connections = connections
        self._allows = allows
        self.refused = self.ended = 0
        socket.set(zmq.XPUB_MANUAL, 1)

    def take(self, note: zmq.Frame) -> None:
        """Take what the socket has just reported."""
        fd, data = source_of(note), note.bytes
        kind, prefix = data[:1], data[1:]
        if kind == b"\0" and fd < 0:
            self._connections.unsubscribed(prefix)  # its connection has ended
        elif kind == b"\0":
            connection = self._connections.known(fd)
            if connection is not None and prefix in connection.prefixes:
                self._connections.unsubscribed(prefix, fd)
                if connection.prefixes.pop(prefix):
                    self._socket.set(zmq.UNSUBSCRIBE, prefix)
        elif kind == b"\1" and (connection := self._connections.find(fd)) is not None:
            connection.user = user = user_of(note)
            if prefix not in connection.prefixes:
                allowed = connection.prefixes[prefix] = self._allows(user, prefix)
                self.refused += not allowed
                if allowed:
                    self._socket.set(zmq.SUBSCRIBE, prefix)
                self._connections.subscribed(fd, prefix)

    def recheck(self) -> None:
        """End connections with a subscription on which is decided otherwise now."""
        for fd, one in self._connections.by_fd():
            decided = one.prefixes.items()
            if any(self._allows(one.user, prefix) != allowed for prefix, allowed in decided):
                self.ended += 1
                self._connections.end(fd)
