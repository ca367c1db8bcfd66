"""Serves an ASGI application by uvicorn, with limits for slow clients."""

import logging
import socket
import ssl
import warnings
from collections import Counter
from functools import partial
from typing import Any, Final

from p2pmsg.errors import BindError, ConfigError, MissingExtraError, P2PError

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


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; `BindError` where it cannot."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        # Python adds the address, which the caller knows.
        reason = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise BindError(f"{host}:{port}: {reason}", error.errno) from error


def run(server: Any, place: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM; raises what keeps the application from starting.

    Args:
        server: of `make_server`.
        place: where; of `bind`.

    """
    # Ctrl-C may come before the server's coroutine begins.
    warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
    try:
        server.run(sockets=[place])
    except SystemExit as error:
        failure = getattr(server.config.app, "failure", None)
        raise failure or P2PError("the server cannot start") from error


def make_server(
    app: Any,
    *,
    connections_max: int = 1000,
    timeout: float = 10.0,
    cert: str | None = None,
    key: str | None = None,
) -> Any:
    """Return a `uvicorn.Server`, for `run`; or its `run(sockets=[…])`, in a thread.

    Args:
        app: the application, of ASGI. In its `rejected`, a `Counter`, if it has one, is counted
            what the server itself refuses: `connections`, there are too many of them, and `http`,
            it was no HTTP.
        connections_max: connections at once; further ones are answered with 503. Default 1000.
        timeout: how long the headers of a request may take to come, and how long a client may read
            nothing although there is more to send, in seconds. Default 10.
        cert: a file with the certificate, for TLS. Default: no TLS.
        key: and one with its key.

    Raises:
        MissingExtraError: uvicorn is not installed.
        ConfigError: the files have no certificate and its key.

    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("serving HTTP", str(error.name), "http") from error
    if cert is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            why = reason or "it has no PEM"
            limit = f"a file with a certificate in PEM, and its key in the other ({why})"
            raise ConfigError("cert", limit, cert) from error
    from p2pmsg.http.protocol import ImpatientProtocol

    rejected = getattr(app, "rejected", None)
    logger = _Refusals(rejected if isinstance(rejected, Counter) else Counter())
    config = uvicorn.Config(
        app,
        http=partial(ImpatientProtocol, timeout=timeout, logger=logger),
        ws="none",
        lifespan="on",
        log_level="critical",  # what fails in a request is logged all the same
        access_log=False,
        server_header=False,
        limit_concurrency=connections_max,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        h11_max_incomplete_event_size=_HEADERS_BYTES_MAX,
        ssl_certfile=cert,
        ssl_keyfile=key,
    )
    return uvicorn.Server(config)


class _Refusals(logging.Logger):
    """uvicorn's logger, for one server: warnings are counted; anybody who can connect causes them.

    Args:
        rejected: counts what is refused, by the reason in a word.

    """

    def __init__(self, rejected: Counter[str]) -> None:
        super().__init__(_LOGGER, logging.WARNING)
        self._rejected = rejected

    def handle(self, record: logging.LogRecord) -> None:
        """Count a warning; pass anything else on to uvicorn's own logger."""
        if record.levelno > logging.WARNING:
            logging.getLogger(_LOGGER).handle(record)
        elif reason := _REASONS.get(record.getMessage()):
            self._rejected[reason] += 1
