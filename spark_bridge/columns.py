"""What the sink publishes of a column: which types it takes, and as which Python values."""

from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types

from spark_bridge.errors import OptionError

_NO_VALUES: Final = (types.VariantType, types.YearMonthIntervalType)
"""Spark would give its own bytes of the one, and Arrow has no Python value of the other."""
_KEYS: Final = (
    types.StringType, types.BinaryType, types.BooleanType, types.DoubleType, types.FloatType,
    types.LongType, types.IntegerType, types.ShortType, types.ByteType, types.NullType,
)  # fmt: skip
"""What a map in a message has as keys; `map()`, which is empty, has keys of no type."""


def check_value_type(kind: types.DataType, path: str) -> None:
    """Refuse a type that arrives as something else, or fails in the task.

    Args:
        kind: of a column or of a part of it.
        path: where it is: the column, and in it what Spark calls the parts.

    Raises:
        OptionError: with the path and the type.

    """
    if isinstance(kind, types.UserDefinedType):
        kind = kind.sqlType()
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            check_value_type(field.dataType, f"{path}.{field.name}")
    elif isinstance(kind, types.ArrayType):
        check_value_type(kind.elementType, f"{path}.element")
    elif isinstance(kind, types.MapType):
        if not isinstance(kind.keyType, _KEYS):
            reason = f"has a map whose keys no message has: {path} {kind.simpleString()}"
            raise OptionError("schema", f"{reason}; cast them to string")
        check_value_type(kind.valueType, f"{path}.value")
    elif isinstance(kind, _NO_VALUES):
        reason = f"has a type that no message has: {path} {kind.simpleString()}"
        raise OptionError("schema", f"{reason}; cast it to string")


def values_of(column: pa.Array) -> list[Any]:
    """Return a column's values as they are published: maps as dicts, at whatever depth."""
    # PyArrow takes several times as long with the argument, whether there are maps or not.
    has_maps = "map<" in str(column.type)
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict" if has_maps else None)
    return values
