"""Checks that the configurations share; each message names the field, the limit and the value."""

import math
from numbers import Integral, Real

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def at_least(field: str, value: float, limit: float) -> None:
    """Raise `ValueError` unless `value` is a finite number and `value >= limit`."""
    if not (_is_number(value) and value >= limit):
        raise ValueError(f"{field} must be finite and at least {limit}, not {value!r}")


def above(field: str, value: float, limit: float) -> None:
    """Raise `ValueError` unless `value` is a finite number and `value > limit`."""
    if not (_is_number(value) and value > limit):
        raise ValueError(f"{field} must be finite and above {limit}, not {value!r}")


def whole(field: str, value: int, least: int, most: int) -> None:
    """Raise `ValueError` unless `value` is a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= value <= most:
        raise ValueError(f"{field} must be a whole number from {least} to {most}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def at_most(field: str, value: float, limit: float) -> None:
    """Raise `ValueError` unless `value <= limit`."""
    if not value <= limit:
        raise ValueError(f"{field} must be at most {limit}, not {value!r}")


def ms_to_ns(value_ms: float) -> int:
    """Milliseconds as whole nanoseconds, rounded to the nearest."""
    return round(value_ms * NS_PER_MS)
