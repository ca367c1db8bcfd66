"""Numbers as StatsD reads and writes them, and names as statsd cleans them.

Python's own `float` accepts `1_000`, `nan`, `infinity`, digits of any script and surrounding
blanks; none of them is a number here.
"""

import math
import re

_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SPACE_RUN = re.compile(r"\s+")
_NOT_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_DROPPED = re.compile(r"[^a-zA-Z_\-0-9.;=]")


def decimal(text: str) -> float:
    """Parse a decimal number; `ValueError` if it is none, or not finite as a float."""
    if not _DECIMAL.fullmatch(text):
        raise ValueError("bad_number" if text else "no_value")
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not_finite")
    return number


def number_text(value: float) -> str:
    """Return a number with the fewest digits that are read as the same number."""
    return str(value).removesuffix(".0")


def clean_name(name: str) -> str:
    """Return a name as statsd's `sanitizeKeyName` leaves it."""
    return _DROPPED.sub("", _SPACE_RUN.sub("_", name).replace("/", "-"))


def clean_label(name: str) -> str:
    """Return a name as Prometheus allows it for labels: letters, digits and underscores."""
    cleaned = _NOT_LABEL.sub("_", name)
    return f"_{cleaned}" if cleaned[:1].isdigit() else cleaned
