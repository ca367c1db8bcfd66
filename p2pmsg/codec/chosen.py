"""Which codec packs and reads msgpack and JSON: msgspec, or, where that is not installed, msgpack.

`P2PMSG_CODEC=msgpack` (or `msgspec`) in the environment chooses it by name, for tests.
"""

import importlib
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

_WANTED: Final = os.environ.get("P2PMSG_CODEC", "")
if _WANTED not in ("", "msgspec", "msgpack"):
    raise ImportError(f"P2PMSG_CODEC must be msgspec or msgpack, not {_WANTED!r}")


def _import_msgspec() -> None:
    with suppress(ImportError):
        importlib.import_module("msgspec")


def _is_msgspec() -> bool:
    if _WANTED == "msgpack":
        return False
    # What a signal's handler raises within this import is not raised, and a decoder that is made
    # afterwards ends the process by a fault (msgspec 0.22). In a thread no handler runs.
    importing = threading.Thread(target=_import_msgspec)
    importing.start()
    importing.join()
    return _WANTED == "msgspec" or sys.modules.get("msgspec") is not None


if TYPE_CHECKING or _is_msgspec():
    from p2pmsg.codec.by_msgspec import *  # noqa: F403
else:
    from p2pmsg.codec.by_msgpack import *  # noqa: F403
