"""Hearing who publishes to a group, and where its streams stand, without taking part in it."""

from collections import deque

import transports
from p2pmsg.multicast import datagram
from p2pmsg.sync.datagram_line import host_of
from p2pmsg.wire import FrameError

_TRAINS_PER_CALL = 64
_HEARD_MAX = 64


class WelcomeLine:
    """Stands where a range reader has its socket for welcomes and heartbeats.

    Attributes:
        host: where the frame came from that `receive` returned last.
        socket: for pollers only.

    """

    def __init__(self, endpoint: transports.Endpoint) -> None:
        datagram.require_checksum()
        self._udp = transports.UdpReceiver(endpoint)
        self._heard: deque[tuple[bytes, str]] = deque(maxlen=_HEARD_MAX)
        self._prefixes: list[bytes] = []
        self.socket = self._udp.socket
        self.host = endpoint.host

    def connect(self) -> None:
        """Join the group."""
        self._udp.connect()

    def reconnect(self) -> None:
        """Join the group anew."""
        self._udp.reconnect()

    def subscribe(self, prefix: bytes) -> None:
        """Take frames that begin with `prefix`; the socket gets all of the group's."""
        if prefix not in self._prefixes:
            self._prefixes.append(prefix)

    def receive(self) -> bytes | None:
        """Return the next frame that was subscribed to, or None."""
        for _ in range(_TRAINS_PER_CALL):
            if self._heard:
                break
            received = self._udp.receive()
            if received is None:
                return None
            data, segment, address = received
            for at in range(0, len(data), segment):
                piece = data[at : at + segment]
                if not any(piece[: len(each)] == each for each in self._prefixes):
                    continue
                try:
                    self._heard.append((datagram.open_datagram(piece), host_of(address)))
                except FrameError:
                    continue
        if not self._heard:
            return None
        frame, self.host = self._heard.popleft()
        return frame

    def close(self) -> None:
        """Close."""
        self._udp.close()
