"""Serves an ASGI application by uvicorn, with limits for slow clients."""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from p2pmsg.errors import BindError, ConfigError, MissingExtraError
from p2pmsg.trouble import Rarely
from p2pmsg.webhooks.asgi import UNREAD

_HEADERS_BYTES_MAX: Final = 65_536
_KEEP_ALIVE_S: Final = 5
_SHUTDOWN_S: Final = 5
_BACKLOG: Final = 1024
_LOGGER: Final = "uvicorn.error"
_REASONS: Final = {
    "Exceeded concurrency limit.": "connections",
    "Invalid HTTP request received.": "http",
}
"""What uvicorn says of a request that it refuses itself, and how that is counted."""
_TEXTS_MAX: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What a server puts up with."""

    header_timeout: float = 10.0
    """How long the headers of a request may take to come, in seconds."""
    write_timeout: float = 10.0
    """How long a client may read nothing although there is more to send, in seconds."""
    connections_max: int = 1000
    """Connections at once; further ones are answered with 503."""


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; `BindError` where it cannot."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # Python adds the address, which the caller knows.
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise BindError(f"{host}:{port}: {reason}", error.errno) from error


def make_server(
    app: Any,
    *,
    limits: ServerLimits | None = None,
    cert: str | None = None,
    key: str | None = None,
    who: tuple[str, str] = ("p2pmsg hook in", "webhooks"),
    rejected: Counter[str] | None = None,
) -> Any:
    """Return a `uvicorn.Server`, whose `run(sockets=[…])` serves until a signal.

    Args:
        app: the application, of ASGI.
        limits: what it puts up with. Default: `ServerLimits()`.
        cert: a file with the certificate, for TLS. Default: no TLS.
        key: and one with its key.
        who: who asks, and with which extra it is installed, for the error.
        rejected: counts what the server itself refuses: `connections`, there are too many of them,
            and `http`, it was no HTTP. Default: not counted.

    Raises:
        MissingExtraError: uvicorn is not installed.
        ConfigError: the files have no certificate and its key.

    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(who[0], str(error.name), who[1]) from error
    limits = limits or ServerLimits()
    if cert is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            why = reason or "it has no PEM"
            limit = f"a file with a certificate in PEM, and its key in the other ({why})"
            raise ConfigError("cert", limit, cert) from error
    config = uvicorn.Config(
        app,
        http=_refusing(_protocol(limits), RareLogger(Counter() if rejected is None else rejected)),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections_max,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        h11_max_incomplete_event_size=_HEADERS_BYTES_MAX,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    return uvicorn.Server(config)


class RareLogger(logging.Logger):
    """uvicorn's logger, for one server: each warning once a minute, with how often it was meant.

    Anybody who can connect causes them, a line for each connection.

    Args:
        rejected: counts what is refused, by the reason in a word.

    """

    def __init__(self, rejected: Counter[str]) -> None:
        super().__init__(_LOGGER, logging.WARNING)
        self._rejected = rejected
        self._unsaid: Counter[str] = Counter()
        self._rarely: dict[str, Rarely] = {}

    def handle(self, record: logging.LogRecord) -> None:
        """Pass a record on to uvicorn's own logger, unless it was said within the last minute."""
        if record.levelno == logging.WARNING and not record.exc_info:
            text = record.getMessage()
            if reason := _REASONS.get(text):
                self._rejected[reason] += 1
            key = text if text in self._rarely or len(self._rarely) < _TEXTS_MAX else ""
            self._unsaid[key] += 1
            if not self._rarely.setdefault(key, Rarely()).is_due():
                return
            if (count := self._unsaid.pop(key)) > 1:
                record.msg, record.args = "%s (%d times since it was said last)", (text, count)
        logging.getLogger(_LOGGER).handle(record)


def _protocol(limits: ServerLimits) -> Any:
    """Return uvicorn's HTTP protocol, which closes where headers take too long.

    uvicorn itself waits without end for the rest of a request's headers, and for the rest of a body
    that was answered before all of it came, which it throws away: closing at once would reset the
    connection, and a client that sends everything before it reads would never see the answer.
    And it waits without end for a client that reads nothing.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ImpatientProtocol(H11Protocol):  # type: ignore[misc,unused-ignore]
        _headers_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            self._end_write_timer()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            loop = asyncio.get_running_loop()
            self._write_timer = loop.call_later(limits.write_timeout, _end_unread, self)

        def resume_writing(self) -> None:
            self._end_write_timer()
            super().resume_writing()

        def shutdown(self) -> None:
            super().shutdown()
            if self._write_timer is not None:
                self.transport.abort()

        def _end_write_timer(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _watch(self) -> None:
            """Start the time when headers begin, and end it when they are there."""
            cycle = self.cycle
            if cycle is not None and not cycle.response_complete:
                self._unwatch()
            elif self._headers_timer is None:
                loop = asyncio.get_running_loop()
                self._headers_timer = loop.call_later(limits.header_timeout, self._give_up)

        def _unwatch(self) -> None:
            if self._headers_timer is not None:
                self._headers_timer.cancel()
                self._headers_timer = None

        def _give_up(self) -> None:
            self._headers_timer = None
            cycle = self.cycle
            if cycle is None or cycle.response_complete:
                self.transport.close()

    return ImpatientProtocol


def _end_unread(protocol: Any) -> None:
    """End a connection whose client reads nothing; its application sees that in the scope."""
    if protocol.cycle is not None:
        protocol.cycle.scope[UNREAD] = True
    protocol.transport.abort()


def _refusing(protocol: Any, logger: logging.Logger) -> Any:
    """Return a protocol that says by this logger what it refuses, also once it has answered."""
    from h11 import IDLE, SEND_RESPONSE

    class RefusingProtocol(protocol):  # type: ignore[misc,unused-ignore]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.logger = logger

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None:  # its application sees that the client has gone
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (IDLE, SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                self.transport.close()

    return RefusingProtocol
