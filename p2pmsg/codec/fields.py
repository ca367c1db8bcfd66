"""What records consist of: dataclasses, Structs and attrs classes, of either codec."""

import dataclasses
from functools import lru_cache
from typing import Any, Final, NamedTuple

MISSING: Final = object()
"""What a field holds that was never set."""


class Fields(NamedTuple):
    """What the records of a class consist of."""

    names: tuple[tuple[str, str], ...]
    """Of each field its name, and its name as it is sent."""
    lead: dict[str, Any]
    """What goes before them, by name: a Struct's tag."""
    is_array: bool = False
    """Whether they are sent as a list."""
    defaults: dict[str, Any] | None = None
    """By name what is not sent where a field holds it: a Struct's, with `omit_defaults`."""
    is_as_dict: bool = False
    """Whether they are packed from a dict, since msgspec's encoder would write other ones."""
    loses: bool = False
    """Whether msgspec's encoder would leave out some of them."""


@lru_cache(maxsize=512)
def fields_of(kind: Any) -> Fields | None:
    """Return the fields of a class of records; None where it is none that the codecs know.

    Of an attrs class msgspec's encoder leaves out fields whose names begin with `_`, and writes the
    others by alphabet. Of a dataclass it leaves out what only the class holds: the default of a
    field that `__init__` does not set.
    """
    if getattr(kind, "__struct_fields__", None) is not None:
        return _of_struct(kind)
    if dataclasses.is_dataclass(kind):
        found = dataclasses.fields(kind)
        loses = any(not one.init and one.default is not dataclasses.MISSING for one in found)
        is_array = getattr(kind, "__array_like__", False)
        names = tuple((one.name, one.name) for one in found)
        return Fields(names, {}, is_array, None, loses, loses)
    if hasattr(kind, "__attrs_attrs__"):
        names = tuple((one.name, one.name) for one in kind.__attrs_attrs__)
        loses = any(name.startswith("_") for name, _ in names)
        return Fields(names, {}, False, None, True, loses)
    return None


def _of_struct(kind: Any) -> Fields:
    config, names = kind.__struct_config__, kind.__struct_fields__
    lead = {} if config.tag is None else {config.tag_field: config.tag}
    sent = tuple(zip(names, kind.__struct_encode_fields__, strict=True))
    defaults = None
    if getattr(config, "omit_defaults", False) and not config.array_like:
        values = kind.__struct_defaults__  # of the last fields
        defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
    return Fields(sent, lead, bool(config.array_like), defaults)


def is_default(part: Any, default: Any) -> bool:
    """Whether msgspec's encoder takes a field's value for its default.

    That is the same object, or an empty list, dict or set where the default makes such.
    """
    if part is default:
        return True
    kind = getattr(default, "factory", None) if type(default).__name__ == "Factory" else None
    return kind in (list, dict, set) and type(part) is kind and not part


def sent_fields(value: Any, fields: Fields) -> dict[str, Any]:
    """Return a record's fields by the names as they are sent."""
    made = dict(fields.lead)
    defaults = fields.defaults
    for name, as_ in fields.names:
        part = getattr(value, name, MISSING)
        if part is MISSING or type(part).__name__ == "UnsetType":
            continue
        if defaults is None or not is_default(part, defaults.get(name, MISSING)):
            made[as_] = part
    return made
