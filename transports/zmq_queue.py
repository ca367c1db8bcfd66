"""The work queue over ZeroMQ: ROUTER to DEALER, with descriptors to wait for and news of breaks."""

from typing import Final

import zmq

from transports.busy_wait import BUSY_WAIT_US
from transports.context import Context
from transports.endpoint import Endpoint
from transports.zmq_recovery import ZmqRecoveryClient, ZmqRecoveryServer, skip_parts
from transports.zmq_socket import FRAME_BYTES_MAX, busy_wait_for

QUEUE_FRAMES: Final = 100_000
"""Above what a worker may have in hand: credit is the bound, and a frame has a job at least."""

_NOBLOCK: Final = int(zmq.NOBLOCK)


class ZmqQueueServer(ZmqRecoveryServer):
    """A pusher's ROUTER socket.

    It is a ROUTER and not a PUSH, since a PUSH deals round: it cannot choose who gets a job, and
    does not learn who got it. Otherwise as `ZmqRecoveryServer`.

    Attributes:
        fd: a descriptor that becomes readable when there may be news; it does so once, so read all
            there is, after sending too, before waiting for it.
        break_fd: a descriptor that is readable when a connection may have come, or broken.

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        busy_wait_us: float = BUSY_WAIT_US,
    ) -> None:
        """Bind; see `ZmqRecoveryServer`, and `ZmqReceiver` for `busy_wait_us`."""
        super().__init__(
            endpoint, context=context, queue_frames=QUEUE_FRAMES, frame_bytes_max=frame_bytes_max
        )
        self.memory = None  # credit, or one answer to a request, is the bound
        self._receive_timeout_ms = -1
        self._busy_wait = busy_wait_for(self.socket, busy_wait_us)
        self.fd = int(self.socket.get(zmq.FD))
        self.break_fd = self.connections.fd
        self._broken = 0

    def broke(self) -> bool:
        """Whether a connection broke since the last call."""
        self.connections.update()
        before, self._broken = self._broken, self.connections.broken
        return before != self._broken

    def receive_wait(self, timeout_ms: int) -> tuple[bytes, bytes] | None:
        """Return the next request, or None after `timeout_ms` without one.

        Raises:
            ClosedError: the server is closed.

        """
        socket = self.socket
        self.connections.update_soon()
        try:
            if timeout_ms != self._receive_timeout_ms:
                socket.set(zmq.RCVTIMEO, timeout_ms)
                self._receive_timeout_ms = timeout_ms
            self._busy_wait.begin()
            requester = socket.recv()
            frame = socket.recv()
            self._busy_wait.end()
            if not socket.get(zmq.RCVMORE):
                return requester, frame
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise self._error(error) from error
        self.malformed += 1
        skip_parts(socket)
        return None


class ZmqQueueClient(ZmqRecoveryClient):
    """A puller's DEALER socket; otherwise as `ZmqRecoveryClient`.

    Attributes:
        fd: see `ZmqQueueServer`.

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        busy_wait_us: float = BUSY_WAIT_US,
    ) -> None:
        """Make the socket, unconnected; see `ZmqRecoveryClient`, `ZmqReceiver`."""
        super().__init__(
            endpoint, context=context, queue_frames=QUEUE_FRAMES, frame_bytes_max=frame_bytes_max
        )
        self.fd = int(self.socket.get(zmq.FD))
        self._receive_timeout_ms = -1
        self._busy_wait = busy_wait_for(self.socket, busy_wait_us)

    def receive_wait(self, timeout_ms: int) -> bytes | None:
        """Return the next frame, or None after `timeout_ms` without one.

        Signals are handled while it waits, so Ctrl-C works.

        Raises:
            ClosedError: the client is closed.

        """
        try:
            if timeout_ms != self._receive_timeout_ms:
                self.socket.set(zmq.RCVTIMEO, timeout_ms)
                self._receive_timeout_ms = timeout_ms
            self._busy_wait.begin()
            frame = self.socket.recv()
            self._busy_wait.end()
            if not self.socket.get(zmq.RCVMORE):
                return frame
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise self._error(error) from error
        self.malformed += 1
        skip_parts(self.socket)
        return None


def wait_for_any(clients: list[ZmqQueueClient], timeout_ms: int) -> None:
    """Wait until one of the sockets has a frame, for `timeout_ms` at most."""
    poller = zmq.Poller()
    for client in clients:
        poller.register(client.socket, zmq.POLLIN)
    poller.poll(timeout_ms)
