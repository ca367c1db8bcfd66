"""Structs without msgspec: classes made of annotated fields, as far as p2pmsg uses them.

It stands in for `msgspec.Struct` where msgspec is not installed. It knows the options `frozen`,
`array_like`, `kw_only`, `order`, `tag` and `tag_field`; `gc` has no meaning here.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

NO_DEFAULT: Final = object()
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


@dataclass(frozen=True, slots=True)
class _Field:
    default: Any = NO_DEFAULT
    default_factory: Callable[[], Any] | None = None
    name: str | None = None


def field(
    *, default: Any = NO_DEFAULT, default_factory: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """Return what describes a field: its default, or its name as it is sent."""
    return _Field(default, default_factory, name)


@dataclass(frozen=True, slots=True)
class StructConfig:
    """The options of a Struct's class."""

    frozen: bool = False
    array_like: bool = False
    kw_only: bool = False
    order: bool = False
    tag: str | None = None
    tag_field: str | None = None


def _annotated(namespace: dict[str, Any]) -> dict[str, Any]:
    """Return the names that a class body annotates."""
    found: dict[str, Any] = namespace.get("__annotations__", {})
    if found or sys.version_info < (3, 14):
        return found
    import annotationlib  # type: ignore[import-not-found, unused-ignore]

    annotate = annotationlib.get_annotate_from_class_namespace(namespace)
    if annotate is None:
        return {}
    return annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF)


class StructMeta(type):
    """Makes the classes: a slot for each field, and an `__init__` that sets them."""

    __struct_fields__: tuple[str, ...]
    __struct_encode_fields__: tuple[str, ...]
    __struct_defaults__: dict[str, Any]
    __struct_config__: StructConfig

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        gc: bool = True,
        **options: Any,
    ) -> "StructMeta":
        """Make the class."""
        fields: dict[str, str] = {}
        defaults: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        for base in bases:
            if isinstance(base, StructMeta):
                sent = base.__struct_encode_fields__
                fields |= dict(zip(base.__struct_fields__, sent, strict=True))
                defaults |= base.__struct_defaults__
                config = base.__struct_config__
                inherited = {one: getattr(config, one) for one in _INHERITED}
        mine = [one for one, kind in _annotated(namespace).items() if "ClassVar" not in str(kind)]
        namespace["__slots__"] = tuple(one for one in mine if one not in fields)
        for one in mine:
            default = namespace.pop(one, NO_DEFAULT)
            fields[one] = default.name or one if isinstance(default, _Field) else one
            if not isinstance(default, _Field) or default.default_factory is not None:
                defaults[one] = default
            else:
                defaults[one] = default.default
        defaults = {one: value for one, value in defaults.items() if value is not NO_DEFAULT}
        if options.get("tag") is None and options.get("tag_field", inherited.get("tag_field")):
            options["tag"] = name
        if options.get("tag") is not None and not options.get("tag_field"):
            options["tag_field"] = inherited.get("tag_field") or "type"
        config = StructConfig(**inherited | options)
        namespace["__struct_fields__"] = namespace["__match_args__"] = tuple(fields)
        namespace["__struct_encode_fields__"] = tuple(fields.values())
        namespace["__struct_defaults__"] = defaults
        namespace["__struct_config__"] = config
        namespace["__init__"] = _make_init(tuple(fields), defaults, config)
        if config.frozen:
            namespace["__setattr__"] = namespace["__delattr__"] = _refuse
            namespace["__hash__"] = _hash
        if config.order:
            namespace |= {"__lt__": _less, "__le__": _at_most, "__gt__": _more, "__ge__": _at_least}
        return super().__new__(mcs, name, bases, namespace)


_INHERITED: Final = ("frozen", "array_like", "order", "tag_field")


def _make_init(
    fields: tuple[str, ...], defaults: dict[str, Any], config: StructConfig
) -> Callable[..., None]:
    """Return the `__init__`, compiled, for one is called for each message."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_none": NO_DEFAULT, "_d": defaults}
    needed = [one for one in fields if one not in defaults]
    listed = [*needed, *(one for one in fields if one in defaults)] if config.kw_only else fields
    arguments, lines, is_optional = ["self"], [], False
    if config.kw_only:
        arguments.append("*")
    for one in listed:
        text = one
        if one in defaults:
            is_optional = True
            text += "=_none"
            value = defaults[one]
            made = f"_d[{one!r}]"
            if isinstance(value, _Field):
                made += ".default_factory()"
            elif type(value) in _EMPTY:
                made += ".copy()"
            lines.append(f" if {one} is _none: {one} = {made}")
        elif is_optional:
            raise TypeError(f"the field {one!r} without a default comes after one that has one")
        arguments.append(text)
        lines.append(f" _set(self, {one!r}, {one})" if config.frozen else f" self.{one} = {one}")
    if not fields:
        arguments, lines = ["self"], [" pass"]
    lines.append(" after = getattr(self, '__post_init__', None)\n if after is not None: after()")
    exec("\n".join([f"def __init__({', '.join(arguments)}):", *lines]), scope)
    made_init: Callable[..., None] = scope["__init__"]
    return made_init


def astuple(struct: Any) -> tuple[Any, ...]:
    """Return the values of the fields."""
    return tuple([getattr(struct, name) for name in type(struct).__struct_fields__])


def replace(struct: Any, /, **changes: Any) -> Any:
    """Return a copy with other values of some fields."""
    return type(struct)(**{one: getattr(struct, one) for one in struct.__struct_fields__} | changes)


def _refuse(self: Any, name: str, value: Any = None) -> None:
    raise AttributeError(f"immutable type: {type(self).__name__!r}")


def _hash(self: "Struct") -> int:
    return hash((type(self), *astuple(self)))


def _less(self: "Struct", other: Any) -> Any:
    return astuple(self) < astuple(other) if type(self) is type(other) else NotImplemented


def _at_most(self: "Struct", other: Any) -> Any:
    return astuple(self) <= astuple(other) if type(self) is type(other) else NotImplemented


def _more(self: "Struct", other: Any) -> Any:
    return astuple(self) > astuple(other) if type(self) is type(other) else NotImplemented


def _at_least(self: "Struct", other: Any) -> Any:
    return astuple(self) >= astuple(other) if type(self) is type(other) else NotImplemented


def _rebuild(kind: Any, values: tuple[Any, ...]) -> Any:
    return kind(**dict(zip(kind.__struct_fields__, values, strict=True)))


class Struct(metaclass=StructMeta):
    """The base of classes made of annotated fields."""

    __slots__ = ()

    def __eq__(self, other: object) -> Any:
        if type(self) is not type(other):
            return NotImplemented
        return astuple(self) == astuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        pairs = zip(type(self).__struct_fields__, astuple(self), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), astuple(self))
