"""Checks of arguments; each message names the field, the limit and the value. And times."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

NS_PER_S = 1_000_000_000
_FOREVER_S = 2**62 / NS_PER_S
_SECONDS_MAX: Final = 1e9
"""What a float is at most, where nothing else is said: above it system calls refuse a time."""
_SIZE: Final = re.compile(r"([0-9_]+(?:\.[0-9]+)?) *(?:([kmgt])(i?))?b?", re.IGNORECASE)

Bound = float | tuple[float, float]
"""The least value of a number, or the least and the largest."""
Failing = Callable[[str, str, Any], object]


def check_fields(config: Any, **bounds: Bound) -> None:
    """Check the fields of a dataclass as `fit` does.

    Raises:
        ValueError: a field is not as it must be.

    """
    fit_fields(_fail, config, bounds)


def fit_fields(fail: Failing, config: Any, bounds: Mapping[str, Bound]) -> None:
    """Check the fields of a dataclass as `fit` does; a size that was given as a text is its int."""
    given = {name: getattr(config, name) for name in config.__dataclass_fields__}
    for name, value in fit(fail, type(config), given, bounds):
        object.__setattr__(config, name, value)


def fit(
    fail: Failing, owner: Any, given: Mapping[str, Any], bounds: Mapping[str, Bound]
) -> list[tuple[str, Any]]:
    """Check that values fit their annotations; return those that were texts of sizes, as ints.

    A number is finite and at least 0; an int is below 2**63, and a float at most 1e9. For a number
    of bytes, "64MiB" is taken, too.

    Args:
        fail: raises; it gets the field's name, the limit and the value.
        owner: the class or function that has the annotations.
        given: the values, by name.
        bounds: other bounds of numbers, by name.

    """
    hints, sizes = _hints(owner), []
    for name, value in given.items():
        if (hint := hints.get(name)) is None:
            continue
        if isinstance(value, str) and "bytes" in name and not _fits(hint, value, 0):
            if (size := _size(value)) is None:
                fail(name, "a number of bytes, such as 65536 or 64KiB", value)
            value = size
            sizes.append((name, value))
        bound = bounds.get(name, 0)
        if not _fits(hint, value, bound):
            fail(name, _limit(hint, value, bound), value)
    return sizes


def _size(text: str) -> int | None:
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    power = " kmgt".index((found[2] or " ").lower())
    return int(float(found[1]) * float(1024 if found[3] else 1000) ** power)


@lru_cache(maxsize=512)
def _hints(owner: Any) -> dict[str, Any]:
    """Return annotations; a name that is only there for type checkers is one of a class."""
    names: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(owner, localns=names)
        except NameError as error:
            name = str(error.name)
            names[name] = _OfName(name, (), {})


class _OfName(type):
    """The class of that name, which may not be imported."""

    def __instancecheck__(cls, value: object) -> bool:
        return any(each.__name__ == cls.__name__ for each in type(value).__mro__)


def _fits(hint: Any, value: Any, bound: Bound) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(each, value, bound) for each in args)
    if origin is Literal:
        return any(value is each or (type(value) is type(each) and value == each) for each in args)
    if hint in (int, float):
        least, most = _bounds(hint, bound)
        return _is_number(value, hint) and least <= value <= most
    if hint in (Any, object) or origin is type or isinstance(hint, TypeVar):
        return True
    kind = Collection if origin is Sequence else origin or hint
    try:
        if not isinstance(value, kind):
            return False
    except TypeError:  # a protocol that cannot be asked
        return True
    if origin is None or not args or origin is Callable:
        return True
    if isinstance(value, Mapping):
        kinds = [args[0]] * len(value) + [args[-1]] * len(value)
        items = (*value, *value.values())
        return len(args) == 2 and all(map(_fits, kinds, items, [bound] * len(items)))
    if origin is tuple and args[-1] is not ...:
        return len(value) == len(args) and all(map(_fits, args, value, [bound] * len(args)))
    if isinstance(value, str | bytes):
        return False  # it is no list of its characters
    return not isinstance(value, Collection) or all(_fits(args[0], one, bound) for one in value)


def _limit(hint: Any, value: Any, bound: Bound) -> str:
    """Return what a value must be, for people."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(_limit(each, value, bound) for each in get_args(hint)))
    if hint in (int, float):
        least, most = _bounds(hint, bound)
        if _is_number(value, hint) and value > most:
            return f"at most {most:.15g}" if hint is float else f"at most {most}"
        return f"an int of at least {least}" if hint is int else f"a number of at least {least}"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if hint is NoneType:
        return "None"
    if get_origin(hint) is Callable:
        return "a callable"
    is_plain = len(get_args(hint)) == 1
    return f"a {re.sub(r'[a-zA-Z0-9_.]+[.]', '', str(hint)) if is_plain else hint.__name__}"


def _bounds(kind: type, bound: Bound) -> tuple[float, float]:
    if isinstance(bound, tuple):
        return bound
    return bound, 2**63 - 1 if kind is int else _SECONDS_MAX


def _is_number(value: object, kind: type) -> bool:
    number = Integral if kind is int else Real
    return isinstance(value, number) and not isinstance(value, bool) and value == value


def _fail(field: str, limit: str, value: Any) -> None:
    raise ValueError(f"{field} must be {limit}, not {value!r}")


def to_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds, rounded to the nearest; 146 years at most."""
    return round(min(seconds, _FOREVER_S) * NS_PER_S)
