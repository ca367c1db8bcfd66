"""Decoded values into types, without msgspec.

It knows what p2pmsg itself and most programs need: plain types, `datetime`, `date`, `time`,
`timedelta`, `Decimal`, `UUID`, Enums, `Literal`, unions, `Annotated` with limits, `list`, `tuple`,
`set`, `frozenset`, `dict`, our Structs, dataclasses, TypedDicts, NamedTuples, and pydantic's
models. The texts of errors are msgspec's.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import repeat
from typing import Any, Final
from uuid import UUID

from p2pmsg.codec import foreign
from p2pmsg.codec.records import Meta
from recovery._copied import CopiesWhole

Convert = Callable[[Any], Any]


class CodecError(CopiesWhole, Exception):
    """Bytes are no value, or a value does not fit its type; its text ends in the path."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path

    def within(self, step: str) -> "CodecError":
        """Return the error as the part that encloses the value reports it."""
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        return f"{self.reason} - at `${self.path}`" if self.path else self.reason


_NAMES: Final[dict[Any, str]] = {
    type(None): "null", bool: "bool", int: "int", float: "float", str: "str", bytes: "bytes",
    list: "array", tuple: "array", set: "array", frozenset: "array", dict: "object",
    datetime: "datetime", date: "date", time: "time", timedelta: "duration", Decimal: "decimal",
    UUID: "uuid", Any: "any",
}  # fmt: skip


def _name_of(value: Any) -> str:
    return _NAMES.get(type(value), "ext")


def _misfit(expected: str, value: Any) -> CodecError:
    return CodecError(f"Expected `{expected}`, got `{_name_of(value)}`")


def convert(value: Any, kind: Any) -> Any:
    """Return a decoded value as a `kind`.

    Raises:
        CodecError: it does not fit.
        TypeError: `kind` cannot be had without msgspec.

    """
    return converter(kind)(value)


@lru_cache(maxsize=512)
def converter(kind: Any) -> Convert:
    """Return what converts decoded values into `kind`; `TypeError`: that needs msgspec."""
    return _Builder().build(kind)[0]


def _same(value: Any) -> Any:
    return value


def _exact(kind: type) -> Convert:
    name = _NAMES[kind]

    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise _misfit(name, value)
        return value

    return check


def _to_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise _misfit("float", value)


def _to_decimal(value: Any) -> Decimal:
    if type(value) is Decimal:
        return value
    if type(value) is str or type(value) is int or type(value) is float:
        try:
            return Decimal(str(value))
        except ArithmeticError:
            raise CodecError("Invalid decimal string") from None
    raise _misfit("decimal", value)


def _from_text(kind: Any, parse: Convert) -> Convert:
    name = _NAMES[kind]

    def check(value: Any) -> Any:
        if type(value) is kind:
            return value
        if type(value) is not str:
            raise _misfit(name, value)
        try:
            return parse(value)
        except ValueError:
            what = "RFC3339 encoded " + name if kind in (datetime, date, time) else name
            raise CodecError(f"Invalid {what}") from None

    return check


def _parse_duration(text: str) -> timedelta:
    """Return an ISO 8601 duration of days and below."""
    sign, rest = (-1, text[2:]) if text.startswith("-P") else (1, text[1:])
    if not text.lstrip("-+").startswith("P") or not rest:
        raise ValueError(text)
    days, _, clock = rest.partition("T")
    found = timedelta(days=float(days.removesuffix("D"))) if days else timedelta()
    for unit, name in (("H", "hours"), ("M", "minutes"), ("S", "seconds")):
        number, found_unit, clock_rest = clock.partition(unit)
        if found_unit:
            found += timedelta(**{name: float(number)})
            clock = clock_rest
    if clock:
        raise ValueError(text)
    return sign * found


_SIMPLE: Final[dict[Any, Convert]] = {
    Any: _same,
    object: _same,
    **{kind: _exact(kind) for kind in (type(None), bool, int, str, bytes)},
    None: _exact(type(None)),
    float: _to_float,
    Decimal: _to_decimal,
    UUID: _from_text(UUID, UUID),
    datetime: _from_text(datetime, datetime.fromisoformat),
    date: _from_text(date, date.fromisoformat),
    time: _from_text(time, time.fromisoformat),
    timedelta: _from_text(timedelta, _parse_duration),
}
_ARRAYS: Final[dict[Any, Callable[[list[Any]], Any]]] = {
    list: _same, set: set, frozenset: frozenset,
}  # fmt: skip
_MISSING: Final = object()


