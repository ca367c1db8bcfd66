"""Values as JSON: what the command line prints, and what goes over HTTP."""

import base64
import json
import math
from datetime import datetime
from typing import Any, Final

from p2pmsg import codec

BASE64_MARK: Final = "base64"
_LEVELS_MAX: Final = 100_000
"""Far more than a decoder reads; only a value that has itself in it has as many."""
_dumps: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_Waiting = list[tuple[Any, Any, int]]
"""Dicts and lists, what is made of each, so far empty, and how deep they are."""


def json_value(value: Any) -> Any:
    """Return `value` as JSON can say it, however deeply it is nested.

    Bytes become text; those that are not UTF-8 become `{"base64": "…"}`. NaN and the infinities,
    which JSON does not know, become null.

    Raises:
        ValueError: it has more than 100,000 levels, as one that has itself in it.

    """
    waiting: _Waiting = []
    made = _begun(value, waiting, 0)
    while waiting:
        part, plain, level = waiting.pop()
        if level > _LEVELS_MAX:
            raise ValueError(f"is nested deeper than {_LEVELS_MAX:,} levels")
        if isinstance(part, dict):
            for key, item in part.items():
                plain[_json_key(key)] = _begun(item, waiting, level)
        else:
            plain += [_begun(item, waiting, level) for item in part]
    return made


def _begun(value: Any, waiting: _Waiting, level: int) -> Any:
    """Return a value as JSON; of a dict or a list an empty one, which then waits to be filled."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return _json_bytes(value)
    if isinstance(value, dict | list | tuple):
        plain: Any = {} if isinstance(value, dict) else []
        waiting.append((value, plain, level + 1))
        return plain
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
    plain = json_value(key)
    return plain if isinstance(plain, str) else _text(plain)


def to_json(value: Any) -> str:
    """Return `value` as JSON in one line; raises as `json_value` does."""
    return _text(json_value(value))


def _text(plain: Any) -> str:
    try:
        return _dumps(plain)
    except RecursionError:
        return _text_of_deep(plain)


def _text_of_deep(plain: Any) -> str:
    """Do the same without a call for each level, in many times as long."""
    texts: list[str] = []
    todo = [plain]
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):  # it is text, as a plain value has no tuples
            texts += part
        elif isinstance(part, dict) and part:
            texts.append("{")
            todo.append(("}",))
            for key, item in reversed(part.items()):
                todo += (item, (_dumps(key), ":"), (",",))
            todo.pop()
        elif isinstance(part, list) and part:
            texts.append("[")
            todo.append(("]",))
            for item in reversed(part):
                todo += (item, (",",))
            todo.pop()
        else:
            texts.append(_dumps(part))
    return "".join(texts)
