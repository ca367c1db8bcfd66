"""Checks of arguments; each message names the field, the limit and the value. And times."""

import math
from numbers import Integral, Real
from random import Random

NS_PER_S = 1_000_000_000
_FOREVER_S = 2**62 / NS_PER_S


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


def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, rounded to the nearest; 146 years at most."""
    return round(min(seconds, _FOREVER_S) * NS_PER_S)


def backed_off_ns(
    initial_ns: int, ceiling_ns: int, attempt: int, jitter: float, rng: Random
) -> int:
    """Return how long to wait after attempt `attempt` (0-based), in ns.

    It doubles with each attempt up to the ceiling; of that a random part, of `jitter` at most, is
    taken off. So receivers that lost the same frame do not ask in step even at the ceiling.
    """
    wait_ns = min(ceiling_ns, initial_ns << min(attempt, 62))
    return wait_ns - round(wait_ns * jitter * rng.random()) if jitter else wait_ns
