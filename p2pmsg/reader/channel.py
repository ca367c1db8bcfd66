"""The sockets of a range reader: who publishes at an endpoint, and a channel to ask it on."""

import time
from collections import deque
from collections.abc import Callable
from socket import socket as UdpSocket
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

import zmq

import transports
from p2pmsg import control, wire
from p2pmsg.driver.lifecycle import zmq_context
from p2pmsg.errors import ClosedError, ConfigError, translated
from p2pmsg.multicast import datagram
from p2pmsg.reader.sessions import GroupMembers, Presence, RelayList, SessionEntry
from p2pmsg.security.use import curve_client
from p2pmsg.sync.key_watch import EVERY_NS, Connecting, KeyWatch
from p2pmsg.sync.unanswered import Unanswered
from p2pmsg.wire import Frame, FrameError, Kind
from transports.endpoint import host_of
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from p2pmsg.security.settings import Security

MS: Final = 1_000_000
SILENCE_NS: Final = 200 * MS
"""After so long without an answer one looks whether another session is at the endpoint."""
_QUEUE_FRAMES: Final = 64
FRAME_BYTES_MAX: Final = 16 * 2**20
"""The largest frame that a reader takes, in bytes, unless another is given."""
_TRAINS_PER_CALL: Final = 64
_HEARD_MAX: Final = 64

PeerSocket = zmq.Socket[bytes] | UdpSocket


class WelcomeLine:
    """Stands where a range reader has its socket for welcomes and heartbeats.

    Attributes:
        host: where the frame came from that `receive` returned last.
        socket: for pollers only.

    """

    def __init__(self, endpoint: transports.Endpoint) -> None:
        self._udp = transports.UdpReceiver(endpoint)
        self._heard: deque[tuple[bytes, str]] = deque(maxlen=_HEARD_MAX)
        self._prefixes: list[bytes] = []
        self.socket = self._udp.socket
        self.connect, self.reconnect = self._udp.connect, self._udp.reconnect
        self.close = self._udp.close
        self.host = endpoint.host

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


class Fetch(Protocol):
    """Takes what comes for one range."""

    def take_frame(self, frame: Frame, now_ns: int) -> None:
        """Take messages."""

    def take_refusal(self, body: control.Refused, now_ns: int) -> None:
        """Take what is not there any more."""


