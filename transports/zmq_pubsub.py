"""The data channel over ZeroMQ: XPUB to SUB."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import zmq

from transports.allowed import AllowedSubscriptions
from transports.busy_wait import BUSY_WAIT_US, BusyWait
from transports.context import Context, Socket
from transports.endpoint import Endpoint
from transports.zmq_frame import send_frame
from transports.zmq_socket import (
    FRAME_BYTES_MAX,
    QUEUE_FRAMES,
    SILENCE_MS,
    ZmqConnectingSocket,
    ZmqSocket,
    report_subscription,
)

if TYPE_CHECKING:
    from transports.curve import CurveClient, CurveServer

_SUBSCRIPTION_BYTES_MAX: Final = 4096
"""All that a subscriber sends is subscriptions (a topic has at most 255 bytes) and handshakes."""
_SUBSCRIPTIONS_PER_CALL: Final = 1000
"""So that a peer which subscribes in a loop cannot keep the publisher's thread in one call."""
_SUBSCRIPTIONS_AHEAD: Final = 8
"""Subscriptions of one connection that libzmq takes up by itself: so a peer that subscribes without
end is looked at in between, and pauses of the publisher are short."""
_SUBSCRIPTIONS_MAX: Final = 65_536
"""Subscriptions that wait, as all do until there is a connection: libzmq drops one that has no
space, silently. More than a subscriber may have topics."""
_SUBSCRIPTIONS_NS: Final = 2_000_000
"""The same, where each takes long because it is new; the publisher's lock is held meanwhile."""
_NOBLOCK: Final = int(zmq.NOBLOCK)


