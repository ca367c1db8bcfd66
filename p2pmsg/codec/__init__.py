"""What packs values and reads them: msgpack, JSON, and the classes of the bodies of frames.

Only this package imports msgspec, or msgpack where msgspec is not to be had; `chosen` decides. The
bytes are the same.

==============  ==================================================================================
`chosen`        which codec it is, and its names
`by_msgspec`    the codec of msgspec
`by_msgpack`    the codec of the package msgpack, with `records` for Structs, `converters` for types
`extensions`    the extension types by which a Decimal arrives as a Decimal
`foreign`       types of numpy and pydantic
`spans`         where packed values end
`plain`         has msgpack a type for each part of a value?
`fields`        what records consist of
`prepare`       looks at each part of a value: does it arrive as the type it has?
`exact`         packs values, each part as the type it has
==============  ==================================================================================
"""

from typing import Any, Final

from p2pmsg.codec import chosen
from p2pmsg.codec.chosen import *  # noqa: F403
from p2pmsg.codec.exact import ExactEncoder as ExactEncoder
from p2pmsg.codec.plain import SCALARS as SCALARS
from p2pmsg.codec.plain import packed_if_plain as packed_if_plain
from p2pmsg.codec.prepare import EncHook as EncHook
from p2pmsg.codec.prepare import path_of_refused as path_of_refused
from p2pmsg.codec.prepare import prepare as prepare
from p2pmsg.codec.prepare import prepare_noting as prepare_noting

encoder: Final = chosen.make_encoder()
"""Packs values. What it does not know goes as `foreign.replacement` says."""
exact_encoder: Final = ExactEncoder()
"""Packs values so that each part arrives as the type it has, or raises `MessageError`."""
_decoder: Final = chosen.make_decoder()


def encode(value: Any) -> bytes:
    """Return a value as msgpack."""
    return encoder.encode(value)


def decode(data: bytes | bytearray | memoryview) -> Any:
    """Return the value of some msgpack; raises `CodecError`."""
    return _decoder.decode(data)
