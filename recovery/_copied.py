"""How errors are copied and pickled."""

import copy
import pickle
from typing import Any, Final

_OF_C: Final = ("errno", "strerror", "filename", "filename2", "name", "path", "msg")
"""What built-in exceptions keep outside of their `__dict__`."""
_SHOWN_MAX: Final = 1000


class CopiesWhole:
    """Makes copies of an exception without calling its `__init__`, which makes the text.

    They have the same text, arguments, attributes and notes, and as with every exception neither
    cause nor traceback. What cannot be pickled, such as a lambda that was given for a setting, is
    its text in the pickled copy: an exception has to come out of a worker process, whatever it has.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        arguments = tuple(_portable(value, protocol) for value in _arguments(self))
        state = {name: _portable(value, protocol) for name, value in _state(self).items()}
        return make_copy, (type(self), arguments), state

    def __copy__(self) -> Any:
        return _filled(make_copy(type(self), _arguments(self)), _state(self))

    def __deepcopy__(self, known: dict[int, Any]) -> Any:
        made = known[id(self)] = make_copy(type(self), ())
        made.args = tuple(_deep(value, known) for value in _arguments(self))
        state = {name: _deep(value, known) for name, value in _state(self).items()}
        return _filled(made, state)


def make_copy(kind: Any, arguments: tuple[Any, ...]) -> Any:
    """Return an exception with these arguments, and no other attributes yet."""
    made = kind.__new__(kind)
    made.args = arguments
    return made


def _arguments(error: Any) -> tuple[Any, ...]:
    return tuple(error.args)


def _state(error: Any) -> dict[str, Any]:
    # None is left out: to OSError, a number that is None is not one that was never set.
    found = {name: getattr(error, name, None) for name in _OF_C}
    state = {name: value for name, value in found.items() if value is not None}
    state.update(vars(error))
    if notes := state.get("__notes__"):
        state["__notes__"] = [*notes]
    return state


def _filled(made: Any, state: dict[str, Any]) -> Any:
    for name, value in state.items():
        setattr(made, name, value)
    return made


def _deep(value: Any, known: dict[int, Any]) -> Any:
    """Return a deep copy, or the same, such as a lock, where there can be none."""
    try:
        return copy.deepcopy(value, known)
    except Exception:
        return value


def _portable(value: Any, protocol: int) -> Any:
    """Return a value as it is, or its text where it does not come through pickling."""
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    try:
        pickle.loads(pickle.dumps(value, protocol))  # of our own
        return value
    except Exception:
        return _shown(value)


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_SHOWN_MAX]
    except Exception:
        return f"<{type(value).__name__}>"
