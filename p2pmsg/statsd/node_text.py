"""Numbers and objects as Node prints them (`util.inspect`), for the management port.

Scripts in the field read what statsd's port answers, so it is the same to the character.
"""

import math
import re
from collections.abc import Sequence
from decimal import Decimal

_IDENTIFIER = re.compile(r"[a-zA-Z_][a-zA-Z_0-9]*")
_BREAK_LENGTH = 80
_ITEMS_MAX = 100
_INDENT = 2


def number_text(value: float) -> str:
    """Return a number as JavaScript writes it."""
    value = float(value)
    if not math.isfinite(value):
        return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    if value.is_integer() and abs(value) < 1e21:
        return f"{Decimal(repr(value)):.0f}"  # the shortest digits, then zeros
    digits = repr(value)
    if 1e-6 <= abs(value) < 1e21:
        return f"{Decimal(digits):f}"
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent):+d}"


def key_text(key: str) -> str:
    """Return a property's name, quoted unless it is an identifier."""
    if _IDENTIFIER.fullmatch(key):
        return key
    quote = "'" if "'" not in key else ('"' if '"' not in key else "`" if "`" not in key else "'")
    escaped = key.replace("\\", "\\\\")
    if quote == "'":
        escaped = escaped.replace("'", "\\'")
    escaped = "".join(c if c >= " " and c != "\x7f" else f"\\x{ord(c):02X}" for c in escaped)
    return f"{quote}{escaped}{quote}"


def object_text(entries: Sequence[tuple[str, float | Sequence[float]]]) -> str:
    """Return an object of numbers, or of arrays of numbers."""
    if not entries:
        return "{}"
    output = [
        f"{key_text(key)}: "
        + (number_text(value) if isinstance(value, int | float) else _array_text(value))
        for key, value in entries
    ]
    return _join(output, "{", "}", 0, len(output))


def _array_text(values: Sequence[float]) -> str:
    output = [number_text(value) for value in values[:_ITEMS_MAX]]
    if not output:
        return "[]"
    more = len(values) - len(output)
    if more:
        output.append(f"... {more} more item{'s' if more > 1 else ''}")
    count = len(output)
    if count > 6:
        output = _group(output, bool(more))
    return _join(output, "[", "]", _INDENT, count)


def _join(output: list[str], left: str, right: str, indent: int, count: int) -> str:
    """Write on one line what fits there and was not grouped (`reduceToSingleString`)."""
    if len(output) == count:
        length = sum(map(len, output)) + 2 * len(output) + indent + len(left) + 10
        if length <= _BREAK_LENGTH and not any("\n" in part for part in output):
            return f"{left} {', '.join(output)} {right}"
    space = "\n" + " " * indent
    return f"{left}{space}  {f',{space}  '.join(output)}{space}{right}"


def _group(output: list[str], has_more: bool) -> list[str]:
    """Put more than six numbers in columns (`groupArrayElements`)."""
    items = output[:-1] if has_more else output
    longest = max(map(len, items)) + 2
    total = sum(map(len, items)) + 2 * len(items)
    if longest * 3 + _INDENT >= _BREAK_LENGTH or not (total / longest > 5 or longest <= 8):
        return output
    biased = max(longest - 3 - math.sqrt(longest - total / len(output)), 1)
    columns = min(
        math.floor(math.sqrt(2.5 * biased * len(items)) / biased + 0.5),
        (_BREAK_LENGTH - _INDENT) // longest,
        12,
        15,
    )
    if columns <= 1:
        return output
    widths = [max(map(len, items[column::columns])) + 2 for column in range(columns)]
    lines = []
    for start in range(0, len(items), columns):
        part = items[start : start + columns]
        cells = [f"{text}, ".rjust(widths[column]) for column, text in enumerate(part[:-1])]
        lines.append("".join(cells) + part[-1].rjust(widths[len(part) - 1] - 2))
    return lines + output[-1:] if has_more else lines
