"""The codec of the package msgpack: byte for byte the same, where msgspec is not to be had."""

import contextlib
import enum
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from math import isfinite
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgpack

from p2pmsg.codec import converters, extensions, foreign
from p2pmsg.codec.converters import CodecError, convert
from p2pmsg.codec.fields import fields_of, sent_fields
from p2pmsg.codec.records import Meta, Struct
from p2pmsg.codec.spans import spans_of_array

__all__ = [
    "NAME", "CodecError", "Ext", "Meta", "Raw", "Struct", "check_kind", "convert", "json_decode",
    "json_encode", "make_decoder", "make_encoder",
]  # fmt: skip

NAME: Final = "msgpack"
_PACKERS_MAX: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
T = TypeVar("T")


class Raw(bytes):
    """Bytes that are msgpack already."""

    __slots__ = ()


class Ext:
    """A value of an extension type: `code`, from -128 to 127, and `data`, its bytes."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes | bytearray | memoryview) -> None:
        if type(code) is not int or not -128 <= code <= 127:
            raise ValueError(f"code must be an int from -128 to 127, not {code!r}")
        self.code, self.data = code, data

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Ext) and self.code == other.code
        return same and bytes(self.data) == bytes(other.data)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.code, bytes(self.data)))

    def __repr__(self) -> str:
        return f"Ext({self.code}, {bytes(self.data)!r})"


def _timestamp(moment: datetime) -> msgpack.Timestamp:
    """Return an aware datetime as msgpack's Timestamp."""
    seconds, rest = divmod(moment - _EPOCH, _SECOND)
    return msgpack.Timestamp(seconds, rest // timedelta(microseconds=1) * 1000)


def _duration(value: timedelta) -> str:
    """Return a timedelta as text, as msgspec writes it."""
    sign, value = ("-", -value) if value < timedelta() else ("", value)
    text = f"{sign}P{value.days}D" if value.days else f"{sign}P"
    if value.seconds or value.microseconds:
        text += f"T{value.seconds}"
        if value.microseconds:
            text += f".{value.microseconds:06}".rstrip("0")
        return text + "S"
    return text if value.days else "P0D"


def _clock(value: Any) -> str:
    """Return a time, or a datetime, as text; msgspec writes UTC as `Z`."""
    text: str = value.isoformat()
    return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text


def _to_plain(value: Any) -> Any:
    """Return what a packer of msgpack writes in the place of a value that it does not know."""
    kind: Any = type(value)
    if kind is tuple or kind is set or kind is frozenset:
        return list(value)
    if kind is Ext and value.code >= 0:
        return msgpack.ExtType(value.code, bytes(value.data))
    if kind is Raw or kind is Ext:
        raise NotImplementedError  # a packer of msgpack cannot write it
    if kind is datetime:
        return _timestamp(value) if value.utcoffset() is not None else value.isoformat()
    if kind is int:
        raise OverflowError("can't serialize ints < -2**63 or > 2**64 - 1")
    if kind in _TEXTS:
        return _TEXTS[kind](value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    fields = fields_of(kind)
    if fields is not None:
        sent = sent_fields(value, fields)
        return list(sent.values()) if fields.is_array else sent
    return foreign.replacement(value, Ext)


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    Decimal: str, UUID: str, date: date.isoformat, time: _clock, timedelta: _duration,
}  # fmt: skip


class Encoder:
    """Packs values, as msgspec's encoder does. It may be used by several threads."""

    __slots__ = ("_idle",)

    def __init__(self) -> None:
        self._idle: list[msgpack.Packer] = []

    def encode(self, value: Any) -> bytes:
        """Return a value packed.

        Raises:
            TypeError, ValueError, OverflowError, RecursionError: it cannot be.

        """
        idle = self._idle
        try:
            packer = idle.pop()
        except IndexError:
            packer = msgpack.Packer(strict_types=True, default=_to_plain)
        try:
            packed: bytes = packer.pack(value)
        except NotImplementedError:
            return self._encode_around(value)
        if len(idle) < _PACKERS_MAX:
            idle.append(packer)
        return packed

    def encode_into(self, value: Any, buffer: bytearray, offset: int = 0, /) -> None:
        """Write a value to `buffer` from `offset` on, and cut the rest off; -1: append it."""
        packed = self.encode(value)
        if offset == -1:
            buffer += packed
        else:
            if offset > len(buffer):
                buffer += bytes(offset - len(buffer))
            buffer[offset:] = packed

    def _encode_around(self, value: Any) -> bytes:
        """Pack a value in which there is what a packer of msgpack does not write."""
        if type(value) is Raw:
            return bytes(value)
        if type(value) is Ext:
            lead = bytearray(msgpack.packb(msgpack.ExtType(0, bytes(value.data))))
            lead[len(lead) - len(value.data) - 1] = value.code & 0xFF
            return bytes(lead)
        if isinstance(value, list | tuple):
            lead = msgpack.Packer().pack_array_header(len(value))
            return b"".join([lead, *map(self.encode, value)])
        if isinstance(value, dict):
            lead = msgpack.Packer().pack_map_header(len(value))
            parts = [self.encode(part) for pair in value.items() for part in pair]
            return b"".join([lead, *parts])
        return self.encode(_to_plain(value))


def ext_hook(code: int, data: bytes) -> Any:
    """Return the value of an extension; one that is unknown or malformed comes as it is."""
    with contextlib.suppress(LookupError, ValueError, ArithmeticError):
        return extensions.unpack(code, bytes(data))
    return Ext(code, data)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _pairs(found: list[tuple[Any, Any]]) -> dict[Any, Any]:
    return {_hashable(key): value for key, value in found}


def _unpack(data: Any, *, pairs: Callable[[Any], Any] | None = None) -> Any:
    try:
        return msgpack.unpackb(
            data, strict_map_key=False, timestamp=3, ext_hook=ext_hook, object_pairs_hook=pairs
        )
    except TypeError as error:
        if pairs is not None:
            raise CodecError(str(error)) from error
        return _unpack(data, pairs=_pairs)  # a list is a key; it becomes a tuple
    except (ValueError, OverflowError, msgpack.UnpackException) as error:
        raise CodecError(f"MessagePack data is malformed: {error}") from error


class Decoder(Generic[T]):
    """Reads msgpack into a type."""

    __slots__ = ("_convert", "_raw_at")

    def __init__(self, kind: Any = Any) -> None:
        arguments = getattr(kind, "__args__", ())
        self._raw_at = [at for at, one in enumerate(arguments) if one is Raw]
        plain: Any = kind
        if self._raw_at:
            plain = tuple[tuple(Any if one is Raw else one for one in arguments)]  # type: ignore[misc]
        self._convert = None if kind is Any else converters.converter(plain)

    def decode(self, data: bytes | bytearray | memoryview, /) -> Any:
        """Return the value.

        Raises:
            CodecError: it is malformed, or does not fit the type.

        """
        value = _unpack(data)
        if self._convert is not None:
            value = self._convert(value)
        if not self._raw_at:
            return value
        parts, spans = list(value), spans_of_array(bytes(data))
        for at in self._raw_at:
            parts[at] = Raw(spans[at])
        return tuple(parts)


def make_encoder() -> Encoder:
    """Return an encoder of values."""
    return Encoder()


def make_decoder(kind: Any = Any) -> Decoder[Any]:
    """Return a decoder into `kind`, by default into plain values."""
    return Decoder(kind)


def check_kind(kind: Any) -> None:
    """Raise `TypeError` where values cannot be decoded into `kind`."""
    converters.converter(kind)


def _json_default(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        import base64

        return base64.b64encode(value).decode()
    if type(value) is datetime:
        return _clock(value)
    return _to_plain(value)


def json_encode(value: Any) -> bytes:
    """Return a value as JSON text."""
    dumps = partial(json.dumps, separators=(",", ":"), ensure_ascii=False, default=_json_default)
    try:
        text = dumps(value, allow_nan=False)
    except ValueError:
        text = dumps(_finite(json.loads(dumps(value))))
    return text.encode()


def _finite(value: Any) -> Any:
    """Return a value with null for each number that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def json_decode(data: bytes | str) -> Any:
    """Return the value of a JSON text; `CodecError`: it is none, or has too many levels."""
    try:
        return json.loads(data, parse_constant=_refuse_constant, parse_float=_parse_float)
    except RecursionError:
        raise CodecError("it is nested too deeply") from None
    except ValueError as error:
        raise CodecError(f"JSON is malformed: {error}") from error


def _parse_float(text: str) -> float:
    if isfinite(value := float(text)):
        return value
    raise ValueError("Number out of range")


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"invalid character in {text}")
