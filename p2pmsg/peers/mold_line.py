"""A subscriber's line to a MoldUDP64 feed, and to its request servers."""

import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

import transports
from p2pmsg.mold.feed import Arrival, MoldFeed
from p2pmsg.mold.requests import MoldRequests
from p2pmsg.mold.sessions import MoldSessions
from p2pmsg.peers.datagram_line import DatagramLine
from p2pmsg.peers.network import MACHINE, Network
from p2pmsg.subscriber.core import SubscriberCore
from p2pmsg.wire import FrameError
from transports.endpoint import is_address, request_address
from transports.own_log import own_log as _log
from transports.trouble import Rarely, Trouble

_now_ns: Final = time.monotonic_ns
_ANSWER_BYTES: Final = 65_536
Address = tuple[Any, ...]
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 60.0
"""How long after a failure names are looked up again, at first and at most: it doubles."""


class RequestServers:
    """The request servers of a subscriber's lines.

    Looking a name up may take seconds, so a thread does it; until a name is found the other servers
    are asked, and it is looked up again.

    Args:
        servers: each as HOST:PORT, checked.

    Attributes:
        names: the servers, each once.
        family: of the sockets that reach them all.

    """

    def __init__(self, servers: Sequence[str]) -> None:
        self.names = list(dict.fromkeys(servers))
        hosts = [request_address(name)[0] for name in self.names]
        simple = all(is_address(host) and ":" not in host for host in hosts)
        self.family = socket.AF_INET if simple or not _has_ipv6() else socket.AF_INET6
        self._found: list[Address | None] = [None] * len(self.names)
        self._closed = threading.Event()
        for index, host in enumerate(hosts):
            if is_address(host):
                self._found[index] = self._find(index)
        if None in self._found:
            threading.Thread(target=self._run, name="p2pmsg-mold-names", daemon=True).start()

    def address(self, index: int) -> Address | None:
        """Return where a server is; None: it is not known."""
        return self._found[index]

    def reachable(self) -> list[int]:
        """Return the servers whose addresses are known."""
        return [index for index, found in enumerate(self._found) if found is not None]

    def index_of(self, address: Address) -> int | None:
        """Return which server has an address; None: none."""
        for index, found in enumerate(self._found):
            if found is not None and found[:2] == address[:2]:
                return index
        return None

    def close(self) -> None:
        """End the thread, soon."""
        self._closed.set()

    def _find(self, index: int) -> Address | None:
        host, port = request_address(self.names[index])
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):  # a name with an empty or too long part is the latter
            return None
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        for family, _, _, _, address in found:
            if family == self.family:
                return address
            if family == socket.AF_INET:
                return f"::ffff:{address[0]}", port, 0, 0
        return None

    def _run(self) -> None:
        wait_s, said = RETRY_S, False
        while not self._closed.is_set():
            for index, found in enumerate(self._found):
                if found is None:
                    self._found[index] = self._find(index)
            missing = [name for index, name in enumerate(self.names) if not self._found[index]]
            if missing and not said:
                said = True
                _log.warning(
                    "request servers are not found: %s; the others are asked, and they are looked "
                    "up again",
                    ", ".join(missing),
                )
            if not missing or self._closed.wait(wait_s):
                return
            wait_s = min(2 * wait_s, RETRY_MAX_S)


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    except OSError:
        return False
    return True


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
        group: MoldGroup,
        network: Network = MACHINE,
    ) -> None:
        super().__init__(endpoint, core, line, network)
        self._endpoint = endpoint
        self._group = group
        self._feed = MoldFeed(core, line, endpoint.option("topic", "mold"), group.sessions)

    def open_client(self, session: int) -> "MoldClient":
        """Return what asks the request servers for messages of a session."""
        return MoldClient(self._core, self._feed, session, self._group.servers)

    def take(self, *, shed: bool = False) -> int:
        """Give the core what has come; log sessions that began again."""
        taken = super().take(shed=shed)
        restarts = self._group.sessions.restarts
        while restarts:
            name, head, first = restarts.popleft()
            _log.warning(
                "%s: the session %r, which stood at sequence %d, has begun again, and is at %d: "
                "it is received as a new session",
                self._endpoint, name, head, first,
            )  # fmt: skip
        return taken

    def receive_awake(self) -> bytes | None:
        """Give the core what has come, and return nothing."""
        self.take()
        return None

    def close(self) -> None:
        """Close."""
        self._group.servers.close()
        super().close()

    def _give(self, data: memoryview, segment: int, address: object, *, shed: bool = False) -> None:
        arrival = Arrival(self._network.now_ns(), self._network.wall_ns(), shed)
        for at in range(0, len(data) or 1, segment):
            self._feed.receive(data[at : at + segment], arrival)


class MoldClient:
    """Stands where a TCP publisher's recovery channel has its socket.

    `socket` is None while there is nothing to ask, or no descriptor left. There is no connection.
    """

    refusal = ""
    curve = None

    def __init__(
        self, core: SubscriberCore, feed: MoldFeed, session: int, servers: RequestServers
    ) -> None:
        self._core = core
        self._servers = servers
        self._requests = MoldRequests(feed, session)
        place = f"the request servers {', '.join(servers.names)}: requests cannot be sent"
        self._rarely = Rarely()
        self._unsent = Trouble(place, "other servers are asked, too")
        self.socket: socket.socket | None = None
        self.malformed = 0

    def send(self, frame: bytes) -> bool:
        """Ask for what a NACK asks for."""
        requests = self._requests
        requests.send(frame, self._servers.reachable(), now_ns=_now_ns())
        self._flush()
        while requests.silenced:
            server = requests.silenced.popleft()
            if self._rarely.is_due():
                _log.warning(
                    "the request server %s does not answer; the next one is asked, if there is any",
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
                self._core.reject(str(error))
                continue
            self._flush()
            if frame is not None:
                return frame
        return None

    def fileno(self) -> int:
        """Return the descriptor of its socket; -1: it has none."""
        return -1 if self.socket is None else self.socket.fileno()

    def has_message(self) -> bool:
        """Return False: its descriptor stays readable as long as there is something."""
        return False

    def reconnect(self, *, follow: bool = False) -> None:
        """Do nothing."""

    def check(self) -> bool:
        """Return False: nobody refuses it."""
        return False

    def has_returned(self) -> bool:
        """Return False."""
        return False

    def last_byte_ns(self, now_ns: int) -> int | None:
        """Return None."""
        return None

    @property
    def endpoint(self) -> str:
        """The request servers."""
        return ", ".join(self._servers.names)

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
                    self._unsent.over()
            except BlockingIOError:
                pass  # it is asked for again, and of another server
            except OSError as error:
                self._unsent.note(error)

    def _open(self) -> socket.socket:
        made = socket.socket(self._servers.family, socket.SOCK_DGRAM)
        made.setblocking(False)
        if self._servers.family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return made
