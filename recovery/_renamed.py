"""Former names of arguments and fields, most of them times in ms; they go in a later release."""

import sys
import warnings
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

C = TypeVar("C")
P = ParamSpec("P")
R = TypeVar("R")

_IN_A_SECOND = {"ms": 1e3, "us": 1e6, "s": 1, "seconds": 1}


def renamed_fields(**now: str) -> Callable[[type[C]], type[C]]:
    """Let a class take the former names of its fields, `former="present"`, with a warning.

    They are converted by the unit that is part of them: `linger_ms` in ms is `linger` in seconds.
    In the constructor a former name goes before the present one, of which `replace` gives the old
    value.
    """

    def decorate(kind: type[C]) -> type[C]:
        kind.__init__ = _taking(now, kind.__init__, replaces=True)  # type: ignore[method-assign]
        for former, present in now.items():
            setattr(kind, former, _field(f"{kind.__name__}.{former}", present, _units(former)))
        return kind

    return decorate


def renamed_arguments(**now: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take the former names of its keywords, as `renamed_fields` does."""
    return lambda function: _taking(now, function)


def renamed_names(module: str, **now: str) -> Callable[[str], Any]:
    """Return a `__getattr__` that gives what a module had under former names, with a warning."""

    def get(name: str) -> Any:
        if name not in now:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{name} is {now[name]} now", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], now[name])

    return get


def warn(former: str, present: str, *, stacklevel: int) -> None:
    """Warn of a former name; `stacklevel` as for `warnings.warn`, of the caller."""
    what = f"{former} is {present} now, in seconds"
    warnings.warn(what, DeprecationWarning, stacklevel=stacklevel + 1)


def _taking(
    now: Mapping[str, str], function: Callable[P, R], *, replaces: bool = False
) -> Callable[P, R]:
    @wraps(function)
    def taking(*args: P.args, **kwargs: P.kwargs) -> R:
        if not now.keys().isdisjoint(kwargs):
            for former in now.keys() & kwargs:
                present, value = now[former], kwargs.pop(former)
                if present in kwargs and not replaces:
                    raise TypeError(f"{former} is {present} now: give the latter only")
                warn(former, present, stacklevel=2)
                kwargs[present] = _to_seconds(value, _units(former))
        return function(*args, **kwargs)

    return taking


def _field(former: str, present: str, units: float) -> Any:
    def read(self: Any) -> Any:
        warn(former, present, stacklevel=2)
        value = getattr(self, present)
        return None if value is None else round(value * units, 9)

    def write(self: Any, value: Any) -> None:
        warn(former, present, stacklevel=2)
        setattr(self, present, _to_seconds(value, units))

    return property(read, write, doc=f"Former name of `{present}`.")


def _to_seconds(value: object, units: float) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value  # None, or for the checks to refuse
    return value / units


def _units(former: str) -> float:
    return _IN_A_SECOND[former.replace("_max", "").rpartition("_")[2]]
