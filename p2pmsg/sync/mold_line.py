"""A subscriber's line to a MoldUDP64 feed, and to its retransmission servers."""

import socket
import threading
import time
from typing import Final

import transports
from p2pmsg.mold.feed import MoldFeed, MoldRequests
from p2pmsg.subscriber_core import SubscriberCore
from p2pmsg.sync.datagram_line import DatagramLine
from p2pmsg.wire import FrameError
from transports.endpoint_options import request_address

_now_ns: Final = time.monotonic_ns
_ANSWER_BYTES: Final = 65_536


class MoldLine(DatagramLine):
    """Stands where a TCP line has its socket."""

    def __init__(
        self, endpoint: transports.Endpoint, core: SubscriberCore, line: int, lock: threading.RLock
    ) -> None:
        super().__init__(endpoint, core, line, lock)
        topic = endpoint.option("topic", "mold")
        self._feed = MoldFeed(core, line, topic)
        self._servers = [value for name, value in endpoint.options if name == "request"]

    def open_client(self, session: int) -> "MoldClient":
        """Return what asks the retransmission servers for messages of a session."""
        return MoldClient(self._core, self._feed, session, self._servers)

    def receive_wait(self, timeout_ms: int) -> bytes | None:
        """Wait; the core gets what comes."""
        if self.wait(timeout_ms):
            self.take()
        return None

    def _give(
        self, data: memoryview, segment: int, address: object, *, shed: bool = False
    ) -> None:
        now_ns, wall_ns = _now_ns(), time.time_ns()
        for at in range(0, len(data) or 1, segment):
            self._feed.receive(
                data[at : at + segment], now_ns=now_ns, wall_ns=wall_ns, shed=shed
            )


class MoldClient:
    """Stands where a TCP publisher's recovery channel has its socket."""

    def __init__(
        self, core: SubscriberCore, feed: MoldFeed, session: int, servers: list[str]
    ) -> None:
        self._core = core
        self._addresses = []
        for server in servers:
            host, port = request_address(server)
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
            found.sort(key=lambda entry: entry[0] != socket.AF_INET)
            self._addresses.append(found[0][4])
        v6 = bool(self._addresses) and ":" in str(self._addresses[0][0])
        self.socket = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self._requests = MoldRequests(feed, session, len(servers))
        self.malformed = 0

    def send(self, frame: bytes) -> bool:
        """Ask for what a NACK asks for."""
        self._requests.send(frame)
        self._flush()
        return True

    def receive(self) -> bytes | None:
        """Return the next answer as a frame, or None."""
        while True:
            try:
                data, _ = self.socket.recvfrom(_ANSWER_BYTES)
            except OSError:
                return None
            try:
                frame = self._requests.receive(data, wall_ns=time.time_ns())
            except FrameError as error:
                self._core.invalid[str(error)] += 1
                continue
            self._flush()
            if frame is not None:
                return frame

    def reconnect(self) -> None:
        """Do nothing: there is no connection."""

    def close(self, linger_ms: int = 0) -> None:
        """Close."""
        self.socket.close()

    def _flush(self) -> None:
        outgoing = self._requests.outgoing
        while outgoing:
            server, packet = outgoing.popleft()
            try:
                self.socket.sendto(packet, self._addresses[server])
            except OSError:
                pass  # it is asked for again, and of another server
