"""Which codec packs and reads msgpack and JSON: msgspec, or, where that is not installed, msgpack.

`P2PMSG_CODEC=msgpack` (or `msgspec`) in the environment chooses it by name, for tests.
"""

import importlib
import os
from typing import TYPE_CHECKING, Final

from transports.signals import defer_signals

_WANTED: Final = os.environ.get("P2PMSG_CODEC", "")
if _WANTED not in ("", "msgspec", "msgpack"):
    raise ImportError(f"P2PMSG_CODEC must be msgspec or msgpack, not {_WANTED!r}")


def _has_msgspec() -> bool:
    if _WANTED == "msgpack":
        return False
    try:
        # An exception that a signal handler raises within this import does not come out of it, and
        # a decoder that is made afterwards ends the process by a fault (msgspec 0.22).
        defer_signals(importlib.import_module, "msgspec")
    except ImportError:
        if _WANTED:
            raise
        return False
    return True


if TYPE_CHECKING or _has_msgspec():
    from p2pmsg.codec.by_msgspec import *  # noqa: F403
else:
    from p2pmsg.codec.by_msgpack import *  # noqa: F403
