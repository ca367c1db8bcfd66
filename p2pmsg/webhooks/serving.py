"""Serves an ASGI application by uvicorn, with limits for slow clients."""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import Any, Final

from p2pmsg.errors import BindError, ConfigError, MissingExtraError

_HEADERS_BYTES_MAX: Final = 65_536
_KEEP_ALIVE_S: Final = 5
_SHUTDOWN_S: Final = 5
_BACKLOG: Final = 1024


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
) -> Any:
    """Return a `uvicorn.Server`, whose `run(sockets=[…])` serves until a signal.

    Args:
        app: the application, of ASGI.
        limits: what it puts up with. Default: `ServerLimits()`.
        cert: a file with the certificate, for TLS. Default: no TLS.
        key: and one with its key.
        who: who asks, and with which extra it is installed, for the error.

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
        http=_protocol(limits),
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
            self._write_timer = loop.call_later(limits.write_timeout, self.transport.abort)

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
