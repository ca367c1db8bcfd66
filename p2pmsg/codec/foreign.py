"""Types of other libraries, none of which is imported here: numpy, pydantic, msgpack."""

import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

_BY_BOTH_NAMES: Final = {"by_name": True, "by_alias": True}
"""Models are sent by their fields' names, and others may send them by alias."""
_PLAIN: Final = frozenset((bool, int, float, str, bytes))


def _is_of(value: Any, module: str, name: str) -> bool:
    """Whether `value` is an instance of a class of a module, which then must be imported."""
    found = sys.modules.get(module)
    return found is not None and isinstance(value, getattr(found, name, ()))


def is_model(kind: Any) -> bool:
    """Whether `kind` is a class of pydantic's models."""
    found = sys.modules.get("pydantic")
    return found is not None and isinstance(kind, type) and issubclass(kind, found.BaseModel)


def is_extension(value: Any) -> bool:
    """Whether `value` is an ExtType of the package msgpack."""
    return _is_of(value, "msgpack", "ExtType")


def unsupported(value: Any) -> TypeError:
    """Return what to raise for a value that has no msgpack type."""
    kind = type(value)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return TypeError(f"Encoding objects of type {name} is unsupported")


def replacement(value: Any, make_extension: Callable[[int, bytes], Any]) -> Any:
    """Return what goes in the place of a value of another library.

    That is a number for numpy's scalars, a dict of its fields for a pydantic model, and an
    extension for the Timestamp of the package msgpack.

    Raises:
        TypeError: there is nothing such.

    """
    if _is_of(value, "numpy", "generic"):
        item = value.item()
        if type(item) in _PLAIN:
            return item
    elif is_model(type(value)):
        return value.model_dump()
    elif _is_of(value, "msgpack", "Timestamp"):
        try:
            value.to_datetime()
        except (OverflowError, ValueError):
            raise TypeError(f"{value!r} is not within the years 1 to 9999") from None
        return make_extension(-1, value.to_bytes())
    raise unsupported(value)


@lru_cache(maxsize=64)
def _knows_names(kind: Any) -> bool:
    """Whether fields that have an alias may be taken by name, too: from pydantic 2.11 on."""
    return "by_name" in inspect.signature(kind.model_validate).parameters


def convert_foreign(kind: Any, value: Any) -> Any:
    """Return a decoded value as a `kind` of another library.

    Raises:
        ValueError: it does not fit; its text ends in the path where the library says which.
        TypeError: nothing is known of `kind`.

    """
    if not is_model(kind):
        raise TypeError(f"{kind!r} is no type that values can be decoded into")
    try:
        return kind.model_validate(value, **_BY_BOTH_NAMES if _knows_names(kind) else {})
    except ValueError as error:
        found = error.errors()[0] if hasattr(error, "errors") else {"msg": str(error), "loc": ()}
        steps = [f"[{at}]" if isinstance(at, int) else f".{at}" for at in found["loc"]]
        place = f" - at `${''.join(steps)}`" if steps else ""
        raise ValueError(f"{found['msg']}{place}") from error