class _Builder:
    """Builds converters; a type may contain itself."""

    def __init__(self) -> None:
        self._begun: dict[Any, list[Convert]] = {}

    def build(self, kind: Any) -> tuple[Convert, str]:
        """Return the converter of a type, and the type's name in errors."""
        if kind in _SIMPLE:
            return _SIMPLE[kind], _NAMES.get(kind, "null" if kind is None else "any")
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self._limited(kind)
        if origin is typing.Literal:
            return _one_of({value: value for value in arguments}), "str"
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if origin in (typing.Final, typing.Required, typing.NotRequired):
            return self.build(arguments[0])
        plain = origin or kind
        if plain is tuple:
            return self._tuple(arguments), "array"
        if plain in _ARRAYS:
            return self._array(_ARRAYS[plain], arguments), "array"
        if plain is dict:
            return self._mapping(arguments), "object"
        if isinstance(kind, typing.NewType):
            return self.build(kind.__supertype__)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return _one_of({one.value: one for one in kind}), "str"
        if foreign.is_model(kind):
            return _model(kind), "object"
        return self._record(kind)

    def _limited(self, kind: Any) -> tuple[Convert, str]:
        inner, name = self.build(kind.__origin__)
        for meta in kind.__metadata__:
            if isinstance(meta, Meta):
                inner = _within(inner, meta, name)
            elif type(meta).__module__.partition(".")[0] == "msgspec":
                raise unsupported(kind)  # its limits would not hold
        return inner, name

    def _union(self, arguments: tuple[Any, ...]) -> tuple[Convert, str]:
        kinds = sorted(arguments, key=lambda one: one is float)  # an int of a union stays one
        members = [self.build(one) for one in kinds]
        name = " | ".join(dict.fromkeys(name for _, name in members))

        def check(value: Any) -> Any:
            inner: CodecError | None = None
            for convert_member, member in members:
                try:
                    return convert_member(value)
                except CodecError as error:
                    if error.path or member == _name_of(value):
                        inner = inner or error
            raise inner or _misfit(name, value) from None

        return check, name

    def _array(self, make: Callable[[list[Any]], Any], arguments: tuple[Any, ...]) -> Convert:
        each = self.build(arguments[0])[0] if arguments else _same

        def check(value: Any) -> Any:
            _check_array(value)
            return make(list(value) if each is _same else _positions(value, repeat(each)))

        return check

    def _tuple(self, arguments: tuple[Any, ...]) -> Convert:
        if len(arguments) == 2 and arguments[1] is ...:
            return self._array(tuple, arguments[:1])
        if not arguments:
            return self._array(tuple, ())
        return _fixed(tuple, [self.build(one)[0] for one in arguments], len(arguments))

    def _mapping(self, arguments: tuple[Any, ...]) -> Convert:
        of_key, of_value = (self.build(one)[0] for one in arguments or (Any, Any))

        def check(value: Any) -> Any:
            if type(value) is not dict:
                raise _misfit("object", value)
            made = {}
            for key, part in value.items():
                try:
                    made[of_key(key)] = of_value(part)
                except CodecError as error:
                    raise error.within("[...]") from None
            return made

        return check

    def _record(self, kind: Any) -> tuple[Convert, str]:
        """Return the converter of a class with fields, which may contain itself."""
        if kind in self._begun:
            begun = self._begun[kind]
            return lambda value: begun[0](value), "object"
        self._begun[kind] = begun = []
        is_array = False
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            is_array = getattr(kind, "__array_like__", False)
            made = self._row(kind) if is_array else self._dataclass(kind)
        elif typing.is_typeddict(kind):
            made = self._typed_dict(kind)
        elif isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
            made = self._named_tuple(kind)
        else:
            raise unsupported(kind)
        begun.append(made)
        return made, "array" if is_array else "object"

    def _hints(self, kind: Any) -> dict[str, Convert]:
        hints = typing.get_type_hints(kind, include_extras=True)
        return {name: self.build(hint)[0] for name, hint in hints.items()}

    def _row(self, kind: Any) -> Convert:
        """Return the converter of a Struct that is a list of its fields."""
        hints, listed = self._hints(kind), dataclasses.fields(kind)
        members = [hints[one.name] for one in listed]
        least = sum(map(_is_needed, listed))
        return _fixed(lambda parts: kind(*parts), members, least, is_open=True)

    def _dataclass(self, kind: Any) -> Convert:
        listed = [one for one in dataclasses.fields(kind) if one.init]
        needed = [one.name for one in listed if _is_needed(one)]
        names = [one.name for one in listed]
        return _object(lambda fields: kind(**fields), self._hints(kind), names, needed)

    def _typed_dict(self, kind: Any) -> Convert:
        hints = self._hints(kind)
        return _object(dict, hints, [*hints], sorted(kind.__required_keys__))

    def _named_tuple(self, kind: Any) -> Convert:
        hints = self._hints(kind)
        members = [hints.get(name, _same) for name in kind._fields]
        return _fixed(lambda parts: kind(*parts), members, len(members) - len(kind._field_defaults))