class ZmqSender(ZmqSocket):
    """A bound XPUB socket: every frame to each subscriber whose prefix it begins with.

    Attributes:
        send: as `DataSender.send`; what `make_zmq_frame` made is sent without a copy. It takes 0.20
            µs, and 0.43 µs by pyzmq's own method, for 200 bytes and no subscriber.
        connections: who is connected, and their bounds.
        has_more: whether `take_subscriptions` left some, to be fetched soon.
        allowed: decides on subscriptions; None: all are taken on.

    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        queue_frames: int = QUEUE_FRAMES,
        welcome: bytes = b"",
        silence_ms: int = SILENCE_MS,
        curve: "CurveServer | None" = None,
        allows: Callable[[str, bytes], bool] | None = None,
    ) -> None:
        """Bind.

        Args:
            endpoint: where; port 0 lets the system pick one.
            context: the ZeroMQ context, usually `context()`.
            queue_frames: the high-water mark of each subscriber's queue, in frames. Default 1000.
            welcome: a frame that every connection gets first, where the receiver is subscribed to
                a prefix of it. It leaves when this side next uses or polls the socket: ZeroMQ takes
                up connections in the owner's thread. Default: none.
            silence_ms: how long a subscriber may be silent. Default 5000.
            curve: its keys, and who may connect. Default None: no encryption, and anybody may.
            allows: whether a user id may have all frames that begin with a prefix; asked for each
                subscription. Default None: everybody may have everything.

        """
        super().__init__(
            endpoint, context=context, kind=zmq.XPUB, queue_frames=queue_frames,
            receive_frames=_SUBSCRIPTIONS_AHEAD, frame_bytes_max=_SUBSCRIPTION_BYTES_MAX,
            silence_ms=silence_ms, curve=curve,
        )  # fmt: skip
        # A full queue is an answer (EAGAIN) and not a silent loss.
        self.socket.set(zmq.XPUB_NODROP, 1)
        if welcome:
            self.socket.set(zmq.XPUB_WELCOME_MSG, welcome)
        self.connections = self._watch_connections()
        self.allowed: AllowedSubscriptions | None = None
        if allows is not None:
            self.allowed = AllowedSubscriptions(self.socket, self.connections, allows)
        self.has_more = False
        # pyzmq's Python-level send costs 0.3 µs more than the compiled one below it.
        self._send: Callable[..., object] = super(zmq.Socket, self.socket).send
        self._bind()
        self.send: Callable[[bytes | memoryview], bool] = self._make_send()

    def send_shedding(self, frame: bytes | memoryview) -> None:
        """Do as `DataSender.send_shedding`.

        A subscriber that missed a frame misses the following ones too until its queue has drained
        by half: ZeroMQ does not look at that queue before.
        """
        try:
            _refresh(self.socket)
            self.socket.set(zmq.XPUB_NODROP, 0)
            try:
                send_frame(self._send, frame, _NOBLOCK)
            finally:
                self.socket.set(zmq.XPUB_NODROP, 1)
        except zmq.ZMQError as error:
            raise self._error(error) from error

    def take_subscriptions(self) -> int:
        """Do as `DataSender.take_subscriptions`: 1000 at most, and as many as it can in 2 ms.

        ZeroMQ keeps what is not fetched, without a bound.
        """
        count, self.has_more = 0, False
        connections, allowed = self.connections, self.allowed
        connections.update()
        try:
            end_ns = time.monotonic_ns() + _SUBSCRIPTIONS_NS
            while self.has_message():
                if count >= _SUBSCRIPTIONS_PER_CALL or time.monotonic_ns() > end_ns:
                    self.has_more = True
                    break
                note = self.socket.recv(_NOBLOCK, copy=False)
                count += 1
                if allowed is not None:
                    allowed.take(note)
                else:
                    report_subscription(note, connections)
        except zmq.Again:
            pass  # it went with its connection
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return count

    def close(self, linger_ms: int = 0) -> None:
        """Do as `ZmqSocket.close`; who connects from now on is not welcomed any more.

        ZeroMQ goes on taking up connections until its own thread ends the socket, some milliseconds
        later or after frames have left, and each would take this publisher for one that is there.
        """
        if not self.socket.closed:
            self.socket.set(zmq.XPUB_WELCOME_MSG, b"")
        super().close(linger_ms)

    def _send_again(self, frame: bytes | memoryview) -> bool:
        """Send where a queue looked full: it is looked at once more."""
        try:
            _refresh(self.socket)
            send_frame(self._send, frame, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return True

    def _make_send(self) -> Callable[[bytes | memoryview], bool]:
        # A closure, because it finds its names faster than a method finds its attributes.
        send, send_again = self._send, self._send_again
        noblock, full, error_kind = _NOBLOCK, zmq.Again, zmq.ZMQError

        def send_to_all(frame: bytes | memoryview) -> bool:
            try:
                if type(frame) is bytes:
                    send(frame, noblock)
                else:
                    send_frame(send, frame, noblock)
            except full:
                return send_again(frame)
            except error_kind as error:
                raise self._error(error) from error
            return True

        return send_to_all


def _refresh(socket: Socket) -> None:
    """Let ZeroMQ learn which queues have space again.

    To be quick, its send looks for that once in a millisecond only, so that until then a queue
    looks full that is not. Reading the socket's events looks at once.
    """
    socket.get(zmq.EVENTS)


class ZmqReceiver(ZmqConnectingSocket):
    """A SUB socket: subscribe, then connect, then receive.

    It connects again by itself, 50 ms to 1 s after a connection broke, and subscribes again when it
    is next used. Frames of the time in between are not received.
    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        context: Context,
        queue_frames: int = QUEUE_FRAMES,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        busy_wait_us: float = BUSY_WAIT_US,
        curve: "CurveClient | None" = None,
    ) -> None:
        """Make the socket, unconnected.

        Args:
            endpoint: where the publisher is bound.
            context: the ZeroMQ context, usually `context()`.
            queue_frames: the high-water mark of the receive queue, in frames. Default 1000.
            frame_bytes_max: a publisher that sends a larger frame is disconnected; see
                `reconnect`. Default 16 MiB.
            busy_wait_us: how long `receive_awake` looks for a frame, where this process takes
                turns with another; see `BusyWait`. Default 200; 0: never.
            curve: its keys, and the publisher's. Default None: no encryption.

        """
        super().__init__(
            endpoint, context=context, kind=zmq.SUB, queue_frames=queue_frames,
            send_frames=_SUBSCRIPTIONS_MAX, frame_bytes_max=frame_bytes_max, curve=curve,
        )  # fmt: skip
        self._recv = self.socket.recv
        self._busy_wait = BusyWait(busy_wait_us, self._has_come)

    def subscribe(self, prefix: bytes) -> None:
        """Receive frames that begin with `prefix`; as often as it is called, as often undo it."""
        self._set_prefix(zmq.SUBSCRIBE, prefix)

    def unsubscribe(self, prefix: bytes) -> None:
        """Undo one `subscribe(prefix)`; without one, nothing happens."""
        self._set_prefix(zmq.UNSUBSCRIBE, prefix)

    def receive(self) -> bytes | None:
        """Return the next frame, or None where there is none yet; it never waits."""
        try:
            return self._recv(_NOBLOCK)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise self._error(error) from error

    def receive_awake(self) -> bytes | None:
        """Return the next frame, or None; it looks for it a moment, where that is worth it.

        It is for who then waits in another way, and calls `on_waited` when a frame has come.
        """
        if not self.has_message():  # being refused by `recv` takes longer
            if not self._busy_wait.begin():
                return None
            self._busy_wait.end()
        return self.receive()

    def on_waited(self) -> None:
        """Note that a frame has come for which `receive_awake` looked in vain."""
        self._busy_wait.end()

    def _set_prefix(self, option: int, prefix: bytes) -> None:
        try:
            self.socket.set(option, prefix)
        except zmq.ZMQError as error:
            raise self._error(error) from error
