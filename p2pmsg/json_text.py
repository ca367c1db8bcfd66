"""Values as JSON: what the command line prints, and what goes over HTTP."""

import base64
import json
import math
from datetime import UTC, datetime
from typing import Any, Final

from p2pmsg import codec

BASE64_MARK: Final = "base64"
_dumps: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_value(value: Any) -> Any:
    """Return `value` as JSON can say it.

    Bytes become text; those that are not UTF-8 become `{"base64": "…"}`. NaN and the infinities,
    which JSON does not know, become null.

    Raises:
        ValueError: it has more levels than Python takes (some 900; a published one has 500).

    """
    try:
        return _plain(value)
    except RecursionError:
        raise ValueError("is nested too deeply for JSON") from None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return _json_bytes(value)
    if isinstance(value, dict):
        made = {}  # without a comprehension: each would take a second frame for each level
        for key, part in value.items():
            made[_json_key(key)] = _plain(part)
        return made
    if isinstance(value, list | tuple):
        parts = []
        for part in value:
            parts.append(_plain(part))  # noqa: PERF401
        return parts
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, codec.Ext):
        return {"extension": value.code, "data": _json_bytes(bytes(value.data))}
    return str(value)


def _json_bytes(value: bytes) -> Any:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {BASE64_MARK: base64.b64encode(value).decode()}


def _json_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    plain = _plain(key)
    return plain if isinstance(plain, str) else _dumps(plain)


def to_json(value: Any) -> str:
    """Return `value` as JSON in one line; raises as `json_value` does."""
    plain = json_value(value)
    try:
        return _dumps(plain)
    except RecursionError:
        raise ValueError("is nested too deeply for JSON") from None


def time_text(timestamp_ns: int, timespec: str = "auto") -> str:
    """Return a time in RFC 3339, to the microsecond; `timespec` as of `datetime.isoformat`."""
    seconds, rest = divmod(timestamp_ns, 1_000_000_000)
    whole = datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest // 1000)
    return whole.isoformat(timespec=timespec).replace("+00:00", "Z")