def _check_array(value: Any) -> None:
    if type(value) is not list and type(value) is not tuple:
        raise _misfit("array", value)


def _fixed(
    make: Callable[[list[Any]], Any], members: list[Convert], least: int, *, is_open: bool = False
) -> Convert:
    """Return a converter of arrays with a type for each place; open ones may have more places."""
    wanted = f"at least length {least}" if is_open else f"length {len(members)}"

    def check(value: Any) -> Any:
        _check_array(value)
        if len(value) < least or (len(value) > len(members) and not is_open):
            raise CodecError(f"Expected `array` of {wanted}, got {len(value)}")
        return make(_positions(value, members))

    return check


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def unsupported(kind: Any) -> TypeError:
    """Return what to raise for a type that only msgspec knows."""
    return TypeError(
        f"{kind!r} is no type that values can be decoded into without the package msgspec"
    )


def _positions(values: Any, members: Iterable[Convert]) -> list[Any]:
    made: list[Any] = []
    try:
        for value, convert_one in zip(values, members, strict=False):
            made.append(convert_one(value))  # the index is needed for errors
    except CodecError as error:
        raise error.within(f"[{len(made)}]") from None
    return made


def _object(
    make: Callable[[dict[str, Any]], Any],
    hints: dict[str, Convert],
    names: list[str],
    needed: list[str],
) -> Convert:
    """Return a converter of objects with these fields."""
    entries = [(name, hints[name]) for name in names]

    def check(value: Any) -> Any:
        if type(value) is not dict:
            raise _misfit("object", value)
        fields: dict[str, Any] = {}
        for name, convert_one in entries:
            part = value.get(name, _MISSING)
            if part is _MISSING:
                continue
            try:
                fields[name] = convert_one(part)
            except CodecError as error:
                raise error.within(f".{name}") from None
        for name in needed:
            if name not in fields:
                raise CodecError(f"Object missing required field `{name}`")
        try:
            return make(fields)
        except (TypeError, ValueError) as error:  # of `__post_init__`
            raise CodecError(str(error)) from error

    return check


def _one_of(members: dict[Any, Any]) -> Convert:
    kinds = {type(value) for value in members}
    name = " | ".join(_NAMES.get(one, "any") for one in sorted(kinds, key=str))

    def check(value: Any) -> Any:
        if type(value) not in kinds:
            if any(value is member for member in members.values()):
                return value
            raise _misfit(name, value)
        if value not in members:
            raise CodecError(f"Invalid enum value {value!r}")
        return members[value]

    return check


def _model(kind: Any) -> Convert:
    def check(value: Any) -> Any:
        try:
            return foreign.convert_foreign(kind, value)
        except ValueError as error:
            reason, _, path = str(error).partition(" - at `$")
            raise CodecError(reason, path.removesuffix("`")) from error

    return check


def _within(inner: Convert, meta: Meta, name: str) -> Convert:
    limits: list[tuple[str, Any, Callable[[Any, Any], bool]]] = [
        (">=", meta.ge, lambda value, limit: value >= limit),
        (">", meta.gt, lambda value, limit: value > limit),
        ("<=", meta.le, lambda value, limit: value <= limit),
        ("<", meta.lt, lambda value, limit: value < limit),
        ("of length >=", meta.min_length, lambda value, limit: len(value) >= limit),
        ("of length <=", meta.max_length, lambda value, limit: len(value) <= limit),
    ]
    shown = float if name == "float" else _same
    given = [one for one in limits if one[1] is not None]

    def check(value: Any) -> Any:
        made = inner(value)
        for sign, limit, holds in given:
            if made is not None and not holds(made, limit):
                raise CodecError(f"Expected `{name}` {sign} {shown(limit)}")
        return made

    return check
