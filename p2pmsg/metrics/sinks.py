"""Where metrics go: to collectors that subscribe, or to a plain StatsD server."""

import socket
from typing import Any, Generic, Protocol, TypeVar

from p2pmsg.errors import ConfigError
from p2pmsg.metrics.deltas import BYTES_MAX, Deltas
from p2pmsg.statsd.listen import parse_listen
from p2pmsg.statsd.totals import TOPIC
from p2pmsg.sync.publishing import PublishingPeer

_PACKET_BYTES = 1432
"""What fits into one Ethernet frame, as statsd's documentation advises."""
P = TypeVar("P", bound=PublishingPeer)


class Sink(Protocol):
    """Takes deltas.

    Attributes:
        endpoint: where it is bound, or where it sends to.
        bytes_max: largest message of deltas, packed, in bytes.

    """

    endpoint: str
    bytes_max: int

    def send(self, deltas: Deltas) -> None:
        """Send them."""

    def has_sent(self) -> bool:
        """Whether deltas were accepted although `send` was interrupted."""


class Reliable(Generic[P]):
    """Publishes deltas for collectors, which subscribe and request what was lost."""

    def __init__(self, publisher: P) -> None:
        self.publisher = publisher
        self.endpoint = self.publisher.endpoint
        self.bytes_max = self.publisher._core.config.message_bytes_max
        self._published = self.publisher.stats().published
        self._first: int | None = None
        self._following = 0

    def send(self, deltas: Deltas) -> None:
        """Publish them."""
        self._note_sent(self.publisher.publish(TOPIC, deltas.message()))
        self.publisher.flush()

    def _note_sent(self, sequence: int) -> None:
        if self._first is None:
            self._first = sequence
        self._following = sequence + 1

    def has_sent(self) -> bool:
        """Whether deltas were accepted although `send` was interrupted."""
        following = self.publisher.stats().published  # there is one topic only
        if following <= max(self._following, self._published):
            return False
        self._note_sent(following - 1)
        return True

    def is_settled(self) -> bool:
        """Whether a collector has everything, or none says what it has."""
        requests = self.publisher._core.requests
        settled = requests.settled.get(TOPIC, 0)
        return self._first is None or bool(requests.settlers) or settled >= self._following

    def missing(self) -> tuple[int, str]:
        """Return how many deltas no collector has, and why."""
        requests, first = self.publisher._core.requests, self._first
        if first is None or self.is_settled():
            return 0, ""
        why = "confirmed by no collector" if requests.subscribers else "no collector was there"
        return self._following - max(first, requests.settled.get(TOPIC, 0)), why


class Plain:
    """Sends lines to a StatsD server; losses are not noticed.

    `open` comes first: it looks up the host's name.
    """

    def __init__(self, endpoint: str) -> None:
        self._text = endpoint
        self._place = parse_listen(endpoint, "endpoint")
        self.endpoint = str(self._place)
        self.bytes_max = BYTES_MAX
        self._socket: socket.socket | None = None
        self._address: Any = None
        self._flags = 0

    def never_wait(self) -> None:
        """Send nothing that there is no space for at once."""
        self._flags = socket.MSG_DONTWAIT

    @property
    def is_open(self) -> bool:
        """Whether it can send."""
        return self._socket is not None

    def open(self, flags: int = 0) -> None:
        """Find the server, with these flags of `getaddrinfo`; `ConfigError` for an unknown host."""
        place = self._place
        if place.path:
            self._address = place.path
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            return
        try:
            found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM, flags=flags)[
                0
            ]
        except OSError as error:
            raise ConfigError("endpoint", "of a host that is known", self._text) from error
        self._address = found[4]
        self._socket = socket.socket(found[0], socket.SOCK_DGRAM)

    def send(self, deltas: Deltas) -> None:
        """Send them in as few packets as hold them."""
        packet: list[bytes] = []
        size = 0
        for line in deltas.lines():
            data = line.encode()
            if packet and size + len(data) + 1 > _PACKET_BYTES:
                self._send_packet(packet)
                packet, size = [], 0
            packet.append(data)
            size += len(data) + 1
        if packet:
            self._send_packet(packet)

    def _send_packet(self, packet: list[bytes]) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(b"\n".join(packet), self._flags, self._address)
        except OSError:
            pass  # a server that is away is no reason for a program to fail

    def has_sent(self) -> bool:
        """Return True: it is unknown, and sending again might count twice."""
        return True

    def close(self) -> None:
        """Close."""
        if self._socket is not None:
            self._socket.close()
