"""Structs without msgspec: dataclasses with slots, with what p2pmsg uses of `msgspec.Struct`.

The options are `frozen` and `array_like`; `gc` has no meaning here.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final

_EMPTY: Final = (list, dict, set)


@dataclass(frozen=True, slots=True)
class Meta:
    """Limits of a value, within `Annotated`."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None


def _refuse(self: Any, name: str, value: Any = None) -> None:
    raise AttributeError(f"immutable type: {type(self).__name__!r}")


class StructMeta(type):
    """Makes the classes."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        frozen: bool = False,
        array_like: bool = False,
        gc: bool = True,
    ) -> "StructMeta":
        """Make the class."""
        if "__dataclass_fields__" in namespace or not bases:  # `dataclass` makes it again
            return super().__new__(mcs, name, bases, namespace)
        for one, value in namespace.items():
            if type(value) in _EMPTY and not one.startswith("__"):
                namespace[one] = field(default_factory=type(value))
        namespace["__array_like__"] = array_like
        made: Any = super().__new__(mcs, name, bases, namespace)
        with_slots: Any = dataclass(slots=True, frozen=frozen)(made)
        if frozen:  # the ones that `dataclass` makes know the class without slots only
            with_slots.__setattr__ = with_slots.__delattr__ = _refuse
        return with_slots  # type: ignore[no-any-return]


class Struct(metaclass=StructMeta):
    """The base of classes made of annotated fields."""

    __slots__ = ()
    __array_like__ = False

    def __reduce__(self) -> Any:
        made: Any = self
        return type(self), tuple([getattr(self, one.name) for one in fields(made)])
