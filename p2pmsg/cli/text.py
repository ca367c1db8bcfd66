"""How values, messages and ledgers are printed."""

import base64
import json
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from p2pmsg.message import Message
from p2pmsg.stats import SubscriberStats

BASE64_MARK = "base64"
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))}


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
    if isinstance(value, msgspec.msgpack.Ext):
        return {"extension": value.code, "data": json_value(bytes(value.data))}
    return str(value)


def _json_key(key: Any) -> str:
    plain = json_value(key)
    return plain if isinstance(plain, str) else to_json(plain)


def to_json(value: Any) -> str:
    """Return `value` as JSON in one line."""
    return json.dumps(json_value(value), ensure_ascii=False, separators=(",", ":"))


def value_text(value: Any, *, to_terminal: bool = False) -> str:
    """Return `value` for people: text as it is, `base64:…`, or JSON.

    On a terminal, control characters are shown and not obeyed.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"{BASE64_MARK}:{base64.b64encode(value).decode()}"
    if not isinstance(value, str):
        return to_json(value)
    return value.translate(_CONTROL) if to_terminal else value


def message_json(message: Message) -> str:
    """Return a message as one JSON object in one line."""
    return to_json(
        {
            "topic": message.topic,
            "sequence": message.sequence,
            "key": message.key,
            "timestamp_ns": message.timestamp_ns,
            "headers": message.headers,
            "value": message.value,
            "publisher": message.publisher,
        }
    )


def render_columns(titles: Sequence[str], rows: Iterable[Sequence[Any]], text_columns: int) -> str:
    """Lay a table out: the first columns to the left, the others, numbers, to the right."""
    cells = [list(titles)]
    cells += [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [
            cell.ljust(width) if index < text_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def render_stats(stats: SubscriberStats) -> str:
    """Lay a subscriber's ledger out: one line a stream, the counters, and what was lost."""
    titles = ("topic", "publisher", "published", "delivered", "outstanding", "lost")
    rows = [
        (s.topic, s.publisher, s.published, s.delivered, s.outstanding, s.lost)
        for s in stats.streams
    ]
    repaired = ", ".join(f"{n:,} from the {source}" for source, n in stats.repaired.items() if n)
    lines = [
        render_columns(titles, rows, 2) if rows else "no stream",
        f"repaired: {repaired or 'none'}; duplicates dropped: {stats.duplicates:,}; "
        f"published = delivered + outstanding + lost: {'yes' if stats.balanced else 'NO'}",
        *map(str, stats.losses),
    ]
    return "\n".join(lines)
