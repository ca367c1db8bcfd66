"""How errors are copied and pickled."""

import pickle
from typing import Any, Final

_OF_C: Final = ("errno", "strerror", "filename", "filename2", "name", "path", "msg")
"""What built-in exceptions keep outside of their `__dict__`."""
_SHOWN_MAX: Final = 1000


class CopiesWhole:
    """Makes copies of an exception without calling its `__init__`, which makes the text.

    They have the same text, arguments, attributes and notes, and as with every exception neither
    cause nor traceback. What cannot be pickled, such as a lambda that was given for a setting, is
    its text in the copy: an exception has to come out of a worker process, whatever it has.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        error: Any = self
        # None is left out: to OSError, a number that is None is not one that was never set.
        found = {name: getattr(error, name, None) for name in _OF_C}
        state = {name: value for name, value in found.items() if value is not None}
        state = {n: _portable(value, protocol) for n, value in {**state, **vars(error)}.items()}
        arguments = tuple(_portable(value, protocol) for value in error.args)
        return make_copy, (type(self), arguments), state


def make_copy(kind: Any, arguments: tuple[Any, ...]) -> Any:
    """Return an exception with these arguments, and no other attributes yet."""
    made = kind.__new__(kind)
    made.args = arguments
    return made


def _portable(value: Any, protocol: int) -> Any:
    """Return a value as it is, or its text where it does not come through pickling."""
    if isinstance(value, list):  # notes, which a copy has for itself
        value = [*value]
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
