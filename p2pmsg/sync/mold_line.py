"""A subscriber's line to a MoldUDP64 feed, and to its request servers."""

import logging
import socket
import threading
import time
from typing import Final

import transports
from p2pmsg.mold.feed import Arrival, MoldFeed
from p2pmsg.mold.requests import MoldRequests
from p2pmsg.mold.sessions import MoldSessions
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.sync.datagram_line import DatagramLine
from p2pmsg.sync.request_servers import RequestServers
from p2pmsg.wire import FrameError

_now_ns: Final = time.monotonic_ns
_ANSWER_BYTES: Final = 65_536
_log = logging.getLogger("p2pmsg")


class MoldGroup:
    """What the MoldUDP64 lines of one subscriber share: request servers, and sessions."""

    def __init__(self, places: list[transports.Endpoint]) -> None:
        servers = [
            value
            for place in places
            if place.scheme == "mold"
            for name, value in place.options
            if name == "request"
        ]
        self.servers = RequestServers(servers)
        self.sessions = MoldSessions(can_ask=bool(servers))


class MoldLine(DatagramLine):
    """Stands where a TCP line has its socket."""

    def __init__(
        self,
        endpoint: transports.Endpoint,
        core: SubscriberCore,
        line: int,
        lock: threading.RLock,
        group: MoldGroup,
    ) -> None:
        super().__init__(endpoint, core, line, lock)
        self._endpoint = endpoint
        self._group = group
        self._feed = MoldFeed(core, line, endpoint.option("topic", "mold"), group.sessions)

    def open_client(self, session: int) -> "MoldClient":
        """Return what asks the request servers for messages of a session."""
        return MoldClient(self._core, self._feed, session, self._group.servers)

    def take(self, *, shed: bool = False) -> int:
        """Give the core what has come; tell of sessions that began again."""
        taken = super().take(shed=shed)
        sessions = self._group.sessions
        if sessions.restarts or sessions.repeated:
            self._tell(sessions)
        return taken

    def _tell(self, sessions: MoldSessions) -> None:
        while sessions.repeated:
            name, count = sessions.repeated.popleft()
            _log.warning(
                "%s: %d messages of the session %r came once more, from the first on, and are "
                "dropped as repetitions: if it has begun again, give it another name",
                self._endpoint, count, name,
            )  # fmt: skip
        while sessions.restarts:
            name, head, first = sessions.restarts.popleft()
            _log.warning(
                "%s: the session %r, which stood at sequence %d, has begun again, and is at %d: "
                "it is received as a new session",
                self._endpoint, name, head, first,
            )  # fmt: skip

    def receive_wait(self, timeout_ms: int) -> bytes | None:
        """Wait; the core gets what comes."""
        if self.wait(timeout_ms):
            self.take()
        return None

    def close(self) -> None:
        """Close."""
        self._group.servers.close()
        super().close()

    def _give(
        self, data: memoryview, segment: int, address: object, *, shed: bool = False
    ) -> None:
        arrival = Arrival(_now_ns(), time.time_ns(), shed)
        for at in range(0, len(data) or 1, segment):
            self._feed.receive(data[at : at + segment], arrival)


class MoldClient:
    """Stands where a TCP publisher's recovery channel has its socket.

    Attributes:
        socket: None while there is nothing to ask, or no descriptor left.

    """

    def __init__(
        self, core: SubscriberCore, feed: MoldFeed, session: int, servers: RequestServers
    ) -> None:
        self._core = core
        self._servers = servers
        self._requests = MoldRequests(feed, session, len(servers.names))
        self.socket: socket.socket | None = None
        self.malformed = 0

    def send(self, frame: bytes) -> bool:
        """Ask for what a NACK asks for."""
        requests = self._requests
        requests.send(frame, self._servers.reachable(), now_ns=_now_ns())
        self._flush()
        while requests.silenced:
            server = requests.silenced.popleft()
            self._servers.look_again(server)
            _log.warning(
                "the request server %s does not answer; the others are asked, if there are any",
                self._servers.names[server],
            )
        return True

    def receive(self) -> bytes | None:
        """Return the next answer as a frame, or None."""
        while self.socket is not None:
            try:
                data, address = self.socket.recvfrom(_ANSWER_BYTES)
            except OSError:
                return None
            server = self._servers.index_of(address)
            try:
                frame = self._requests.receive(
                    data, server, now_ns=_now_ns(), wall_ns=time.time_ns()
                )
            except FrameError as error:
                self._core.invalid[str(error)] += 1
                continue
            self._flush()
            while self._requests.returned:
                name = self._servers.names[self._requests.returned.popleft()]
                _log.info("the request server %s answers again", name)
            if frame is not None:
                return frame
        return None

    def reconnect(self) -> None:
        """Do nothing: there is no connection."""

    def close(self, linger_ms: int = 0) -> None:
        """Close."""
        if self.socket is not None:
            self.socket.close()

    def _flush(self) -> None:
        outgoing = self._requests.outgoing
        while outgoing:
            server, packet = outgoing.popleft()
            address = self._servers.address(server)
            try:
                if self.socket is None:
                    self.socket = self._open()
                if address is not None:
                    self.socket.sendto(packet, address)
            except OSError:
                pass  # it is asked for again, and of another server

    def _open(self) -> socket.socket:
        made = socket.socket(self._servers.family, socket.SOCK_DGRAM)
        made.setblocking(False)
        if self._servers.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return made
