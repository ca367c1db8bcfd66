"""What all ZeroMQ sockets here have in common: options, binding, connecting, closing."""

import errno
import os
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import zmq
from zmq.backend import zmq_poll

from transports.binding import IpcFile, on_bound, on_closed, translate_bind, wait_for
from transports.connections import Connections
from transports.context import Context, Socket, on_linger
from transports.endpoint import Endpoint, as_endpoint, is_address
from transports.errors import AddressError, EndpointError, TransportError, translate
from transports.platform import tcp_state, unsent_bytes
from transports.progress import ByteProgress

if TYPE_CHECKING:
    from transports.connect_watch import ConnectWatch
    from transports.curve import CurveClient, CurveServer
    from transports.zap import ZapDomain

    Curve = CurveServer | CurveClient

QUEUE_FRAMES: Final = 1000
"""ZeroMQ's own default high-water mark."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Large enough for a frame of any sensible message, small enough that 64 peers cannot fill a GB."""
SILENCE_MS: Final = 5000
"""How long what was sent may stay unacknowledged, or find no space at the peer."""

HANDSHAKE_MS: Final = 10_000
"""How long who connects to a bound socket may take to say that it speaks ZeroMQ's protocol."""

_CURVE_BYTES: Final = 64
"""More than CURVE adds to a frame: a header of 9 bytes, a nonce of 8, a tag of 16, flags of 1."""
_HANDSHAKE_BYTES: Final = 1024
"""More than the largest part of a CURVE handshake takes, which MAXMSGSIZE is for, too."""
_POLLIN: Final = int(zmq.POLLIN)
_SCHEMES: Final = ("tcp", "ipc", "inproc")
_OPTIONS: Final = {
    zmq.LINGER: 0,
    # For middleboxes that forget idle connections, and peers that cannot answer heartbeats.
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
    # Back quickly from a cut, and not in step with every other peer for long.
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 250,
    # The system sends another SYN after 1 s, and then ever more seldom: its own limit is minutes.
    zmq.CONNECT_TIMEOUT: 2000,
}


