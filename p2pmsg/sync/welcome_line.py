"""Hearing who publishes to a group, for those who want no more than that."""

from collections import deque

import transports
from p2pmsg.multicast import datagram
from p2pmsg.sync.datagram_line import host_of
from p2pmsg.wire import FrameError, Kind

_TRAINS_PER_CALL = 64
_HEARD_MAX = 64


class WelcomeLine:
    """Stands where a range reader has its socket for welcomes.

    Attributes:
        host: where the last welcome came from.
        socket: for pollers only.

    """

    def __init__(self, endpoint: transports.Endpoint) -> None:
        datagram.require_checksum()
        self._udp = transports.UdpReceiver(endpoint)
        self._heard: deque[bytes] = deque(maxlen=_HEARD_MAX)
        self.socket = self._udp.socket
        self.host = endpoint.host

    def connect(self) -> None:
        """Join the group."""
        self._udp.connect()

    def reconnect(self) -> None:
        """Join the group anew."""
        self._udp.reconnect()

    def subscribe(self, prefix: bytes) -> None:
        """Do nothing: every datagram comes."""

    def receive(self) -> bytes | None:
        """Return the next welcome, or None."""
        for _ in range(_TRAINS_PER_CALL):
            if self._heard:
                break
            received = self._udp.receive()
            if received is None:
                return None
            data, segment, address = received
            for at in range(0, len(data), segment):
                piece = data[at : at + segment]
                if len(piece) > 5 and piece[0] == 0 and piece[4] == Kind.WELCOME:
                    try:
                        self._heard.append(datagram.open_datagram(piece))
                        self.host = host_of(address)
                    except FrameError:
                        continue
        return self._heard.popleft() if self._heard else None

    def close(self) -> None:
        """Close."""
        self._udp.close()
