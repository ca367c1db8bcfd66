"""Who may connect to a socket that binds: the answers to ZeroMQ's authentication protocol (ZAP).

libzmq asks, for each connection with CURVE whose handshake is nearly done, a handler at
`inproc://zeromq.zap.01` (RFC 27); there is one for each context. Where there is none it admits
everybody, unless ZAP_ENFORCE_DOMAIN is set, as it is for all sockets here. The handler is a thread
that sleeps while nobody connects. A refusal is status 400: the other side gets it, and its socket
reports it. (With 300, to try again later, a DEALER stays stuck: libzmq issue 2329.)

A domain belongs to one bound socket. A forked child has a new context, and so a new handler.
"""

import os
import threading
from itertools import count
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import zmq

from transports.connections import Refusals
from transports.curve import KEY_BYTES, CurveServer, key_text
from transports.errors import TransportError, translate
from transports.own_log import own_log as _log

if TYPE_CHECKING:
    from transports.context import Context, Socket

_ADDRESS: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_MECHANISM: Final = b"CURVE"
_USER_BYTES_MAX: Final = 255
_ENDED: Final = frozenset({int(zmq.ETERM), int(zmq.ENOTSOCK)})
_numbers: Final = count()


class ZapDomain:
    """The connections of one bound socket: who of them is admitted.

    Attributes:
        name: of the domain, for ZAP_DOMAIN.
        endpoint: of the socket, for the log.
        refused: how many connections were refused because of their key.

    """

    def __init__(self, handler: "_Handler", server: CurveServer, endpoint: str) -> None:
        self.name = b"p2pmsg-%d" % next(_numbers)
        self.refused = 0
        self._handler = handler
        self._server = server
        self.endpoint = endpoint
        self._refusals = Refusals()

    def set_options(self, socket: "Socket") -> None:
        """Have a socket, which is not bound yet, ask this domain."""
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, self._server.keys.secret)
        socket.set(zmq.ZAP_DOMAIN, self.name)
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def close(self) -> None:
        """Forget the domain; who still asks is refused."""
        self._handler.domains.pop(self.name, None)

    def user_of(self, public: bytes, address: str) -> bytes | None:
        """Return the user id of who connects with a key, or None; it never raises."""
        try:
            user = self._server.admits(public)
            if user is not None:
                name = user.encode()
                if len(name) <= _USER_BYTES_MAX:
                    return name
                self._refuse(public, address, f"its user id has {len(name)} bytes, above 255")
                return None
            why = self._server.why(public)
        except Exception as error:  # the application's own; one connection must not end all others
            why = f"it could not be checked: {error!r}"
        self._refuse(public, address, why)
        return None

    def _refuse(self, public: bytes, address: str, why: str) -> None:
        """Count it, and log it: the first at once, then once a minute."""
        self.refused += 1
        who = address or "this machine"
        self._refusals.note(f"key {key_text(public)} from {who}: {why}")
        self._refusals.log(self.endpoint)


class _Handler:
    """Answers for all domains of a context, until the context is ended."""

    def __init__(self, context: "Context") -> None:
        self.domains: dict[bytes, ZapDomain] = {}
        self.ended = False
        self._socket: Socket = context.socket(zmq.REP)
        self._socket.set(zmq.LINGER, 0)
        try:
            self._socket.bind(_ADDRESS)
            threading.Thread(target=self._run, name="p2pmsg-zap", daemon=True).start()
        except BaseException:
            self._socket.close()
            raise

    def _run(self) -> None:
        while True:
            try:
                self._socket.send_multipart(self._answer(self._socket.recv_multipart()))
            except zmq.ZMQError as error:
                if error.errno not in _ENDED:
                    _log.error("authentication goes on after %s", error)
                    continue
                self.ended = True
                self._socket.close()
                return

    def _answer(self, request: list[bytes]) -> list[bytes]:
        version, number, domain_name, address, _, mechanism, *credentials = [*request, *[b""] * 6]
        head = [_VERSION, number]
        domain = self.domains.get(domain_name)
        key = credentials[0] if credentials else b""
        if version != _VERSION or mechanism != _MECHANISM or len(key) != KEY_BYTES:
            return [*head, b"400", b"CURVE is needed", b"", b""]
        if domain is None:
            return [*head, b"400", b"closed", b"", b""]
        user = domain.user_of(key, address.decode("ascii", "replace"))
        if user is None:
            return [*head, b"400", b"unknown key", b"", b""]
        return [*head, b"200", b"OK", user, b""]


_handlers: "WeakKeyDictionary[Context, _Handler]" = WeakKeyDictionary()
_lock = threading.Lock()


def open_domain(context: "Context", server: CurveServer, endpoint: str) -> ZapDomain:
    """Return a domain for a socket of `context` that is about to be bound at `endpoint`.

    Raises:
        TransportError: the context is closed, or another handler of ZAP is there.

    """
    with _lock:
        handler = _handlers.get(context)
        if handler is None or handler.ended:
            try:
                handler = _handlers[context] = _Handler(context)
            except zmq.ZMQError as error:
                raise translate(error, _ADDRESS) from error
            except RuntimeError as error:  # the interpreter exits already
                raise TransportError(f"no thread for authentication: {error}") from error
        domain = ZapDomain(handler, server, endpoint)
        handler.domains[domain.name] = domain
        return domain


def _start_again() -> None:
    """In a forked child: the lock may have been held; the parent's handlers stay with it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_start_again)
