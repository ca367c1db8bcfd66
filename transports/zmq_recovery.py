"""The recovery channel over ZeroMQ: ROUTER to DEALER, one-part frames both ways."""

from typing import Final

import zmq

from transports.context import Context
from transports.endpoint import Endpoint
from transports.errors import PeerUnreachableError
from transports.reply_memory import TRACKED_BYTES, ReplyMemory
from transports.zmq_frame import send_frame
from transports.zmq_socket import (
    FRAME_BYTES_MAX,
    QUEUE_FRAMES,
    SILENCE_MS,
    Limits,
    ZmqConnectingSocket,
    ZmqSocket,
)

REQUEST_BYTES_MAX: Final = 64 * 1024
"""A request names streams and ranges, and has no payload."""

REQUESTS_MAX: Final = 1024
"""Requests are small, and who joins late has hundreds at once."""
_NOBLOCK: Final = int(zmq.NOBLOCK)
_NOBLOCK_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class ZmqRecoveryServer(ZmqSocket):
    """A bound ROUTER socket: requests in, each with its requester's identity; replies out.

    Attributes:
        malformed: how many requests were dropped because they were not of one part.
        socket: the pyzmq socket, for pollers only.
        connections: who is connected, and their bound.
        memory: what of large replies is still in the queues, and its bound; None: not counted.

    Raises:
        EndpointError: the endpoint is not well-formed, or not tcp, ipc or inproc.
        BindError: the endpoint could not be bound; `AddressInUseError` where it is taken.
        ValueError: a bound is below 1.

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        queue_frames: int = QUEUE_FRAMES,
        frame_bytes_max: int = REQUEST_BYTES_MAX,
        silence_ms: int = SILENCE_MS,
    ) -> None:
        """Bind.

        Args:
            endpoint: where; port 0 lets the system pick one.
            context: the ZeroMQ context, usually `context()`.
            queue_frames: the high-water mark of each requester's queues, in frames. Default 1000.
            frame_bytes_max: a requester that sends a larger frame is disconnected. Default 64 KiB.
            silence_ms: how long a requester may be silent. Default 5000.

        """
        limits = Limits(
            queue_frames=queue_frames,
            frame_bytes_max=frame_bytes_max,
            silence_ms=silence_ms,
        )
        super().__init__(endpoint, context=context, kind=zmq.ROUTER, limits=limits)
        # A full queue and a peer that is gone are answers and not silent losses.
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.malformed = 0
        self.connections = self._watch_connections()
        self._send = super(zmq.Socket, self.socket).send
        self.memory: ReplyMemory | None = ReplyMemory()
        self._bind()

    def receive(self) -> tuple[bytes, bytes] | None:
        """Return the next request as (requester, frame), or None; it never waits.

        Raises:
            ClosedError: the server is closed.

        """
        self.connections.update_soon()
        try:
            while self._has_message():
                requester = self.socket.recv(_NOBLOCK)
                frame = self.socket.recv(_NOBLOCK)
                if not self.socket.get(zmq.RCVMORE):
                    return requester, frame
                self.malformed += 1
                skip_parts(self.socket)
        except zmq.Again:
            pass  # it went with its connection
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return None

    def reply(self, requester: bytes, frame: bytes | memoryview) -> bool:
        """Send `frame` to one requester.

        Returns:
            Whether it was sent. False: that requester's queue is full, or the queues of all.

        Raises:
            PeerUnreachableError: that requester is no longer connected. ZeroMQ notices only once
                its earlier requests were received.
            ClosedError: the server is closed.

        """
        memory, size = self.memory, len(frame)
        counts = memory is not None and size >= TRACKED_BYTES and type(frame) is bytes
        if counts and memory is not None and not memory.has_room(requester, size):
            return False
        try:
            self._send(requester, _NOBLOCK_MORE)
            if counts and memory is not None and type(frame) is bytes:
                memory.send(self._send, requester, frame, _NOBLOCK)
            else:
                send_frame(self._send, frame, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise PeerUnreachableError(self.endpoint, requester) from error
            raise self._error(error) from error
        return True


class ZmqRecoveryClient(ZmqConnectingSocket):
    """A DEALER socket: requests out, replies in. It connects again by itself.

    A request that is sent while the server is away waits in the queue; one whose connection breaks
    may be lost, or its reply, so that the caller has to repeat it.

    Attributes:
        malformed: how many replies were dropped because they were not of one part.
        socket: the pyzmq socket, for pollers only.

    Raises:
        EndpointError: the endpoint is not well-formed, or one cannot connect to it.
        ValueError: a bound is below 1.

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        queue_frames: int = QUEUE_FRAMES,
        requests_max: int = REQUESTS_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        silence_ms: int = SILENCE_MS,
    ) -> None:
        """Make the socket, unconnected.

        Args:
            endpoint: where the server is bound.
            context: the ZeroMQ context, usually `context()`.
            queue_frames: the high-water mark of the replies, in frames. Default 1000.
            requests_max: the same of the requests. Default 1024: they are small, and who joins late
                has hundreds at once.
            frame_bytes_max: a server that sends a larger frame is disconnected; see
                `reconnect`. Default 16 MiB.
            silence_ms: how long the server may be silent. Default 5000.

        """
        limits = Limits(
            queue_frames=queue_frames,
            send_frames=requests_max,
            frame_bytes_max=frame_bytes_max,
            silence_ms=silence_ms,
        )
        super().__init__(endpoint, context=context, kind=zmq.DEALER, limits=limits)
        self.malformed = 0
        self._send = super(zmq.Socket, self.socket).send

    def send(self, frame: bytes) -> bool:
        """Send one request; False: the queue is full. It never waits.

        Raises:
            ClosedError: the client is closed.

        """
        try:
            self._send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return True

    def receive(self) -> bytes | None:
        """Return the next reply, or None where there is none yet; it never waits.

        Raises:
            ClosedError: the client is closed.

        """
        try:
            while self._has_message():
                frame = self.socket.recv(_NOBLOCK)
                if not self.socket.get(zmq.RCVMORE):
                    return frame
                self.malformed += 1
                skip_parts(self.socket)
        except zmq.Again:
            pass  # it went with its connection
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return None


def skip_parts(socket: zmq.Socket[bytes]) -> None:
    """Throw away the rest of a message; ZeroMQ has all parts of it there, or none."""
    while socket.get(zmq.RCVMORE):
        socket.recv(_NOBLOCK)
