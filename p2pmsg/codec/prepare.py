"""Values made ready for a codec, so that each part arrives as the type it has, or is refused.

The codecs write a Decimal, a date, a time, a naive datetime, a UUID or an Enum as text or a number
without notice. Looking at every part of a value in Python takes longer than packing it (a dict of
five fields: 0.5 µs, and 0.09), so it is done only where `plain` has found that a value needs it.
"""

import enum
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from p2pmsg.codec import chosen, extensions, foreign
from p2pmsg.codec.fields import MISSING, Fields, fields_of, is_default
from p2pmsg.codec.plain import LEVELS_MAX, packed_if_plain
from p2pmsg.errors import MessageError

EncHook = Callable[[Any], Any]
_PLAIN: Final = frozenset((type(None), bool, float, str, bytes, bytearray, memoryview))
_KEYS: Final = frozenset((type(None), bool, float, str, bytes))
_SEQUENCES: Final = (list, tuple, set, frozenset)
_INT_MIN: Final = -(2**63)
_INT_MAX: Final = 2**64 - 1
_TOO_LONG: Final = "is an int of more than 64 bits, which msgpack has none of"
_SHOWN: Final = 60
_DEPTH_MAX: Final = 200
_encode: Final = chosen.make_encoder().encode
_decode: Final = chosen.make_decoder().decode


def prepare(value: Any, hook: EncHook | None = None, field: str = "value") -> Any:
    """Return `value` with extension types where they are needed; itself where none is.

    A tuple or a set goes as a list, and a record (a dataclass, a Struct, a pydantic model) as a
    dict of its fields; in a record an Enum goes as its value.

    Args:
        value: what is to be sent.
        hook: gets each part of a type that is not known, and each int of more than 64 bits, and
            returns what goes in its place; `TypeError`: nothing does. Default None: such parts
            are refused.
        field: what the value is called in errors.

    Raises:
        MessageError: a part would arrive as another type, or not at all; it names the path to it.

    """
    return prepare_noting(value, hook, field)[0]


def prepare_noting(value: Any, hook: EncHook | None, field: str) -> tuple[Any, bool]:
    """Do as `prepare`, and return also whether an ordinary encoder would not have sent it so.

    Then a part has got an extension type of ours, or is a record of which it leaves out fields.
    """
    walk = _Walk(hook)
    return walk.part(value, field, False, 0), walk.found


def path_of_refused(value: Any, field: str) -> str:
    """Return the path to the part of a value that no codec packs; `field` where none is found."""
    try:
        _Walk(None).part(value, field, True, 0)
    except MessageError as error:
        return error.field
    return field


