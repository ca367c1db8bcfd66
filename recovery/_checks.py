"""Checks that the configurations share; each message names the field, the limit and the value."""

import math

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def at_least(field: str, value: float, limit: float) -> None:
    """Raise `ValueError` unless `value` is finite and `value >= limit`."""
    if not (math.isfinite(value) and value >= limit):
        raise ValueError(f"{field} must be finite and at least {limit}, not {value!r}")


def above(field: str, value: float, limit: float) -> None:
    """Raise `ValueError` unless `value` is finite and `value > limit`."""
    if not (math.isfinite(value) and value > limit):
        raise ValueError(f"{field} must be finite and above {limit}, not {value!r}")


def at_most(field: str, value: float, limit: float) -> None:
    """Raise `ValueError` unless `value <= limit`."""
    if not value <= limit:
        raise ValueError(f"{field} must be at most {limit}, not {value!r}")


def ms_to_ns(value_ms: float) -> int:
    """Milliseconds as whole nanoseconds, rounded to the nearest."""
    return round(value_ms * NS_PER_MS)
