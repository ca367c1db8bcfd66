"""What became of a connection that a socket makes: its handshake, its end, its refusal.

libzmq gives up an endpoint permanently, and silently, where the handshake fails by authentication
or by protocol. Where the other side only hangs up (it does so when it cannot read what was
encrypted for another key), libzmq connects again every 50 ms. Its monitor reports all of it.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import zmq

from transports.monitor import Monitor
from transports.own_log import own_log as _log
from transports.trouble import Rarely

if TYPE_CHECKING:
    from transports.context import Context, Socket
    from transports.curve import CurveClient

_CONNECTED: Final = int(zmq.EVENT_CONNECTED)
_TRIES: Final = _CONNECTED | int(zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CONNECT_RETRIED)
_FAILED_AUTH: Final = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_FAILED_PROTOCOL: Final = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_ENDED: Final = int(zmq.EVENT_DISCONNECTED) | _FAILED | _FAILED_PROTOCOL | _FAILED_AUTH
_JOINED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_MISMATCH: Final = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
_EVENTS_PER_LOOK: Final = 1000
_ENDED_NS: Final = 200_000_000
"""How long after a connection's end no event has to come until it counts as given up; that it will
connect again, ZeroMQ reports in the same ms."""
_FAILED_NS: Final = 2_000_000_000
"""The same of one without a handshake, where another one is likely to end in the same way."""
_HUNG_UP_MAX: Final = 3
"""So many handshakes in a row that the other side broke off silently are a refusal; a server
that ends in the middle of one is not."""
_AGAIN_NS: Final = 100_000_000
_AGAIN_MAX_NS: Final = 2_000_000_000
"""How long until a refused connection is tried again: at first, then twice as long, and at most. It
is as long as somebody waits whose key has just been admitted."""


class ConnectWatch:
    """Follows the connection of a socket that connects. One thread at a time uses it.

    It has to be asked now and then: what the monitor reports has no bound, and comes 20 times a
    second where something accepts connections and ends them.

    Args:
        socket: not connected yet.
        context: the socket's.
        endpoint: where it connects, for the log.
        curve: its keys, if it has any: only then are refusals noticed.

    Attributes:
        curve: its keys, with the pinned key as it is now.
        connected: whether there is a connection, after its handshake.
        refusal: why the last connection was refused; "" where it was not.
        connections: how many there were, all in all.
        fd: the descriptor of the connection; -1 where there is none.

    """

    def __init__(
        self,
        socket: "Socket",
        context: "Context",
        endpoint: str,
        curve: "CurveClient | None" = None,
    ) -> None:
        self._endpoint = endpoint
        self.curve = curve
        self._ended_ns = 0
        self._hung_up = 0
        self._again_ns = _AGAIN_NS
        self._rarely = Rarely()
        self.connected = False
        self.fd = -1
        self.refusal = ""
        self.connections = 0
        self._refused = False
        # At most a few events a second, with RECONNECT_IVL.
        self._monitor = Monitor(socket, context, _TRIES | _ENDED | _JOINED)

    def was_ended_here(self) -> bool:
        """Read what happened; return whether ZeroMQ ended the connection itself, permanently.

        It does so where the peer broke the protocol, or sent a frame that is too large. Where a
        connection ended in any other way, it reports at once that it will connect again.
        """
        now_ns = time.monotonic_ns()
        self._read(now_ns)
        if not self._ended_ns or now_ns < self._ended_ns:
            return False
        self._ended_ns = 0
        return True

    def left(self) -> None:
        """Note that the socket gives its connection up."""
        self._read(time.monotonic_ns())
        # Of an end that we make it does not report anything.
        self.fd, self.connected, self._ended_ns = -1, False, 0

    def connection_fd(self) -> int | None:
        """Read what happened; return the connection's descriptor, or None where there is none."""
        self._read(time.monotonic_ns())
        return self.fd if self.connected and self.fd >= 0 else None

    def was_refused(self) -> bool:
        """Read what happened; return whether the connection was refused since the last call."""
        self._read(time.monotonic_ns())
        refused, self._refused = self._refused, False
        return refused

    def renew_key(self, socket: "Socket") -> None:
        """Have a socket, which is not connected, ask for the key that is pinned now."""
        curve = self.curve
        if curve is None or curve.find is None:
            return
        try:
            key = curve.find()
        except Exception as error:  # the application's: the last key stays, and it is tried again
            self.note(f"its key is not known: {error}")
            return
        if key != curve.server:
            self.curve = replace(curve, server=key)
            self.curve.set_options(socket)

    def wait_ns(self) -> int:
        """Return how long to wait before a refused connection is tried again; longer each time."""
        wait_ns, self._again_ns = self._again_ns, min(2 * self._again_ns, _AGAIN_MAX_NS)
        return wait_ns

    def close(self) -> None:
        """Stop following; before the socket is closed."""
        self._monitor.close()

    def _read(self, now_ns: int) -> None:
        for _ in range(_EVENTS_PER_LOOK):
            event = self._monitor.read()
            if event is None:
                return
            what, value = event
            if what & _JOINED:
                if self.refusal:
                    _log.info("%s: connected, after it had been refused", self._endpoint)
                self.connected, self.refusal = True, ""
                self.connections += 1
                self._hung_up, self._again_ns, self._rarely = 0, _AGAIN_NS, Rarely()
            elif what & _ENDED:
                self._ended_ns = now_ns + (_ENDED_NS if self.connected else _FAILED_NS)
                self.connected, self.fd = False, -1
                if self.curve is not None and what != zmq.EVENT_DISCONNECTED:
                    self._failed(self.curve, what, value)
            else:
                self._ended_ns = 0
                if what == _CONNECTED:
                    self.fd = value

    def _failed(self, curve: "CurveClient", what: int, value: int) -> None:
        from transports.curve import fingerprint

        pinned = fingerprint(curve.server)
        if what == _FAILED_AUTH:
            own = fingerprint(curve.keys.public)
            why = f"the peer there does not admit our key {own} (status {value})"
        elif what == _FAILED_PROTOCOL and value == _MISMATCH:
            why = f"the peer there has no security, so it cannot hold the pinned key {pinned}"
        elif what == _FAILED_PROTOCOL:
            why = f"the peer there does not prove that it holds the pinned key {pinned}"
        else:
            self._hung_up += 1
            if self._hung_up < _HUNG_UP_MAX:
                return
            why = f"the peer there breaks off: it does not hold the pinned key {pinned}"
        self._refused = True
        self.note(why)

    def note(self, why: str) -> None:
        """Keep the reason of a refusal, and log it where it is another one, or once a minute."""
        if self._rarely.is_due() or why != self.refusal:
            _log.warning("%s: refused, %s; it is tried again", self._endpoint, why)
        self.refusal = why