class ZmqSocket:
    """A socket with its endpoint; the root of the ZeroMQ transports.

    Args:
        endpoint: where it binds or connects.
        context: the ZeroMQ context, usually `context()`.
        kind: the type of the socket.
        queue_frames: the high-water mark of each peer's queue, both ways, in frames. This and the
            other bounds are at least 1: ZeroMQ takes 0 or -1 for no limit.
        frame_bytes_max: the largest frame that is received; a peer that sends a larger one is
            disconnected, before memory is set aside for it.
        send_frames, receive_frames: the mark of one way alone. Default: `queue_frames`.
        silence_ms: how long a peer may be silent before its connection, and its queue, is given
            up. Default 5000. A receiver that leaves its full queue alone for this long also counts
            as silent: ZeroMQ stops reading from its connection. It connects again when it reads on.
        curve: keys: a `CurveServer` for a socket that binds, a `CurveClient` for one that connects.
            Default None: no encryption, and anybody may connect.

    Attributes:
        socket: the pyzmq socket, for pollers only.
        domain: who is admitted and who was refused, where it is bound with `curve`; else None.

    Raises:
        EndpointError: the endpoint is not well-formed, not tcp, ipc or inproc, or one cannot
            connect to it.
        AddressError: it could not be bound.

    """

    domain: "ZapDomain | None" = None

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        kind: int,
        queue_frames: int,
        frame_bytes_max: int,
        send_frames: int | None = None,
        receive_frames: int | None = None,
        silence_ms: int = SILENCE_MS,
        curve: "Curve | None" = None,
    ) -> None:
        self._endpoint = as_endpoint(endpoint)
        if self._endpoint.scheme not in _SCHEMES:
            reason = f"scheme {self._endpoint.scheme!r} is not one of ZeroMQ's"
            raise EndpointError(str(self._endpoint), "scheme", reason)
        if curve is not None and self._endpoint.scheme == "inproc":
            # libzmq has no handshake there: it would be neither encrypted nor checked.
            reason = "inproc:// stays within the process, and takes no keys"
            raise EndpointError(str(self._endpoint), "scheme", reason)
        self._curve = curve
        self._context = context
        self._ipc_file: IpcFile | None = None
        self._bound = False
        self._bound_to: Endpoint | None = None
        self._connections: Connections | None = None
        try:
            self.socket: Socket = context.socket(kind)
        except zmq.ZMQError as error:
            raise translate(error, self.endpoint) from error
        self.socket.set(zmq.SNDHWM, send_frames or queue_frames)
        self.socket.set(zmq.RCVHWM, receive_frames or queue_frames)
        self.socket.set(zmq.MAXMSGSIZE, frame_bytes_max)
        # A frozen peer, or a network that went dark, must not hold its queue for ever. Not by ZMTP
        # heartbeats: a peer whose receive queue is full when its connection is reset aborts the
        # process at the next PING, sent or received (libzmq 4.3.5, issues 3937, 4364, 4767).
        self.socket.set(zmq.TCP_MAXRT, silence_ms)
        if self._endpoint.is_ipv6:
            # Only then: with it, ZeroMQ leads "localhost" to ::1 and misses a peer on 127.0.0.1.
            self.socket.set(zmq.IPV6, 1)
        for option, value in _OPTIONS.items():
            self.socket.set(option, value)
        if curve is not None:
            size = max(frame_bytes_max, _HANDSHAKE_BYTES) + _CURVE_BYTES
            self.socket.set(zmq.MAXMSGSIZE, size)

    @property
    def endpoint(self) -> str:
        """The endpoint as text; once bound, with the port that the system picked."""
        return str(self._endpoint)

    @property
    def refused_by_key(self) -> int:
        """How many connections were refused: an unknown key, none, or for another server's."""
        if self.domain is None or self._connections is None:
            return 0
        return self.domain.refused + self._connections.without_key

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the context was ended."""
        return bool(self.socket.closed)

    def close(self, linger_ms: int = 0) -> None:
        """Close the socket; it returns at once and may be called again.

        Args:
            linger_ms: how long frames in the queues may still take to leave, after the return and
                at the process's exit. Default 0: they are dropped.

        """
        if self._connections is not None:
            self._connections.close()
        if self.socket.closed:
            return
        linger_ms = max(linger_ms, 0)
        if linger_ms:
            on_linger(self._context, linger_ms)
        if self._bound:
            on_closed(self._endpoint)
        if self.domain is not None:
            self.domain.close()
        self.socket.close(linger=linger_ms)
        if self._ipc_file is not None:
            self._ipc_file.remove()

    @property
    def bound_to(self) -> Endpoint:
        """The endpoint where it is bound, with the address that its name had then."""
        return self._endpoint if self._bound_to is None else self._bound_to

    def fileno(self) -> int:
        """Return the descriptor that ZeroMQ signals on; readable does not mean a message."""
        return int(self.socket.get(zmq.FD))

    def _watch_connections(self) -> Connections:
        """Count who connects, from before it is bound."""
        self.socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self._connections = Connections(self.socket, self._context, secure=self._curve is not None)
        return self._connections

    def has_message(self) -> bool:
        """Whether there is something to receive.

        Being refused by `recv` takes three times as long: 3.4 µs, and 40 with cold caches.
        """
        return bool(int(self.socket.get(zmq.EVENTS)) & _POLLIN)

    def wait(self, timeout_ms: int) -> bool:
        """Wait for a message at most so long; return whether there is one."""
        return bool(self.socket.poll(timeout_ms, zmq.POLLIN))

    def _bind(self) -> None:
        """Bind, and learn the port; a socket that cannot be bound is closed."""
        try:
            self._require_keys()
            if self._endpoint.scheme == "ipc":
                self._ipc_file = IpcFile(self._endpoint)
                self.socket.set(zmq.USE_FD, self._ipc_file.fd)
            address = _bind_address(self._endpoint)
            self._bind_socket(address)
            if self._ipc_file is not None:
                self._ipc_file.given_away()
        except BaseException as error:
            # pyzmq runs the handlers of signals after it has bound, too, and Ctrl-C's raises.
            if self._ipc_file is not None and self._has_bound():
                self._ipc_file.given_away()
            self.close()
            if isinstance(error, zmq.ZMQError):
                raise translate_bind(error, self._endpoint) from error
            raise
        if self._endpoint.scheme == "tcp":
            bound = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
            self._endpoint = self._endpoint.with_port(int(bound.rpartition(":")[2]))
            if self.domain is not None:
                self.domain.endpoint = self.endpoint
            self._bound_to = as_endpoint(address).with_port(self._endpoint.port)
        self._bound = True
        on_bound(self._endpoint)

    def _require_keys(self) -> None:
        """Have connections authenticated, if there are keys."""
        if self._endpoint.key:
            reason = "a key is pinned where one connects; what binds has the key of its own"
            raise EndpointError(str(self._endpoint), "option", reason)
        if self._curve is None:
            return
        from transports.curve import CurveServer
        from transports.zap import open_domain

        if not isinstance(self._curve, CurveServer):
            raise ValueError("curve of a socket that binds is a CurveServer")
        self.domain = open_domain(self._context, self._curve, self.endpoint)
        self.domain.set_options(self.socket)

    def _has_bound(self) -> bool:
        """Whether ZeroMQ has bound the socket, and so polls the descriptor that it was given."""
        return bool(self.socket.getsockopt_string(zmq.LAST_ENDPOINT))

    def _bind_socket(self, address: str) -> None:
        while True:
            try:
                self.socket.bind(address)
                return
            except zmq.ZMQError as error:
                if error.errno != errno.EADDRINUSE or not wait_for(self._endpoint):
                    raise

    def _error(self, error: zmq.ZMQError) -> TransportError:
        return translate(error, self.endpoint)


class ZmqConnectingSocket(ZmqSocket):
    """A socket that connects.

    With `curve`, `look` has to be called a few times a second.
    """

    _watch: "ConnectWatch | None" = None
    _again_ns = 0
    _returns_seen = 1

    def __init__(self, endpoint: str | Endpoint, *, binds: bool = False, **options: Any) -> None:
        place = as_endpoint(endpoint)
        super().__init__(place if binds else place.require_connectable().without_key(), **options)
        self._connected = False
        self._progress = ByteProgress()
        self._has_come = partial(zmq_poll, [(self.socket, _POLLIN)], 0)
        if self._curve is not None and not binds:
            from transports.connect_watch import ConnectWatch
            from transports.curve import CurveClient

            if not isinstance(self._curve, CurveClient):
                self.socket.close()
                raise ValueError("curve of a socket that connects is a CurveClient")
            self._curve.set_options(self.socket)
            self._watch = ConnectWatch(self.socket, self._context, self.endpoint, self._curve)

    def has_message(self) -> bool:
        """Do as `ZmqSocket.has_message`, without a call of Python's: caches may be cold.

        It lets other threads run meanwhile, which a publisher's would wait for.
        """
        return bool(self._has_come())

    def watch_end(self) -> None:
        """Follow the connection, for `was_ended_here` and `last_byte_ns`; before `connect`.

        Raises:
            TransportError: no descriptor is left for it; the socket is closed then.

        """
        try:
            self._follow()
        except zmq.ZMQError as error:
            self.close()
            raise self._error(error) from error

    def _follow(self) -> None:
        if self._watch is None:
            from transports.connect_watch import ConnectWatch

            self._watch = ConnectWatch(self.socket, self._context, self.endpoint)

    def was_ended_here(self) -> bool:
        """Whether ZeroMQ ended the connection since the last call, and does not connect again.

        It does so where a frame above `frame_bytes_max` came, or what is no frame; 0.2 s later this
        is True, once (2 s later where that was before the handshake). Then `reconnect` is to be
        called. False without `watch_end` or `curve`.
        """
        watch = self._watch
        if watch is None or self._again_ns or self.socket.closed:
            return False
        return watch.was_ended_here()

    def last_byte_ns(self, now_ns: int) -> int | None:
        """Return when the last byte came over the connection, whole frame or not.

        So a large frame is seen to come that takes longer than a peer may be silent. It is to be
        called some times a second while that matters, since only what comes between two calls
        counts, 1 KiB within 2 s at least. None where there was no such byte, or it is not known:
        over ipc and inproc, elsewhere than on Linux, and where neither `watch_end`, `curve` nor
        `reconnect(follow=True)` shows which connection it is.
        """
        fd = self.connection_fd()
        return self._progress.note(None if fd is None else tcp_state(fd), now_ns)

    def is_sending(self) -> bool:
        """Whether bytes that were sent have not arrived yet; False where it is not known."""
        fd = self.connection_fd()
        return fd is not None and bool(unsent_bytes(fd))

    def connection_fd(self) -> int | None:
        """Return the connection's descriptor, which is ZeroMQ's; None where it is not known."""
        if self._watch is None or self.socket.closed:
            return None
        return self._watch.connection_fd()

    @property
    def refusal(self) -> str:
        """Why the last connection was refused, with `curve`; "" where it was not."""
        return "" if self._watch is None else self._watch.refusal

    @property
    def curve(self) -> "CurveClient | None":
        """Its keys, with the pinned key as it is now."""
        return None if self._watch is None else self._watch.curve

    def retry(self) -> None:
        """Connect now, if a refused connection waits to be tried again."""
        if self._watch is not None and self._again_ns:
            due_ns = self._again_ns
            self._watch.renew_key(self.socket)
            try:
                self.connect()
            except AddressError:
                self._again_ns = due_ns  # it is still to be done
                raise

    def check(self) -> bool:
        """Check the handshake; return whether the connection was refused since the last call.

        libzmq gives up a connection that was refused. So it is made again, after 0.1 s, then twice
        as long each time, 2 s at most: it heals when the key is admitted. Without `curve` nothing
        is done.
        """
        watch = self._watch
        if watch is None or self.socket.closed:
            return False
        refused = watch.was_refused()
        if refused:
            self.disconnect()
            self._again_ns = time.monotonic_ns() + watch.wait_ns()
        elif self._again_ns and time.monotonic_ns() >= self._again_ns:
            try:
                self.retry()
            except AddressError as error:  # for lack of something that may be there later
                self._again_ns = time.monotonic_ns() + watch.wait_ns()
                watch.note(f"it cannot be connected to: {error.reason}")
        return refused

    def has_returned(self) -> bool:
        """Whether `look` saw since the last call that it is connected again, not the first time.

        What was on its way when the former connection broke may be lost.
        """
        before = self._returns_seen
        if self._watch is not None:
            self._returns_seen = max(before, self._watch.connections)
        return self._returns_seen != before

    def close(self, linger_ms: int = 0) -> None:
        """Do as `ZmqSocket.close`."""
        if self._watch is not None:
            self._watch.close()
        super().close(linger_ms)

    def connect(self) -> None:
        """Connect, once; a peer that is away is waited for without end.

        It is a step of its own so that the subscriptions can come first: a subscriber that connects
        with them misses nothing in between.

        Raises:
            AddressError: the system cannot make such a connection.

        """
        if self._connected:
            return
        self._again_ns = 0
        try:
            self.socket.connect(self.endpoint)
        except zmq.ZMQError as error:
            if self.socket.closed:
                raise translate(error, self.endpoint) from error
            reason = error.strerror or str(error)
            raise AddressError(self.endpoint, reason, error.errno, "connect to") from error
        self._connected = True

    def reconnect(self, *, follow: bool = False) -> None:
        """Give up the connection and make another; frames not received yet may be lost.

        With `follow`, `last_byte_ns` and `is_sending` know it, unless no descriptor is left for
        that, and the socket is to be looked at now and then: what is reported has no bound.

        ZeroMQ connects again by itself where a connection breaks or falls silent, except in one
        case: after a peer broke the protocol, or sent a frame above `frame_bytes_max`, it gives
        that endpoint up permanently. So call this when `was_ended_here`, when a peer is silent for
        too long, or when a DEALER takes no more frames.
        """
        self.disconnect()
        if follow:
            with suppress(zmq.ZMQError):
                self._follow()
        if self._watch is not None:
            self._watch.renew_key(self.socket)
        self.connect()

    def disconnect(self) -> None:
        """Give up the connection, until `connect`; frames not received yet may be lost."""
        self._again_ns = 0
        if self._watch is not None:
            self._watch.left()
        try:
            self.socket.disconnect(self.endpoint)
        except zmq.ZMQError as error:
            # ENOENT: it was never connected, or ZeroMQ has forgotten it already.
            if error.errno != errno.ENOENT:
                raise self._error(error) from error
        self._connected = False


def source_of(message: zmq.Frame) -> int:
    """Return the descriptor of the connection that a message came over, or -1."""
    try:
        return int(message.get(zmq.SRCFD))
    except zmq.ZMQError:
        return -1  # its connection has ended, or is within the process


def report_subscription(note: zmq.Frame, connections: Connections) -> None:
    """Note which prefix a connection of an XPUB took up, or which one was given up."""
    data = note.bytes
    if data[:1] == b"\1":
        connections.subscribed(source_of(note), data[1:])
    elif data[:1] == b"\0":
        connections.unsubscribed(data[1:])


def user_of(frame: zmq.Frame) -> str:
    """Return the user id of the connection that a frame came over; "" where it has none."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def _bind_address(endpoint: Endpoint) -> str:
    """Return what ZeroMQ binds for `endpoint`.

    ZeroMQ binds addresses and interfaces ("eth0"), but not names: those are looked up here, so that
    "localhost" works on both sides.
    """
    is_given = endpoint.is_wildcard or endpoint.is_ipv6 or is_address(endpoint.host)
    if endpoint.scheme != "tcp" or is_given:
        return str(endpoint)
    import socket as system_socket

    if endpoint.host in {name for _, name in system_socket.if_nameindex()}:
        return str(endpoint)
    try:
        return str(endpoint.with_host(system_socket.gethostbyname(endpoint.host)))
    except OSError as error:
        reason = f"host {endpoint.host!r} is unknown: {os.strerror(error.errno or 0)}"
        if isinstance(error, system_socket.gaierror):
            reason = f"host {endpoint.host!r} is unknown ({error.strerror})"
        raise AddressError(str(endpoint), reason, error.errno) from error
