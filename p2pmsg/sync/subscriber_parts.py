"""Time-outs."""

import time
from math import isnan

from p2pmsg.config import check

_FOREVER_S = 1e9


def deadline(timeout: float | None) -> int | None:
    """Return when `timeout` seconds will have passed, or None; `ConfigError` for no number."""
    if timeout is None:
        return None
    if type(timeout) is not float or not 0.0 <= timeout <= _FOREVER_S:
        # What most give is spared this: 1 µs with cold caches.
        ok = isinstance(timeout, int | float) and not isnan(timeout)
        check("timeout", timeout, ok, "a number of seconds, or None")
        timeout = min(timeout, _FOREVER_S)
    return time.monotonic_ns() + int(timeout * 1e9)
