"""Values as JSON: what the command line prints, and what goes over HTTP."""

import base64
import json
import math
from datetime import datetime
from typing import Any, Final

from p2pmsg import codec

BASE64_MARK: Final = "base64"


def json_value(value: Any) -> Any:
    """Return `value` as JSON can say it.

    Bytes become text; those that are not UTF-8 become `{"base64": "…"}`. NaN and the infinities,
    which JSON does not know, become null.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {BASE64_MARK: base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {_json_key(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, codec.Ext):
        return {"extension": value.code, "data": json_value(bytes(value.data))}
    return str(value)


def _json_key(key: Any) -> str:
    plain = json_value(key)
    return plain if isinstance(plain, str) else to_json(plain)


def to_json(value: Any) -> str:
    """Return `value` as JSON in one line."""
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":"))
