"""The codec of msgspec: the one that is used where msgspec is installed."""

import contextlib
from typing import Any, Final

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.msgpack import Encoder, Ext

from p2pmsg.codec import extensions, foreign

__all__ = [
    "NAME", "CodecError", "Ext", "Meta", "Raw", "Struct", "check_kind", "convert", "json_decode",
    "json_encode", "make_decoder", "make_encoder",
]  # fmt: skip

CodecError = msgspec.MsgspecError
NAME: Final = "msgspec"
_BUILTIN: Final = (bytes, bytearray, memoryview)

json_encode: Final = msgspec.json.Encoder().encode


def json_decode(data: bytes | str) -> Any:
    """Return the value of a JSON text; `CodecError`: it is none, or has too many levels."""
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise CodecError("it is nested too deeply") from None


def ext_hook(code: int, data: memoryview) -> Any:
    """Return the value of an extension; one that is unknown or malformed comes as it is."""
    with contextlib.suppress(LookupError, ValueError, ArithmeticError):
        return extensions.unpack(code, bytes(data))
    return Ext(code, bytes(data))


def encode_foreign(value: Any) -> Any:
    """Return what stands for a value that msgspec does not know; `TypeError`: nothing does."""
    return foreign.replacement(value, Ext)


def make_encoder() -> Encoder:
    """Return an encoder of values."""
    return Encoder(enc_hook=encode_foreign)


def make_decoder(kind: Any = Any) -> Any:
    """Return a decoder into `kind`, by default into plain values."""
    hook = foreign.convert_foreign
    return msgspec.msgpack.Decoder(kind, ext_hook=ext_hook, dec_hook=hook)


def convert(value: Any, kind: Any) -> Any:
    """Return a decoded value as a `kind`; `CodecError`: it does not fit."""
    return msgspec.convert(value, kind, builtin_types=_BUILTIN, dec_hook=foreign.convert_foreign)


def check_kind(kind: Any) -> None:
    """Raise `TypeError` where values cannot be decoded into `kind`."""
    msgspec.msgpack.Decoder(kind, dec_hook=foreign.convert_foreign)
    waiting, seen = [msgspec.inspect.type_info(kind)], set()
    while waiting:
        info = waiting.pop()
        if isinstance(info, tuple):
            waiting += info
        elif isinstance(info, Struct) and id(info) not in seen:
            seen.add(id(info))
            if isinstance(info, msgspec.inspect.CustomType) and not foreign.is_model(info.cls):
                raise TypeError(f"{info.cls!r} is no type that values can be decoded into")
            waiting += msgspec.structs.astuple(info)
