"""Checks that the configurations share; each raises `ConfigError` naming field, limit and value."""

import math
from typing import Any

from p2pmsg.errors import ConfigError


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


def check_busy_wait(seconds: float) -> None:
    """Raise `ConfigError` unless it is how long a wait may look before it sleeps."""
    at_least("busy_wait", seconds, 0)
    check("busy_wait", seconds, seconds <= 0.001, "at most 0.001")


def of_kind(field_name: str, value: Any, kind: type) -> None:
    """Raise `ConfigError` unless `value` is a `kind`."""
    check(field_name, value, isinstance(value, kind), f"a {kind.__name__}")