class RangeChannel:
    """Not thread-safe.

    Attributes:
        endpoint: of the publisher.
        publisher: who is there; None until it is known. At a relay, whose session is read.
        relay: what the relay serves that is there; None: it is none.
        group: who publishes to a group; None: it is no group, and one only is there.
        wanted: the session to be read at a relay or of a group; None: the only one, or the first.
        invalid: frames that were dropped because they were malformed.
        received: how many replies came.
        keys: what is to be raised of refused connections.
        frame_bytes_max: as it was given.
        fetches: those under way, by session and topic; each passes on what belongs to another.

    Args:
        endpoint: of the publisher.
        name: of a group's publisher, where only that one is to be met.
        timeout_ns: how long a caller waits for an answer, if it does: after a quarter of it one
            looks who is there that gives none. Default None: after 5 s.
        security: keys for both connections; a publisher has one key. Default None: open.
        frame_bytes_max: the largest frame that is taken, in bytes. Default 16 MiB.

    """

    def __init__(
        self,
        endpoint: transports.Endpoint,
        name: str = "",
        *,
        timeout_ns: int | None = None,
        security: "Security | None" = None,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.endpoint = endpoint
        self.frame_bytes_max = frame_bytes_max
        if security is not None and endpoint.is_datagram:
            raise ConfigError("endpoint", "tcp:// or ipc:// with security", str(endpoint))
        self._security = security
        self._curve = curve_client(security, endpoint)
        self.keys = KeyWatch()
        self._first_ns = None if timeout_ns is None else timeout_ns // 4
        self._unanswered: Unanswered | None = None
        self._has_answered = False
        self._announced_ns = -1
        self._asked_ns: int | None = None
        self._sealed = ""
        self.group: GroupMembers | None = None
        if endpoint.is_datagram:
            self.group = GroupMembers(name)
        self.publisher: Presence | None = None
        self.relay: RelayList | None = None
        self.wanted: int | None = None
        self._relay_at: transports.Endpoint | None = None
        self._served: tuple[dict[int, SessionEntry], dict[int, Presence]] = {}, {}
        self.invalid = self.received = 0
        self.fetches: WeakValueDictionary[tuple[int, str], Fetch] = WeakValueDictionary()
        self._line: transports.ZmqReceiver | WelcomeLine | None = None
        self._client: transports.ZmqRecoveryClient | None = None
        self.closed = False

    def check_open(self) -> None:
        """Raise `ClosedError` if it is closed."""
        if self.closed:
            raise ClosedError("the range reader")

    @property
    def found(self) -> str:
        """Who is there that cannot be asked, or sends no welcome; "" where nothing is known.

        With security also why a connection was refused.
        """
        if self._sealed:
            return self._sealed
        for one in self._connections():
            if one.refusal:
                return one.refusal
        return "" if self._unanswered is None else self._unanswered.found[0]

    def check_answer(self, now_ns: int) -> None:
        """Say who is at the endpoint that sends no welcome, when that is due."""
        watch = self._unanswered
        if watch is not None and now_ns >= watch.next_ns:
            watch.check([self._has_answered], [self.invalid], now_ns)
            self.keys.note(watch.take_closed())

    def check_keys(self, now_ns: int) -> None:
        """Check the handshakes, with security, and connect again where one was refused."""
        if self._security is not None:
            self.keys.check(self._connections(), now_ns)

    def _connections(self) -> list[Connecting]:
        both = self._line, self._client
        return [each for each in both if each is not None and not isinstance(each, WelcomeLine)]

    def close(self) -> None:
        """Close the sockets; a second call does nothing."""
        for socket in (self._line, self._client):
            if socket is not None:
                socket.close()
        self.forget()

    def cancel(self) -> None:
        """Let what waits raise `ClosedError`; from any thread. `close` closes the sockets."""
        self.closed = True

    def forget(self) -> None:
        """Be closed, without touching sockets that belong to the parent process."""
        self.closed = True
        self._line = self._client = None

    def address(self, text: str) -> transports.Endpoint:
        """Return where to ask for ranges, by what the publisher announced."""
        with translated():
            address = transports.parse_endpoint(text)
            if self.endpoint.has_port:
                line = self._line
                host = line.host if isinstance(line, WelcomeLine) else self.endpoint.host
                address = address.reached_by(host)
            if address.scheme not in ("tcp", "ipc", "inproc"):
                raise transports.EndpointError(text, "scheme", "it is not one of ZeroMQ's")
            return address.require_connectable()

    def meet(self, publisher: Presence) -> None:
        """Connect to the recovery channel of `publisher`."""
        self._connect(publisher.recovery)
        self.publisher, self.relay = publisher, None

    def _connect(self, address: transports.Endpoint) -> None:
        former, self._client = self._client, None
        if former is not None:
            former.close()
        # Where this fails nobody is asked; the next welcome leads here again.
        self.publisher = self.relay = None
        client = transports.ZmqRecoveryClient(
            address, context=zmq_context(), queue_frames=_QUEUE_FRAMES,
            frame_bytes_max=self.frame_bytes_max,
            curve=curve_client(self._security, address) if address.key else self._curve,
        )  # fmt: skip
        client.connect()
        self._client = client

    def _meet_relay(self, relay: int, address: transports.Endpoint) -> None:
        if self.relay is None or (self.relay.relay, self._relay_at) != (relay, address):
            self._connect(address)
            self.publisher, self.relay, self._relay_at = None, RelayList(relay), address

    def choose(self, session: int) -> None:
        """Read a session, at a relay or of a group; elsewhere see whether it is there by now."""
        if self.group is not None and self.wanted != session:
            self.group.begin(now_ns=time.monotonic_ns())
        self.wanted = session
        self._settle()
        peer = self.publisher
        if self.group is not None and (peer is None or peer.session != session):
            self.publisher = None
            self.listen()
        elif self.relay is None and peer is not None and peer.session != session:
            self.listen()

    def _settle(self) -> None:
        """Take the session at the relay that is wanted, or the only one."""
        relay = self.relay
        if relay is None or self._relay_at is None:
            return
        wanted = self.wanted
        if wanted is None and relay.is_complete and len(relay.sessions) == 1:
            (wanted,) = relay.sessions
        entry = None if wanted is None else relay.sessions.get(wanted)
        if entry is not None:
            self.publisher = Presence(entry.session, entry.publisher, self._relay_at)

    def presences(self) -> dict[int, Presence]:
        """Return who can be asked here, by session: all that a relay serves, or a publisher."""
        relay = self.relay
        if relay is None or self._relay_at is None:
            return {} if self.publisher is None else {self.publisher.session: self.publisher}
        if self._served[0] is not relay.sessions:
            at = self._relay_at
            served = {
                entry.session: Presence(entry.session, entry.publisher, at)
                for entry in relay.sessions.values()
            }
            self._served = relay.sessions, served
        return self._served[1]

    def ask_sessions(self) -> None:
        """Ask a relay for its sessions, if that is due."""
        request = None if self.relay is None else self.relay.request()
        if request is not None:
            self.send(request)

    @property
    def sockets(self) -> list[PeerSocket]:
        """What may have something to read; for pollers."""
        return [each.socket for each in (self._line, self._client) if each is not None]

    def follow(self, prefix: bytes) -> None:
        """Have frames that begin with `prefix` come over the data path, too; see `listen`."""
        self.listen()
        assert self._line is not None
        self._line.subscribe(prefix)

    def listen(self, take: Callable[[Frame], None] | None = None) -> None:
        """Read WELCOMEs; each new connection to the endpoint gets one. `take` gets the rest."""
        if self._line is None:
            if self.endpoint.is_datagram:
                self._line = WelcomeLine(self.endpoint)
                if self.group is not None:
                    self.group.begin(now_ns=time.monotonic_ns())
            else:
                self._line = transports.ZmqReceiver(
                    self.endpoint, context=zmq_context(), queue_frames=_QUEUE_FRAMES,
                    curve=self._curve,
                )  # fmt: skip
            self._line.subscribe(wire.control_prefix(Kind.WELCOME))
            self._await_answer()
            self._line.connect()
        while (data := self._line.receive()) is not None:
            try:
                frame = Frame(data)
                if take is not None and frame.kind != Kind.WELCOME:
                    take(frame)
                if frame.flags & wire.FLAG_CLOSING or frame.kind != Kind.WELCOME:
                    continue
                welcome = control.read_body(frame, control.Welcome)
                address = self.address(welcome.recovery).without_key()
                self._on_answer()
                if frame.flags & wire.FLAG_SEALED:
                    self._on_sealed(welcome.name)
                    continue
                if frame.flags & wire.FLAG_RELAY:
                    self._meet_relay(frame.session, address)
                    continue
                presence = Presence(frame.session, welcome.name, address)
                if self.group is None:
                    self._meet_if_new(presence)
                else:
                    self.group.note(presence, welcome.age_ms, now_ns=time.monotonic_ns())
            except (FrameError, ConfigError, transports.EndpointError):
                self.invalid += 1
        self._meet_member()
        self.ask_sessions()

    def check_again(self, since_ns: int) -> bool:
        """Read WELCOMEs, and have one sent again if the last was asked for before `since_ns`.

        The publisher that is known may have ended, and the WELCOME of the next be on its way.

        Returns:
            Whether what is known of the endpoint is so new. Of a group, which is announced all the
            time, always.

        """
        self.listen()
        if self.group is not None or self._announced_ns >= since_ns:
            return True
        if self._asked_ns is None:
            assert self._line is not None
            self._asked_ns = time.monotonic_ns()
            self._line.reconnect()
        return False

    def _await_answer(self) -> None:
        self._asked_ns = time.monotonic_ns()
        self._unanswered = Unanswered(
            "publisher", [self.endpoint], now_ns=time.monotonic_ns(), first_ns=self._first_ns,
            has_keys=self._security is not None,
        )  # fmt: skip

    def _on_answer(self) -> None:
        if self._asked_ns is not None:
            self._announced_ns, self._asked_ns = self._asked_ns, None
        if not self._has_answered and self._unanswered is not None:
            self._has_answered = True
            self._unanswered.answered(0)

    def _on_sealed(self, name: str) -> None:
        """Say, once, that who answers cannot be asked."""
        if not self._sealed:
            self._sealed = (
                f"publisher {name!r} sends sealed datagrams, and answers only who has keys: "
                "range readers have none for a group. Read it with Subscriber(security=…)"
            )
            _log.warning("%s: %s", self.endpoint, self._sealed)

    def _meet_member(self) -> None:
        """Take the publisher of a group that is wanted; with none, the known one stays."""
        if self.group is None:
            return
        presence = self.group.current(self.wanted, now_ns=time.monotonic_ns())
        if presence is not None:
            self._meet_if_new(presence)

    def _meet_if_new(self, presence: Presence) -> None:
        # One that restarted on its log has the same session, and another recovery endpoint.
        known = self.publisher
        new = presence.session, presence.recovery
        if known is None or (known.session, known.recovery) != new:
            self.meet(presence)

    def send(self, frame: bytes) -> None:
        """Send a request; what has no space is dropped, and asked for again by the caller."""
        if self._client is not None:
            self._client.send(frame)

    def receive(self) -> bytes | None:
        """Return the next reply, or None where there is none yet."""
        self.check_open()
        if self._client is None:
            return None
        while True:
            # Before it: one that Ctrl-C took away would count as on its way, and not come again.
            self.received += 1
            data = self._client.receive()
            if data is None:
                self.received -= 1
            if data is None or self.relay is None:
                return data
            try:
                frame = Frame(data)
                if frame.kind != Kind.SESSIONS:
                    return data
                self.relay.take(frame)
                self._settle()
                self.ask_sessions()
            except FrameError:
                self.invalid += 1

    def last_byte_ns(self, now_ns: int) -> int | None:
        """Return when the last byte of an answer came, whole or not; None where it is not known.

        It is, once the connection was made again by `reconnect`.
        """
        return None if self._client is None else self._client.last_byte_ns(now_ns)

    def poll(self, until_ns: int) -> None:
        """Wait for a frame until that time, at least 1 ms; with security, for 50 ms at most.

        `AuthenticationError` where a connection was refused.
        """
        now_ns = time.monotonic_ns()
        self.check_answer(now_ns)
        if self._security is not None:
            self.check_keys(now_ns)
            until_ns = min(until_ns, now_ns + EVERY_NS)
        self.keys.raise_refused()
        poller = zmq.Poller()
        for each in self.sockets:
            poller.register(each, zmq.POLLIN)
        poller.poll(max(1, -((time.monotonic_ns() - until_ns) // MS)))

    def reconnect(self, *, learn: bool = False) -> None:
        """Connect again to a publisher that is silent; ZeroMQ gives up some permanently.

        With `learn`, `last_byte_ns` will know the connection, until `end_learning`.
        """
        if self._line is not None:
            self._line.reconnect()
        if self._client is not None:
            self._client.reconnect(learn=learn)

    def end_learning(self) -> None:
        """Follow the connection no further, while nobody waits."""
        if self._client is not None:
            self._client.end_learning()