class _Walk:
    """A walk through a value.

    Attributes:
        found: an ordinary encoder would lose a part of it, or the type of one.

    """

    def __init__(self, hook: EncHook | None) -> None:
        self._hook = hook
        self.found = False

    def part(self, value: Any, path: str, in_record: bool, depth: int) -> Any:
        """Return what goes in the place of a part of a value."""
        kind: Any = type(value)
        if kind in _PLAIN:
            return value
        if kind is int:
            if _INT_MIN <= value <= _INT_MAX:
                return value
            if self._hook is None or depth > _DEPTH_MAX:
                raise MessageError(path, _TOO_LONG)
            return self.part(self._hooked(value, path, _TOO_LONG), path, in_record, depth + 1)
        if depth > _DEPTH_MAX:
            packed = packed_if_plain(value, LEVELS_MAX - depth)
            if packed is not None:
                return chosen.Raw(packed)
            reason = f"is nested deeper than {_DEPTH_MAX} levels ({LEVELS_MAX} of plain values)"
            raise MessageError(path[:_SHOWN], reason)
        if kind is chosen.Ext and value.code == extensions.TIMESTAMP:
            _check_timestamp(value, path)
        if kind is chosen.Ext or kind is chosen.Raw:
            return value
        if kind in extensions.KINDS:
            if kind is datetime and value.utcoffset() is not None:
                return value
            return self._extension(value, path)
        if isinstance(value, dict):
            return self._mapping(value, path, in_record, depth)
        if foreign.is_extension(value):
            return chosen.Ext(value.code, value.data)
        if isinstance(value, _SEQUENCES):
            return self._sequence(value, path, in_record, depth)
        if isinstance(value, enum.Enum):
            if in_record:
                return self.part(value.value, path, True, depth + 1)
            arrives = f"is {_shown(value)}, an Enum, and would arrive as its value"
            raise MessageError(path, f"{arrives} {_shown(value.value)}; publish that")
        fields = fields_of(kind)
        if fields is not None:
            return self._record(value, fields, path, depth)
        return self._unknown(value, path, in_record, depth)

    def _extension(self, value: Any, path: str) -> Any:
        self.found = True
        try:
            return chosen.Ext(*extensions.pack(value))
        except ValueError as error:
            raise MessageError(path, f"is {_shown(value)}, which cannot be sent: {error}") from None

    def _mapping(self, value: dict[Any, Any], path: str, in_record: bool, depth: int) -> Any:
        made: dict[Any, Any] | None = None
        for key, part in value.items():
            kind = type(part)
            needs_nothing = kind in _PLAIN or (kind is int and _INT_MIN <= part <= _INT_MAX)
            if needs_nothing and type(key) is str:
                continue
            kind = type(key)
            fits = kind is int and _INT_MIN <= key <= _INT_MAX
            if kind not in _KEYS and not fits and not _is_plain_tuple(key):
                name = kind.__name__
                reason = f"has the key {_shown(key)} of type {name}, which does not arrive as it is"
                raise MessageError(path, reason)
            sent = self.part(part, f"{path}[{_shown(key)}]", in_record, depth + 1)
            if sent is not part:
                made = dict(value) if made is None else made
                made[key] = sent
        return value if made is None else made

    def _sequence(self, value: Any, path: str, in_record: bool, depth: int) -> Any:
        made: list[Any] | None = None
        for at, part in enumerate(value):
            kind = type(part)
            if kind in _PLAIN or (kind is int and _INT_MIN <= part <= _INT_MAX):
                continue
            sent = self.part(part, f"{path}[{at}]", in_record, depth + 1)
            if sent is not part:
                made = list(value) if made is None else made
                made[at] = sent
        return value if made is None else made

    def _record(self, value: Any, fields: Fields, path: str, depth: int) -> Any:
        changed = fields.is_as_dict
        self.found |= fields.loses
        defaults = fields.defaults
        made: dict[Any, Any] = dict(fields.lead)
        for name, as_ in fields.names:
            part: Any = getattr(value, name, MISSING)
            if defaults is not None and is_default(part, defaults.get(name, MISSING)):
                continue
            kind = type(part)
            sent = part
            if kind not in _PLAIN and not (kind is int and _INT_MIN <= part <= _INT_MAX):
                if part is MISSING or kind.__name__ == "UnsetType":
                    continue
                sent = self.part(part, f"{path}.{name}", True, depth + 1)
                changed |= sent is not part and not isinstance(part, enum.Enum)
            made[as_] = sent
        if not changed:
            return value
        return list(made.values()) if fields.is_array else made

    def _unknown(self, value: Any, path: str, in_record: bool, depth: int) -> Any:
        try:
            sent = foreign.replacement(value, chosen.Ext)
        except TypeError:
            reason = f"of type {type(value).__name__} cannot be packed as msgpack"
            sent = self._hooked(value, path, reason)
        return self.part(sent, path, in_record or foreign.is_model(type(value)), depth + 1)

    def _hooked(self, value: Any, path: str, reason: str) -> Any:
        if self._hook is None:
            raise MessageError(path, reason)
        try:
            return self._hook(value)
        except (TypeError, NotImplementedError) as error:
            raise MessageError(path, f"{reason}: enc_hook: {error}") from error


def _check_timestamp(value: Any, path: str) -> None:
    """Refuse an extension of msgpack's Timestamp whose bytes subscribers cannot read."""
    try:
        _decode(_encode(value))
    except (chosen.CodecError, ValueError, OverflowError) as error:
        raise MessageError(path, f"is {_shown(value)}, no valid Timestamp: {error}") from None


def _is_plain_tuple(key: Any) -> bool:
    return type(key) is tuple and all(type(part) in _KEYS or type(part) is int for part in key)


def _shown(value: Any) -> str:
    text = f'"{value}"' if type(value) is str else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
