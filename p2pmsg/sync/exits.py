"""What is still open when the interpreter exits is closed, so that what was accepted can leave.

From Python 3.12 on no thread can be started then; so this is done by the thread that exits, and the
peers' own threads were started when they were made.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import transports
from p2pmsg.errors import ClosedError

EXIT_S: Final = 1.0
"""How long that may take in all, in seconds: as long as what a closed peer sent may linger."""
_log = logging.getLogger("p2pmsg")
_context: Final = transports.context  # its handler, registered first, runs after this one
_open: dict[int, tuple[Any, Callable[[Any, float], object]]] = {}


def close_at_exit(peer: Any, close: Callable[[Any, float], object]) -> None:
    """Call `close` with `peer` and how many seconds are left, unless it is closed before."""
    _open[id(peer)] = peer, close


def was_closed(peer: Any) -> None:
    """Forget a peer, which was closed."""
    _open.pop(id(peer), None)


def _close_all() -> None:
    if not _open:
        return
    threading.excepthook = _quietly(threading.excepthook)
    deadline = time.monotonic() + EXIT_S
    while _open:
        _, (peer, close) = _open.popitem()  # the last one first
        try:
            close(peer, max(0.0, deadline - time.monotonic()))
        except Exception:
            _log.exception("%r could not be closed at exit", peer)


def _quietly(
    hook: Callable[[threading.ExceptHookArgs], Any],
) -> Callable[[threading.ExceptHookArgs], Any]:
    """Say nothing of daemon threads that find their peer closed, since the process ends."""

    def tell(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, ClosedError):
            hook(args)

    return tell


atexit.register(_close_all)
os.register_at_fork(after_in_child=_open.clear)
