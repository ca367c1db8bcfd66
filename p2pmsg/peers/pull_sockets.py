"""The sockets over which a puller's jobs come by the batch: a PULL for each pusher."""

from collections.abc import Sequence
from typing import Final

import transports
from p2pmsg.peers.network import Network
from p2pmsg.queue.puller_core import PullerCore

_COMING_NS: Final = 2_000_000_000
"""A connection over which no byte came for so long brings nothing just now."""


class PullSockets:
    """Has a PULL connected where each core says that its jobs come from.

    Args:
        clients: the DEALERs, one for each pusher.
        places: their endpoints.
        network: has the sockets.

    """

    def __init__(
        self,
        clients: Sequence[transports.RecoveryClient],
        places: Sequence[transports.Endpoint],
        network: Network,
    ) -> None:
        self._network = network
        self._clients = clients
        self._places = places
        self._sockets: list[transports.PullSocket | None] = [None] * len(places)
        self._connected_to = [""] * len(places)
        self._missing_since_ns = [0] * len(places)
        self._left: list[transports.PullSocket] = []
        self._fds: frozenset[int] = frozenset()

    def receive(self, at: int, core: PullerCore, count_max: int) -> list[bytes]:
        """Return frames that have come from a pusher, after a look where they come from."""
        if core.arrivals.endpoint != self._connected_to[at]:
            self._connect(at, core)
        socket = self._sockets[at]
        if socket is None:
            return []
        messages = socket.receive_singles(count_max)[0]
        return [message if type(message) is bytes else b"" for message in messages]

    def check(self, at: int, core: PullerCore, now_ns: int) -> None:
        """Check the handshake, and say hello again where jobs were sent that do not come."""
        socket = self._sockets[at]
        if socket is not None:
            socket.check()
        if not core.is_missing:
            self._missing_since_ns[at] = now_ns
            return
        since_ns = max(self._missing_since_ns[at], self.last_byte_ns(at, now_ns))
        # What was on its way when a connection broke does not come.
        has_broken = socket is None or socket.connections > 1
        if has_broken or now_ns - since_ns > _COMING_NS:
            self._missing_since_ns[at] = now_ns
            core.rejoin()

    def last_byte_ns(self, at: int, now_ns: int) -> int:
        """Return when the last byte came, as far as is known; else 0."""
        socket = self._sockets[at]
        return 0 if socket is None else socket.last_byte_ns(now_ns) or 0

    def fds(self, others: frozenset[int]) -> frozenset[int]:
        """Return the descriptors that are to be watched, with `others`.

        Sockets that were left are closed now that nobody watches them any more.
        """
        fds = others.union(each.fileno() for each in self._sockets if each is not None)
        if fds != self._fds:
            self._fds = fds
        while self._left:
            self._left.pop().close()
        return self._fds

    def close(self) -> None:
        """Close all."""
        for socket in (*self._left, *self._sockets):
            if socket is not None:
                socket.close()
        self._left.clear()
        self._sockets = [None] * len(self._sockets)

    def _connect(self, at: int, core: PullerCore) -> None:
        """Leave the former socket, and connect another where there is an endpoint."""
        socket = self._sockets[at]
        if socket is not None:
            self._left.append(socket)
            self._sockets[at] = None
        endpoint = core.arrivals.endpoint
        if endpoint:
            try:
                place = transports.parse_endpoint(endpoint).without_key()
                if place.scheme == "tcp":  # by the way that leads to the pusher: its name may not
                    place = place.with_host(self._places[at].host)
                self._left.append(self._network.pull_socket(place, curve=self._clients[at].curve))
                self._left[-1].open()
            except transports.TransportError:
                core.refuse_endpoint()
            else:
                self._sockets[at] = self._left.pop()
        self._connected_to[at] = endpoint
