"""Subscriptions that are decided on one by one: an XPUB takes on those that its owner allows.

With XPUB_MANUAL libzmq reports each subscription of each connection, and takes it on only if that
is said before the next one is received. It says with whose key the connection was made, until that
ends; then it reports once more what the connection had subscribed to, and of whom no more. So what
a connection has is kept here, by its descriptor. Where it is not allowed any more the connection is
ended: libzmq has no call that takes a subscription away, and its owner subscribes again.
"""

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import zmq

from transports.connections import TOTAL_FACTOR, Connections
from transports.context import Socket
from transports.zmq_socket import user_of

_CHECK_NS: Final = 2_000_000
"""How long `check_some` goes on with further connections."""


class _Subscriber:
    """What one connection subscribes to: by prefix, whether it was allowed."""

    __slots__ = ("byte_count", "prefixes", "user")

    def __init__(self, user: str) -> None:
        self.user = user
        self.prefixes: dict[bytes, bool] = {}
        self.byte_count = 0


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
        self._holders: Counter[bytes] = Counter()
        self._byte_count = 0
        self._given_up: list[bytes] = []
        self._unchecked: list[int] = []
        connections.on_end = self._forget
        socket.set(zmq.XPUB_MANUAL, 1)

    def take(self, note: zmq.Frame, fd: int) -> bool:
        """Take what the socket has just reported; return whether its owner is to know it.

        Of a prefix that several subscribe to, only the first and the last matter.
        """
        data = note.bytes
        prefix, kind = data[1:], data[:1]
        if kind not in (b"\0", b"\1") or fd < 0:
            return kind not in (b"\0", b"\1")  # or its connection has ended, which is noted apart
        if not self._connections.is_open(fd):
            return False  # it has ended, and what ended it is no later connection's
        if kind == b"\1":
            return self._subscribe(fd, user_of(note), prefix)
        subscriber = self._subscribers.get(fd)
        allowed = False if subscriber is None else subscriber.prefixes.pop(prefix, False)
        if not allowed or subscriber is None:
            return False
        subscriber.byte_count -= len(prefix)
        self._socket.set(zmq.UNSUBSCRIBE, prefix)
        return self._let_go(prefix)

    def _subscribe(self, fd: int, user: str, prefix: bytes) -> bool:
        subscriber = self._subscribers.get(fd)
        if subscriber is None or subscriber.user != user:
            self._forget(fd)
            subscriber = self._subscribers[fd] = _Subscriber(user)
        if prefix in subscriber.prefixes:
            if subscriber.prefixes[prefix]:  # of one that had this descriptor before, perhaps
                self._socket.set(zmq.SUBSCRIBE, prefix)
            return False
        allowed = self._allows(user, prefix)
        subscriber.prefixes[prefix] = allowed
        subscriber.byte_count += len(prefix)
        is_first = False
        if allowed:
            self._socket.set(zmq.SUBSCRIBE, prefix)
            self._holders[prefix] += 1
            is_first = self._holders[prefix] == 1
            self._byte_count += is_first * len(prefix)
        else:
            self.refused += 1
        self._check_bounds(fd, subscriber)
        return is_first

    def _check_bounds(self, fd: int, subscriber: _Subscriber) -> None:
        connections = self._connections
        count_max, bytes_max = connections.subscriptions_max, connections.subscription_bytes_max
        if len(subscriber.prefixes) > count_max or subscriber.byte_count > bytes_max:
            connections.end_oversubscribed(fd)
        elif (
            len(self._holders) > TOTAL_FACTOR * count_max
            or self._byte_count > TOTAL_FACTOR * bytes_max
        ):
            most = max(self._subscribers, key=lambda one: self._subscribers[one].byte_count)
            connections.end_oversubscribed(most)

    def take_given_up(self) -> list[bytes]:
        """Take out the notes on prefixes that nobody subscribes to any more."""
        given_up, self._given_up = self._given_up, []
        return given_up

    def recheck(self) -> None:
        """Decide on all subscriptions again; `check_some` does it."""
        self._unchecked = list(self._subscribers)

    @property
    def is_checking(self) -> bool:
        """Whether `check_some` has something to do."""
        return bool(self._unchecked)

    def check_some(self) -> None:
        """End connections with a subscription on which is decided otherwise now.

        It returns after a connection, and some ms at least; the next call goes on.
        """
        end_ns = time.monotonic_ns() + _CHECK_NS
        while self._unchecked:
            fd = self._unchecked.pop()
            # One that is new at this descriptor was decided on by the rules as they are.
            found = self._subscribers.get(fd)
            if found is not None and any(
                self._allows(found.user, prefix) != allowed
                for prefix, allowed in found.prefixes.items()
            ):
                self.ended += 1
                self._connections.end(fd)
            if time.monotonic_ns() >= end_ns:
                return

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
        subscriber = self._subscribers.pop(fd, None)
        if subscriber is None:
            return
        for prefix, allowed in subscriber.prefixes.items():
            if allowed and self._let_go(prefix):
                self._given_up.append(b"\0" + prefix)

    def _let_go(self, prefix: bytes) -> bool:
        """Note that one holds a prefix no more; return whether nobody does."""
        self._holders[prefix] -= 1
        if self._holders[prefix]:
            return False
        del self._holders[prefix]
        self._byte_count -= len(prefix)
        return True
