"""Checks that the configurations share; each raises `ConfigError` naming field, limit and value."""

import math
from typing import Any, Final

from p2pmsg.errors import ConfigError

_FOREVER_S: Final = 1e9
"""Above it the system's calls refuse a time to wait."""


def check(field_name: str, value: Any, ok: bool, limit: str) -> None:
    """Raise `ConfigError` unless `ok`."""
    if not ok:
        raise ConfigError(field_name, limit, value)


def at_least(field_name: str, value: float, least: float) -> None:
    """Raise `ConfigError` unless `value` is a finite number of at least `least`."""
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    ok = ok and math.isfinite(value) and value >= least
    check(field_name, value, ok, f"at least {least}, and finite")


def whole(field_name: str, value: int, least: int) -> None:
    """Raise `ConfigError` unless `value` is an int of at least `least`."""
    ok = isinstance(value, int) and not isinstance(value, bool) and value >= least
    check(field_name, value, ok, f"an int of at least {least}")


def time_to_wait(field_name: str, seconds: float) -> float:
    """Return how long to wait, from 0 to what the system can wait; raise `ConfigError` for no time.

    Less than 0 is no wait, as where a caller gives what is left until its deadline; infinite is
    without end.
    """
    ok = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    ok = ok and not math.isnan(seconds)
    check(field_name, seconds, ok, "a number of seconds")
    return max(0, min(seconds, _FOREVER_S))


def check_visible(field_name: str, text: str) -> None:
    """Raise `ConfigError` unless `text` is visible characters of ASCII, as a header has them."""
    ok = isinstance(text, str) and text.isascii() and text.isprintable() and " " not in text
    check(field_name, text, ok and bool(text), "visible characters of ASCII, one at least")


def check_busy_wait(seconds: float) -> None:
    """Raise `ConfigError` unless it is how long a wait may look before it sleeps."""
    at_least("busy_wait", seconds, 0)
    check("busy_wait", seconds, seconds <= 0.001, "at most 0.001")


def of_kind(field_name: str, value: Any, kind: type) -> None:
    """Raise `ConfigError` unless `value` is a `kind`."""
    check(field_name, value, isinstance(value, kind), f"a {kind.__name__}")
