"""Requests and answers over ZeroMQ: ROUTER to DEALER, one-part frames both ways.

The recovery channel, the work queue, and requests: each is a server, whom its clients ask.
"""

from typing import TYPE_CHECKING, Final

import zmq

from transports.context import Context
from transports.endpoint import Endpoint
from transports.reply_memory import TRACKED_BYTES, ReplyMemory
from transports.zmq_frame import send_frame
from transports.zmq_socket import (
    FRAME_BYTES_MAX,
    QUEUE_FRAMES,
    ZmqConnectingSocket,
    ZmqSocket,
    source_of,
    user_of,
)

if TYPE_CHECKING:
    from transports.curve import CurveClient, CurveServer

REQUEST_BYTES_MAX: Final = 64 * 1024
"""A request names streams and ranges, and has no payload."""

SILENCE_MS: Final = 2000
"""How long a requester's connection may be silent. TCP sends what was lost again after 0.2 s, then
twice as long each time: a network that drops packets for 5 s is back for 5 s more by then."""

REQUESTS_MAX: Final = 1024
"""Requests that wait to be sent: they are small, and a late subscriber has hundreds at once."""
_MILLISECONDS_MAX: Final = 2**31 - 1
_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class ZmqRecoveryServer(ZmqSocket):
    """A bound ROUTER socket: requests in, each with its requester's identity; replies out.

    Attributes:
        malformed: how many requests were dropped because they were not of one part.
        connections: who is connected, and their bound.
        memory: what of large replies is still in the queues, and its bound; None: not counted.
        user: with `curve`, the user id (`CurveServer.admits`) of who sent the request that was
            received last; "" without.

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        queue_frames: int = QUEUE_FRAMES,
        frame_bytes_max: int = REQUEST_BYTES_MAX,
        curve: "CurveServer | None" = None,
        peer_timeout: float | None = None,
        bounds_replies: bool = True,
    ) -> None:
        """Bind.

        Args:
            endpoint: where; port 0 lets the system pick one.
            context: the ZeroMQ context, usually `context()`.
            queue_frames: the high-water mark of each requester's queues, in frames. Default 1000.
            frame_bytes_max: a requester that sends a larger frame is disconnected. Default 64 KiB.
            curve: its keys, and who may connect. Default None: no encryption, and anybody may.
            peer_timeout: the connection of a peer that sends nothing for so many seconds, or a
                tenth longer, is ended. Pings of ZeroMQ's are answered by its own thread, whatever
                the program at the other end does; one that is stopped does not answer. Default
                None: it stands.
            bounds_replies: whether what one requester does not read of large replies is bounded.
                Default True; False where credit, or one answer to a request, is the bound.

        """
        super().__init__(
            endpoint, context=context, kind=zmq.ROUTER, queue_frames=queue_frames,
            frame_bytes_max=frame_bytes_max, curve=curve,
        )  # fmt: skip
        if peer_timeout is not None:
            timeout_ms = min(max(1, round(peer_timeout * 1000)), _MILLISECONDS_MAX)
            self.socket.set(zmq.HEARTBEAT_IVL, max(1, timeout_ms // 10))
            self.socket.set(zmq.HEARTBEAT_TIMEOUT, timeout_ms)
        # A full queue and a peer that is gone are answers and not silent losses.
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.malformed = 0
        self.user = ""
        self._has_users = curve is not None
        self._last_fd = -1
        self.connections = self._watch_connections()
        self._send = super(zmq.Socket, self.socket).send
        self.memory = ReplyMemory() if bounds_replies else None
        self._broken = 0
        self._bind()

    def broke(self) -> bool:
        """Whether a connection broke since the last call."""
        self.connections.update()
        before, self._broken = self._broken, self.connections.broken
        return before != self._broken

    def receive_some(self, count_max: int) -> list[tuple[bytes, bytes]]:
        """Return requests that are there as (requester, frame), oldest first; it never waits.

        The caller updates `connections`. With `curve`, `user` and `end_last` are about the last
        request.
        """
        found: list[tuple[bytes, bytes]] = []
        try:
            while len(found) < count_max and self.has_message():
                request = self._take()
                if request is not None:
                    found.append(request)
        except zmq.Again:
            pass  # it went with its connection
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return found

    def _take(self) -> tuple[bytes, bytes] | None:
        """Receive a request; None: it is not of one part, and was dropped."""
        socket = self.socket
        requester = socket.recv(_NOBLOCK)
        frame = self._from_user() if self._has_users else socket.recv(_NOBLOCK)
        if not socket.get(zmq.RCVMORE):
            return requester, frame
        self.malformed += 1
        _skip_parts(socket)
        return None

    def _from_user(self) -> bytes:
        """Receive the frame of a request, and note whose it is."""
        frame = self.socket.recv(_NOBLOCK, copy=False)
        self.user = user_of(frame)
        self._last_fd = fd = source_of(frame)
        connection = self.connections.known(fd)
        if connection is None or connection.user != self.user:
            connection = self.connections.find(fd)  # None: it has ended
            if connection is not None:
                connection.user = self.user
        return frame.bytes

    def end_last(self) -> None:
        """End the connection of the request that was received last; with `curve`."""
        connection = self.connections.known(self._last_fd)
        if connection is not None and connection.user == self.user:
            self.connections.revoke(self._last_fd)

    def reply(self, requester: bytes, frame: bytes | memoryview) -> bool | None:
        """Send `frame` to one requester; return whether it was sent.

        False: that requester's queue is full, or the queues of all are. None: it is no longer
        connected.

        ZeroMQ notices that a requester is gone only once its earlier requests were received.
        """
        counted = type(frame) is bytes and len(frame) >= TRACKED_BYTES
        memory = self.memory if counted else None
        if memory is not None and not memory.has_space(requester, len(frame)):
            return False
        try:
            self._send(requester, _NOBLOCK_MORE)
            if memory is not None and type(frame) is bytes:
                memory.send(self._send, requester, frame, _NOBLOCK)
            else:
                send_frame(self._send, frame, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return None
            raise self._error(error) from error
        return True

    def resync(self) -> None:
        """End what an exception cut in two; who gets half of a reply gets an empty frame."""
        try:
            if self.socket.get(zmq.RCVMORE):
                _skip_parts(self.socket)
            self._send(b"", _NOBLOCK)  # where no reply was begun, this names nobody
        except zmq.ZMQError:
            pass


class ZmqRecoveryClient(ZmqConnectingSocket):
    """A DEALER socket: requests out, replies in. It connects again by itself.

    A request that is sent while the server is away waits in the queue; one whose connection breaks
    may be lost, or its reply, so that the caller has to repeat it.

    Attributes:
        malformed: how many replies were dropped because they were not of one part.

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        queue_frames: int = QUEUE_FRAMES,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        curve: "CurveClient | None" = None,
    ) -> None:
        """Make the socket, unconnected.

        Args:
            endpoint: where the server is bound.
            context: the ZeroMQ context, usually `context()`.
            queue_frames: the high-water mark of the replies, in frames. Default 1000.
            frame_bytes_max: a server that sends a larger frame is disconnected; see
                `reconnect`. Default 16 MiB.
            curve: its keys, and the server's. Default None: no encryption.

        """
        super().__init__(
            endpoint, context=context, kind=zmq.DEALER, queue_frames=queue_frames,
            send_frames=REQUESTS_MAX, frame_bytes_max=frame_bytes_max, silence_ms=SILENCE_MS,
            curve=curve,
        )  # fmt: skip
        # It sends little, and waits for answers: TCP asks whether the server is there.
        self.socket.set(zmq.TCP_KEEPALIVE_IDLE, 1)
        self.socket.set(zmq.TCP_KEEPALIVE_INTVL, 1)
        self.malformed = 0
        self._send = super(zmq.Socket, self.socket).send

    def send(self, frame: bytes) -> bool:
        """Send one request; False: the queue is full. It never waits."""
        try:
            self._send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return True

    def receive(self) -> bytes | None:
        """Return the next reply, or None where there is none yet; it never waits."""
        try:
            while self.has_message():
                frame = self._take()
                if frame is not None:
                    return frame
        except zmq.Again:
            pass  # it went with its connection
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return None

    def _take(self) -> bytes | None:
        """Receive a reply; None: it is not of one part, and was dropped."""
        frame = self.socket.recv(_NOBLOCK)
        if not self.socket.get(zmq.RCVMORE):
            return frame
        self.malformed += 1
        _skip_parts(self.socket)
        return None


def _skip_parts(socket: zmq.Socket[bytes]) -> None:
    """Throw away the rest of a message; ZeroMQ has all parts of it there, or none."""
    while socket.get(zmq.RCVMORE):
        socket.recv(_NOBLOCK)
