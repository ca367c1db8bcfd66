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
    from p2pmsg.codec.by_msgspec import NAME as NAME
    from p2pmsg.codec.by_msgspec import CodecError as CodecError
    from p2pmsg.codec.by_msgspec import Encoder as Encoder
    from p2pmsg.codec.by_msgspec import Ext as Ext
    from p2pmsg.codec.by_msgspec import JsonDecoder as JsonDecoder
    from p2pmsg.codec.by_msgspec import Meta as Meta
    from p2pmsg.codec.by_msgspec import Raw as Raw
    from p2pmsg.codec.by_msgspec import Struct as Struct
    from p2pmsg.codec.by_msgspec import astuple as astuple
    from p2pmsg.codec.by_msgspec import check_kind as check_kind
    from p2pmsg.codec.by_msgspec import convert as convert
    from p2pmsg.codec.by_msgspec import field as field
    from p2pmsg.codec.by_msgspec import json_decode as json_decode
    from p2pmsg.codec.by_msgspec import json_encode as json_encode
    from p2pmsg.codec.by_msgspec import make_decoder as make_decoder
    from p2pmsg.codec.by_msgspec import make_encoder as make_encoder
    from p2pmsg.codec.by_msgspec import replace as replace
    from p2pmsg.codec.by_msgspec import to_builtins as to_builtins
else:
    from p2pmsg.codec.by_msgpack import NAME as NAME
    from p2pmsg.codec.by_msgpack import CodecError as CodecError
    from p2pmsg.codec.by_msgpack import Encoder as Encoder
    from p2pmsg.codec.by_msgpack import Ext as Ext
    from p2pmsg.codec.by_msgpack import JsonDecoder as JsonDecoder
    from p2pmsg.codec.by_msgpack import Meta as Meta
    from p2pmsg.codec.by_msgpack import Raw as Raw
    from p2pmsg.codec.by_msgpack import Struct as Struct
    from p2pmsg.codec.by_msgpack import astuple as astuple
    from p2pmsg.codec.by_msgpack import check_kind as check_kind
    from p2pmsg.codec.by_msgpack import convert as convert
    from p2pmsg.codec.by_msgpack import field as field
    from p2pmsg.codec.by_msgpack import json_decode as json_decode
    from p2pmsg.codec.by_msgpack import json_encode as json_encode
    from p2pmsg.codec.by_msgpack import make_decoder as make_decoder
    from p2pmsg.codec.by_msgpack import make_encoder as make_encoder
    from p2pmsg.codec.by_msgpack import replace as replace
    from p2pmsg.codec.by_msgpack import to_builtins as to_builtins
