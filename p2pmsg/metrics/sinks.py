"""Where metrics go: to collectors that subscribe, or to a plain StatsD server."""

import socket
from collections.abc import Iterator
from typing import Any

from p2pmsg.driver.peer import Peer
from p2pmsg.driver.verbs import Verb
from p2pmsg.errors import ConfigError
from p2pmsg.metrics.deltas import BYTES_MAX, Deltas
from p2pmsg.peers.publisher import PublisherPeer
from p2pmsg.statsd import DELTAS_TOPIC, ListenEndpoint, parse_listen

_PACKET_BYTES = 1432
"""What fits into one Ethernet frame, as statsd's documentation advises."""
_OTHERS_NS = 1_000_000_000
_IDLE_NS = 1_000_000_000


class Reliable:
    """Publishes deltas for collectors, which subscribe and request what was lost.

    Attributes:
        publisher: does it.
        endpoint: where it is bound.
        bytes_max: largest message of deltas, packed, in bytes.

    """

    def __init__(self, publisher: PublisherPeer) -> None:
        self.publisher = publisher
        self.endpoint = publisher.endpoint
        self.bytes_max = publisher.core.config.message_bytes_max
        self._first = self.following()
        self._repaired, self._through_ns = -1, 0

    def send(self, deltas: Deltas, *, bounded: bool) -> None:
        """Publish them; with `bounded` they are refused where too much waits to be sent."""
        message = deltas.message()
        self.publisher.publish(DELTAS_TOPIC, message, None, None, None, bounded=bounded)
        self.publisher.flush()

    def following(self) -> int:
        """Return the next sequence."""
        return self.publisher.core.accepted(DELTAS_TOPIC)

    def holds_up(self) -> bool:
        """Whether a call that may wait is to do so in `leave`."""
        return self.publisher.holds_up or self.publisher.is_synced

    def leave(self) -> Verb[None]:
        """Wait until what was sent has left."""
        return self.publisher.leave_all()

    def close(self, timeout_s: float) -> Verb[None]:
        """Wait until a collector has everything."""
        return self.publisher.close(timeout_s, self._is_through)

    def wait_for_collectors(self, count: int, timeout_s: float | None) -> Verb[None]:
        """Wait until so many subscribe."""
        return self.publisher.wait_for_subscribers(count, timeout_s)

    def missing(self, timeout_s: float) -> tuple[int, str]:
        """Return how many deltas no collector has, and why, after so many seconds of waiting."""
        core, following = self.publisher.core, self.following()
        stream = core.streams.get(DELTAS_TOPIC)
        if stream is None:
            return 0, ""
        # What the replay buffer no longer had when collectors asked for it.
        gone = sum(b - a for a, b in stream.unreached.overlap(self._first, following))
        if self._is_acknowledged():
            return gone, "evicted before a collector had them"
        why = "confirmed by no collector" if core.joined else "no collector was there"
        unacknowledged = following - max(self._first, stream.acknowledged)
        return gone + unacknowledged, f"{why} within {timeout_s:g} s"

    def _is_acknowledged(self) -> bool:
        """Whether a collector has everything, or none says what it has."""
        core, following = self.publisher.core, self.following()
        stream = core.streams.get(DELTAS_TOPIC)
        has_all = stream is None or stream.acknowledged >= following
        return following <= self._first or has_all or bool(core.requests.known.settlers())

    def _is_through(self) -> bool:
        """Whether a closing client may go: a collector has everything, and others are through.

        One that was killed, or hangs, never says so: others are waited for until no repair was
        sent for a second.
        """
        core, now_ns = self.publisher.core, self.publisher.now_ns()
        if not core.is_sent or not self._is_acknowledged():
            return False
        repaired = core.requests.frames_repaired
        if repaired != self._repaired:
            self._repaired, self._through_ns = repaired, now_ns + _OTHERS_NS
        return not core.requests.incomplete or now_ns >= self._through_ns


class Plain(Peer):
    """Sends lines to a StatsD server; losses are not noticed.

    Raises:
        ConfigError: it is no endpoint, or of a host that is unknown.

    """

    name = "the StatsD server"
    thread_name = ""

    def __init__(self, endpoint: str) -> None:
        place = parse_listen(endpoint, "endpoint")
        self.publisher: Peer = self
        self.endpoint = str(place)
        self.bytes_max = BYTES_MAX
        self._begun = 0
        family, self._address = _find(endpoint, place)
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, deltas: Deltas, *, bounded: bool) -> None:
        """Send them in as few packets as hold them."""
        self._begun += 1
        for packet in _packets(deltas.lines()):
            try:
                self._socket.sendto(packet, self._address)
            except OSError:
                pass  # a server that is away is no reason for a program to fail

    def following(self) -> int:
        """Return how many were begun: some packets may have left, and would count twice."""
        return self._begun

    def holds_up(self) -> bool:
        """Return False: nothing waits."""
        return False

    def leave(self) -> Verb[None]:
        """Do nothing, as the other verbs: nobody confirms anything."""
        yield from ()

    def close(self, timeout_s: float) -> Verb[None]:
        """Do nothing."""
        return self.leave()

    def wait_for_collectors(self, count: int, timeout_s: float | None) -> Verb[None]:
        """Do nothing."""
        return self.leave()

    def missing(self, timeout_s: float) -> tuple[int, str]:
        """Return that nothing is known to be missing."""
        return 0, ""

    def turn(self, now_ns: int) -> None:
        """Do nothing."""

    def fds(self) -> tuple[int, ...]:
        """Return none: a server says nothing."""
        return ()

    def next_deadline_ns(self) -> int:
        """Return a time that is not near."""
        return self.now_ns() + _IDLE_NS

    def resync(self) -> None:
        """Do nothing."""

    def shut(self) -> None:
        """Close the socket."""
        self._socket.close()

    def abandon(self) -> None:
        """Close the copy of the socket, in a forked child."""
        self._socket.close()


def _find(text: str, place: ListenEndpoint) -> tuple[int, Any]:
    if place.path:
        return socket.AF_UNIX, place.path
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise ConfigError("endpoint", "of a host that is known", text) from error
    return found[0], found[4]


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
