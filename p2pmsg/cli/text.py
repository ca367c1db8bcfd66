"""How values, messages, amounts, times and tables are printed."""

import base64
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from p2pmsg.message import Message
from p2pmsg.stats import SubscriberStats
from p2pmsg.toolkit import to_json

_AMOUNTS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))}


def plural(count: int, noun: str) -> str:
    """Return a count and its noun: `1 stream`, `2,000 streams`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def counted(counts: Mapping[str, int], always: int = 0) -> list[str]:
    """Return counts in words, without those that are 0 but the first `always` ones."""
    return [f"{n:,} {what}" for at, (what, n) in enumerate(counts.items()) if n or at < always]


def write_lines(lines: Iterable[str]) -> None:
    """Write lines on standard output as UTF-8, whatever its own encoding is."""
    if sys.stdout is not None:
        sys.stdout.buffer.write("\n".join([*lines, ""]).encode(errors="replace"))


def value_text(value: Any, *, to_terminal: bool = False) -> str:
    """Return `value` for people: text as it is, `base64:…`, or JSON.

    On a terminal, control characters are shown and not obeyed.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return f"base64:{base64.b64encode(value).decode()}"
    if not isinstance(value, str):
        return to_json(value)
    return value.translate(_CONTROL) if to_terminal else value


def message_json(message: Message, *, of_log: bool = False) -> str:
    """Return a message as one JSON object in one line.

    One of a log has its session, as a log has no publishers' names.
    """
    session = {"session": session_text(message.session)} if of_log else {}
    publisher = {} if of_log else {"publisher": message.publisher}
    return to_json(
        {
            "topic": message.topic,
            **session,
            "sequence": message.sequence,
            "key": message.key,
            "timestamp_ns": message.timestamp_ns,
            "headers": message.headers,
            "value": message.value,
            **publisher,
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
        *([f"denied: {stats.denied:,} topics and prefixes"] if stats.denied else []),
        *map(str, stats.losses),
    ]
    return "\n".join(lines)


def bytes_text(count: float) -> str:
    """Return a number of bytes for people, such as `1.5 GB`; a GB is 10**9 bytes."""
    for factor, prefix in _AMOUNTS:
        if count >= factor * 0.9995:
            scaled = count / factor
            return f"{scaled:.3g} {prefix}B" if scaled < 999.5 else f"{scaled:,.0f} {prefix}B"
    return f"{count:.0f} B"


def rate_text(per_second: float | None) -> str:
    """Return how many a second for people; `-` where it is not known."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.3g}"


def session_text(session: int) -> str:
    """Return a session as its 16 hexadecimal digits."""
    return f"{session:016x}"
