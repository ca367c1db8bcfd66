"""Where metrics go: to collectors that subscribe, or to a plain StatsD server."""

import socket
import time
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from p2pmsg.errors import ConfigError
from p2pmsg.metrics.deltas import BYTES_MAX, Deltas
from p2pmsg.peers.publisher import PublisherBase
from p2pmsg.statsd.listen import parse_listen
from p2pmsg.statsd.totals import TOPIC

_PACKET_BYTES = 1432
"""What fits into one Ethernet frame, as statsd's documentation advises."""
_OTHERS_S = 1.0
P = TypeVar("P", bound=PublisherBase)


class Reliable(Generic[P]):
    """Publishes deltas for collectors, which subscribe and request what was lost.

    Attributes:
        endpoint: where it is bound.
        bytes_max: largest message of deltas, packed, in bytes.

    """

    def __init__(self, publisher: P) -> None:
        self.publisher = publisher
        self.endpoint = self.publisher.endpoint
        self.bytes_max = self.publisher._peer.core.config.message_bytes_max
        self._first: int | None = None
        self._repaired, self._through_s = -1, 0.0
        self._following = self.publisher._peer.core.accepted(TOPIC)

    def send(self, deltas: Deltas) -> int:
        """Publish them; return what `following` returns then."""
        self._on_sent(self.publisher.publish(TOPIC, deltas.message()) + 1)
        self.publisher.flush()
        return self._following

    def _on_sent(self, following: int) -> None:
        if self._first is None:
            self._first = following - 1
        self._following = following

    def following(self) -> int:
        """Return the next sequence: greater than before if `send`, even interrupted, sent."""
        publisher = self.publisher
        following = int(publisher._driver.section.read(publisher._peer.core.accepted, TOPIC))
        if following > self._following:
            self._on_sent(following)
        return following

    def is_acknowledged(self) -> bool:
        """Whether a collector has everything, or none says what it has."""
        requests = self.publisher._peer.core.requests
        acknowledged = requests.acknowledged.get(TOPIC, 0)
        return self._first is None or bool(requests.settlers) or acknowledged >= self._following

    def is_through(self) -> bool:
        """Whether a closing client may go: a collector has everything, and others are through.

        One that was killed, or hangs, never says so: others are waited for until no repair was
        sent for a second.
        """
        core = self.publisher._peer.core
        if not core.is_sent or not self.is_acknowledged():
            return False
        now_s, repaired = time.monotonic(), core.requests.frames_repaired
        if repaired != self._repaired:
            self._repaired, self._through_s = repaired, now_s + _OTHERS_S
        return not core.requests.incomplete or now_s >= self._through_s

    def missing(self, patience_s: float) -> tuple[int, str]:
        """Return how many deltas no collector has, and why, after so many seconds of waiting."""
        requests, first = self.publisher._peer.core.requests, self._first
        if first is None:
            return 0, ""
        # What the replay buffer no longer had when collectors asked for it.
        lost = requests.unreached.get(TOPIC)
        gone = 0 if lost is None else sum(b - a for a, b in lost.overlap(first, self._following))
        if self.is_acknowledged():
            return gone, "evicted before a collector had them"
        why = "confirmed by no collector" if requests.subscribers else "no collector was there"
        unacknowledged = self._following - max(first, requests.acknowledged.get(TOPIC, 0))
        return gone + unacknowledged, f"{why} within {patience_s:g} s"


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
        self._begun = 0

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

    def send(self, deltas: Deltas) -> int:
        """Send them in as few packets as hold them."""
        packets = list(_packets(deltas.lines()))
        self._begun += 1
        for packet in packets:
            self._send_packet(packet)
        return self._begun

    def following(self) -> int:
        """Return how many were begun: some packets may have left, and would count twice."""
        return self._begun

    def _send_packet(self, packet: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(packet, self._flags, self._address)
        except OSError:
            pass  # a server that is away is no reason for a program to fail

    def close(self) -> None:
        """Close."""
        if self._socket is not None:
            self._socket.close()


Sink = Reliable[Any] | Plain


def _packets(lines: list[str]) -> Iterator[bytes]:
    packet: list[bytes] = []
    size = 0
    for line in lines:
        data = line.encode()
        if packet and size + len(data) + 1 > _PACKET_BYTES:
            yield b"\n".join(packet)
            packet, size = [], 0
        packet.append(data)
        size += len(data) + 1
    if packet:
        yield b"\n".join(packet)
