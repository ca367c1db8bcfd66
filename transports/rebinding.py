"""Binding again at once what this process has just closed.

ZeroMQ closes a socket behind the caller's back, a moment after `close`, so that whoever binds the
same endpoint next would find it taken by himself.
"""

import time
from typing import Final

from transports.endpoint import Endpoint

_WAIT_S: Final = 1.0
"""How long after `close` an endpoint is waited for. A millisecond is usual."""
_closed: dict[str, float] = {}


def note_closed(endpoint: Endpoint) -> None:
    """Note that a socket bound to `endpoint` was closed."""
    now = time.monotonic()
    for name, when in list(_closed.items()):
        if now - when > _WAIT_S:
            _closed.pop(name, None)
    _closed[_name(endpoint)] = now


def wait_for(endpoint: Endpoint) -> bool:
    """Wait a little if `endpoint` was closed just now; False: somebody else has it."""
    when = _closed.get(_name(endpoint))
    if when is None or time.monotonic() - when > _WAIT_S:
        return False
    time.sleep(0.001)
    return True


def _name(endpoint: Endpoint) -> str:
    # Whatever interface it is on: *:5556 is taken by 127.0.0.1:5556.
    return f"tcp port {endpoint.port}" if endpoint.scheme == "tcp" else str(endpoint)
