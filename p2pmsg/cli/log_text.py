"""How a log's amounts, times and messages are printed."""

import math
from datetime import UTC, datetime, timedelta

from p2pmsg.cli.text import to_json
from p2pmsg.message import Message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AMOUNTS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SPANS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_YEAR_S = 365.25 * 86_400


def bytes_text(count: float) -> str:
    """Return a number of bytes for people, such as `1.5 GB`; a GB is 10**9 bytes."""
    return f"{_amount_text(count)}B"


def rate_text(per_second: float | None) -> str:
    """Return how many a second for people; `-` where it is not known."""
    if per_second is None:
        return "-"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.3g}"


def _amount_text(amount: float) -> str:
    for factor, prefix in _AMOUNTS:
        if amount >= factor * 0.9995:
            scaled = amount / factor
            return f"{scaled:.3g} {prefix}" if scaled < 999.5 else f"{scaled:,.0f} {prefix}"
    return f"{amount:.0f} "


def span_text(seconds: float) -> str:
    """Return a time span for people, by its two largest units: `1 d 22 h`."""
    if not math.isfinite(seconds):
        return "for ever"
    if seconds >= 10 * _YEAR_S:
        return f"{seconds / _YEAR_S:,.0f} years"
    if seconds < 10:
        return f"{seconds:.3g} s"
    left = round(seconds)
    parts: list[str] = []
    for unit, length in _SPANS:
        number, left = divmod(left, length)
        if parts or number:
            parts.append(f"{number} {unit}")
        if len(parts) == 2:
            break
    return " ".join(part for index, part in enumerate(parts) if not index or part[0] != "0")


def time_text(timestamp_ns: int) -> str:
    """Return a time in ns since the epoch as ISO, in UTC, to the microsecond."""
    try:
        time = _EPOCH + timedelta(microseconds=timestamp_ns // 1000)
    except OverflowError:
        return f"{timestamp_ns} ns"
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def session_text(session: int) -> str:
    """Return a session as its 16 hexadecimal digits."""
    return f"{session:016x}"


def log_message_json(message: Message) -> str:
    """Return a message of the log as one JSON object in one line; the log knows no names."""
    return to_json(
        {
            "topic": message.topic,
            "session": session_text(message.session),
            "sequence": message.sequence,
            "key": message.key,
            "timestamp_ns": message.timestamp_ns,
            "headers": message.headers,
            "value": message.value,
        }
    )
