"""The sockets with which a range reader, or a heads watch, asks at one place."""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg import wire
from p2pmsg.errors import ConfigError
from p2pmsg.multicast import datagram
from p2pmsg.peers.network import Network
from p2pmsg.ranges.place import FRAME_BYTES_MAX, Place
from p2pmsg.security.key_watch import EVERY_NS, KeyWatch
from p2pmsg.security.use import curve_client
from p2pmsg.unanswered import Unanswered
from p2pmsg.wire import Frame, FrameError, Kind
from transports.endpoint import host_of

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

_QUEUE_FRAMES: Final = 64
_FRAMES_MAX: Final = 1000
"""How many frames are taken from one socket in a turn."""
_TRAINS_PER_CALL: Final = 64
_HEARD_MAX: Final = 64
_REPORTS_NS: Final = 10_000_000_000
"""How often what is reported of connections is read at least: it has no bound."""
_CLIENTS_MAX: Final = 64
"""Recovery connections, of a group's publishers; for a further one the oldest is closed."""


class WelcomeLine:
    """Stands where a range reader has its socket for welcomes and heartbeats, of a group."""

    def __init__(self, udp: transports.GroupReceiver, host: str) -> None:
        self._udp = udp
        self._heard: deque[tuple[bytes, str]] = deque(maxlen=_HEARD_MAX)
        self._prefixes: list[bytes] = []
        self.connect, self.reconnect = udp.connect, udp.reconnect
        self.close = udp.close
        self.host = host

    def fileno(self) -> int:
        """Return what becomes readable when something has come."""
        return self._udp.fds()[0]

    def subscribe(self, prefix: bytes) -> None:
        """Take frames that begin with `prefix`; the socket gets all of the group's."""
        self._prefixes.append(prefix)

    def receive(self) -> bytes | None:
        """Return the next frame that was subscribed to, or None; `host` is where it came from."""
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


