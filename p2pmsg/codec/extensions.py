"""The extension types of msgpack by which values arrive as the type they were sent as.

Their codes and bytes stand in `p2pmsg/PROTOCOL.md`. An aware datetime is msgpack's own Timestamp
(code -1), which the codecs know themselves.
"""

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

TIMESTAMP: Final = -1
DECIMAL: Final = 112
DATE: Final = 113
TIME: Final = 114
DATETIME: Final = 115
TIMEDELTA: Final = 116
UUID_: Final = 117
_MICROSECOND: Final = timedelta(microseconds=1)


def _pack_time(value: time) -> bytes:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise ValueError("its time zone has no fixed offset")
    return value.isoformat().encode()


_PACK: Final[dict[type, tuple[int, Callable[[Any], bytes]]]] = {
    Decimal: (DECIMAL, lambda value: str(value).encode()),
    date: (DATE, lambda value: value.isoformat().encode()),
    time: (TIME, _pack_time),
    datetime: (DATETIME, lambda value: value.isoformat().encode()),
    timedelta: (TIMEDELTA, lambda value: b"%d" % (value // _MICROSECOND)),
    UUID: (UUID_, lambda value: value.bytes),
}
KINDS: Final = frozenset(_PACK)
"""The types that have an extension type; of datetimes, the naive ones."""


def pack(value: Any) -> tuple[int, bytes]:
    """Return code and bytes of a value whose type is in `KINDS`; `ValueError`: it has no such."""
    code, packed = _PACK[type(value)]
    return code, packed(value)


def _unpack_timedelta(data: bytes) -> timedelta:
    return int(data) * _MICROSECOND


_UNPACK: Final[dict[int, Callable[[bytes], Any]]] = {
    DECIMAL: lambda data: Decimal(data.decode()),
    DATE: lambda data: date.fromisoformat(data.decode()),
    TIME: lambda data: time.fromisoformat(data.decode()),
    DATETIME: lambda data: datetime.fromisoformat(data.decode()),
    TIMEDELTA: _unpack_timedelta,
    UUID_: lambda data: UUID(bytes=data),
}


def unpack(code: int, data: bytes) -> Any:
    """Return the value of an extension type of ours.

    Raises:
        LookupError: the code is none of ours.
        ValueError, ArithmeticError: the bytes are no such value.

    """
    return _UNPACK[code](data)
