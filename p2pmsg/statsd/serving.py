"""A TCP server with a thread a connection: for Prometheus's scrapes and the management port."""

import contextlib
import socket
import socketserver
import sys
import threading
import time
from typing import Any

from p2pmsg.errors import BindError
from p2pmsg.toolkit import close_in_children
from p2pmsg.toolkit import own_log as _log

CONNECTIONS_MAX = 64
"""Connections at once; some scrapers need no more than two or three."""
_PAUSE_S = 0.1
"""How long to wait where a connection cannot be accepted; within it others close theirs."""


class Server(socketserver.ThreadingTCPServer):
    """Serves connections from now on, so many at once.

    Args:
        host: where to listen.
        port: where to listen; 0 picks one.
        handler: of the connections.

    Attributes:
        host, port: where it listens.
        refused: connections beyond the bound.

    Raises:
        BindError: it cannot listen there.

    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 2 * CONNECTIONS_MAX
    """So that those beyond the bound are refused at once, and are not tried for seconds."""

    def __init__(
        self, host: str, port: int, handler: type[socketserver.BaseRequestHandler]
    ) -> None:
        self._open: set[socket.socket] = set()
        self.refused = 0
        self.host = host
        self._is_inherited = False
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), handler)
        except OSError as error:
            text = f"cannot listen at {host}:{port}: {error.strerror or error}"
            raise BindError(text, error.errno) from error
        self.port: int = self.server_address[1]
        close_in_children(self)
        self._thread = threading.Thread(
            target=self.serve_forever, args=(0.2,), name=f"statsd-{self.port}", daemon=True
        )
        self._thread.start()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; without a descriptor, which passes, do not try all the time."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return whether there is space for one more connection."""
        has_space = len(self._open) < CONNECTIONS_MAX
        if has_space:
            self._open.add(request)
        else:
            self.refused += 1
        return has_space

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log what is no failure of the connection."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("statsd: a request at port %d failed", self.port)

    def _forget(self) -> None:
        """In a forked child: the thread is the parent's, and so is the port."""
        self._is_inherited = True
        self.socket.close()

    def close(self) -> None:
        """Stop listening, and end the connections."""
        if self._is_inherited:  # the thread that `shutdown` waits for is the parent's
            return
        self.shutdown()
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        self.server_close()
        self._thread.join()