class RangeChannel:
    """One place's data path, for welcomes and what else is followed, and its recovery channels.

    Args:
        place: who is there.
        network: opens the sockets.
        security: keys for both connections; a publisher has one key. Default None: open.
        prefixes: of frames that are to come over the data path besides welcomes.
        first_ns: when to look the first time who is there that sends no welcome. Default None:
            after 5 s.
        follows: whether connections that are made again are followed: see `last_byte_ns`.

    Attributes:
        place: as it was given.
        keys: what is to be raised of refused connections.
        fds: the descriptors of the sockets; another tuple where they are others.

    """

    def __init__(
        self,
        place: Place,
        network: Network,
        *,
        security: "Security | None" = None,
        prefixes: Iterable[bytes] = (),
        first_ns: int | None = None,
        follows: bool = False,
    ) -> None:
        if security is not None and place.endpoint.is_datagram:
            raise ConfigError("endpoint", "tcp:// or ipc:// with security", str(place.endpoint))
        self.place = place
        self.keys = KeyWatch()
        self.fds: tuple[int, ...] = ()
        self._network = network
        self._security = security
        self._curve = curve_client(security, place.endpoint)
        self._prefixes = [wire.control_prefix(Kind.WELCOME), *prefixes]
        self._first_ns, self._follows = first_ns, follows
        self._unanswered: Unanswered | None = None
        self._line: transports.DataReceiver | WelcomeLine | None = None
        self._clients: dict[transports.Endpoint, transports.RecoveryClient] = {}
        self._former: list[transports.DataReceiver | WelcomeLine | transports.RecoveryClient] = []
        self._looks_again = False

    @property
    def found(self) -> str:
        """Who is there that cannot be asked, or sends no welcome; "" where nothing is known.

        With security also why a connection was refused.
        """
        if self.place.sealed:
            return self.place.sealed
        for one in self._connections():
            if one.refusal:
                return one.refusal
        if self._unanswered is None or self.place.has_answered:
            return ""
        return self._unanswered.found[0]

    def turn(self, now_ns: int) -> list[Frame]:
        """Connect as the place wants it, take what has come, and send.

        Returns:
            The frames that are not the place's own.

        """
        for former in self._former:
            former.close()
        self._former.clear()
        self._looks_again = False
        place = self.place
        self._connect(now_ns)
        found: list[Frame] = []
        if (line := self._line) is not None:
            for data in self._read(line):
                host = line.host if isinstance(line, WelcomeLine) else place.endpoint.host
                self._take_heard(data, host, now_ns, found)
        for address, client in self._clients.items():
            if replies := self._read(client):
                place.on_replies(address, len(replies))
            for data in replies:
                self._take_reply(data, now_ns, found)
        place.tick(now_ns)
        self.flush()
        self._check(now_ns)
        return found

    def next_deadline_ns(self, now_ns: int) -> int:
        """Return when the next turn is due."""
        place = self.place
        if (
            self._looks_again
            or place.outbox
            or place.is_to_renew
            or (place.listens and self._line is None)
        ):
            return now_ns
        due_ns = 2**63 if self._unanswered is None else self._unanswered.next_ns
        if self._security is not None:
            due_ns = min(due_ns, now_ns + EVERY_NS)
        elif self._follows:
            due_ns = min(due_ns, now_ns + _REPORTS_NS)
        return due_ns if place.relay is None else min(due_ns, place.relay.due_ns)

    def flush(self) -> None:
        """Send what there is to ask; what has no space is dropped, and asked for again."""
        outbox = self.place.outbox
        while outbox:
            address, request = outbox.popleft()
            client = self._clients.get(address) or self._open_client(address)
            client.send(request)
            # Sending takes note of what has come, and the descriptor is silent then.
            self._looks_again |= client.has_message()

    def raise_refused(self) -> None:
        """Raise `AuthenticationError` where a connection was refused."""
        self.keys.raise_refused()

    def last_byte_ns(self, address: transports.Endpoint, now_ns: int) -> int | None:
        """Return when the last byte of an answer came, whole or not; None where it is not known.

        It is, once the connection was made again.
        """
        client = self._clients.get(address)
        return None if client is None else client.last_byte_ns(now_ns)

    def reset(self) -> None:
        """Have other sockets; these are closed by the next turn."""
        self._former += self._clients.values()
        if self._line is not None:
            self._former.append(self._line)
        self._line = self._unanswered = None
        self._clients.clear()
        self.fds = ()

    def close(self) -> None:
        """Close the sockets."""
        self.reset()
        for each in self._former:
            each.close()
        self._former.clear()

    def _connections(self) -> list[transports.DataReceiver | transports.RecoveryClient]:
        line = self._line
        lines = [] if line is None or isinstance(line, WelcomeLine) else [line]
        return [*lines, *self._clients.values()]

    def _read(
        self, socket: "transports.DataReceiver | WelcomeLine | transports.RecoveryClient"
    ) -> list[bytes]:
        found: list[bytes] = []
        while (data := socket.receive()) is not None:
            found.append(data)
            self.place.on_change()
            if len(found) >= _FRAMES_MAX:
                self._looks_again = True
                break
        return found

    def _take_heard(self, data: bytes, host: str, now_ns: int, found: list[Frame]) -> None:
        place = self.place
        try:
            frame = Frame(data)
            if frame.kind == Kind.WELCOME:
                place.take_welcome(frame, host, now_ns)
            elif not frame.flags & wire.FLAG_CLOSING:
                found.append(frame)
        except (FrameError, ConfigError, transports.EndpointError):
            place.refuse()

    def _take_reply(self, data: bytes, now_ns: int, found: list[Frame]) -> None:
        place = self.place
        try:
            frame = Frame(data)
            if frame.kind == Kind.SESSIONS:
                place.take_sessions(frame, now_ns)
            else:
                found.append(frame)
        except FrameError:
            place.refuse()

    def _connect(self, now_ns: int) -> None:
        place = self.place
        renewals = place.take_renewals()
        if place.listens and self._line is None:
            self._open_line(now_ns)
        elif place.endpoint in renewals and self._line is not None:
            self._line.reconnect()
        for address, client in list(self._clients.items()):
            if not place.is_here(address):
                self._close_client(address)
            elif address in renewals:
                client.reconnect(follow=self._follows)

    def _open_line(self, now_ns: int) -> None:
        place = self.place
        line: transports.DataReceiver | WelcomeLine
        if place.endpoint.is_datagram:
            line = WelcomeLine(self._network.group_receiver(place.endpoint), place.endpoint.host)
        else:
            line = self._network.receiver(
                place.endpoint, queue_frames=_QUEUE_FRAMES,
                frame_bytes_max=FRAME_BYTES_MAX, curve=self._curve, follows=False,
            )  # fmt: skip
        for prefix in self._prefixes:
            line.subscribe(prefix)
        try:
            line.connect()
        except BaseException:
            line.close()
            raise
        self._line = line
        self._unanswered = Unanswered(
            "publisher", [place.endpoint], now_ns=now_ns, first_ns=self._first_ns,
            has_keys=self._security is not None, in_memory=self._network.in_memory,
        )  # fmt: skip
        self._on_sockets()

    def _open_client(self, address: transports.Endpoint) -> transports.RecoveryClient:
        if len(self._clients) >= _CLIENTS_MAX:
            self._close_client(next(iter(self._clients)))
        client = self._network.recovery_client(
            address, queue_frames=_QUEUE_FRAMES, frame_bytes_max=self.place.frame_bytes_max,
            curve=curve_client(self._security, address) if address.key else self._curve,
        )  # fmt: skip
        try:
            client.connect()
        except BaseException:
            client.close()
            raise
        self._clients[address] = client
        self.place.on_connection(address)
        self._on_sockets()
        return client

    def _close_client(self, address: transports.Endpoint) -> None:
        # By the next turn: a driver may look at its descriptor until then.
        self._former.append(self._clients.pop(address))
        self._on_sockets()

    def _on_sockets(self) -> None:
        self._looks_again = True
        lines = [] if self._line is None else [self._line]
        self.fds = tuple(each.fileno() for each in (*lines, *self._clients.values()))

    def _check(self, now_ns: int) -> None:
        """Say who is at the endpoint that sends no welcome; see to handshakes; when that is due."""
        place, watch = self.place, self._unanswered
        if watch is not None and now_ns >= watch.next_ns:
            watch.check([place.has_answered], [place.invalid], now_ns)
            self.keys.note(watch.take_closed())
        if self._security is not None:
            self.keys.check(self._connections(), now_ns)
        elif self._follows:
            for client in self._clients.values():
                client.check()  # it reads what was reported
        if self.keys.has_error:
            place.on_change()
