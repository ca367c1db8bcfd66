"""Columns out of the values: a user's schema, decoded by msgspec in the task.

::

    symbol string, price double, _topic string, _offset long, _corrupt binary
    └─ fields of the value ────┘ └─ of the message, as in the raw columns ─┘ └─ what did not fit

A value that does not fit the schema fails the task by name, unless there is a column `_corrupt`:
then its fields are null, and the value is there.
"""

import datetime
import decimal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from spark_bridge.errors import OptionError
from spark_bridge.options import SourceOptions
from spark_bridge.schema import (
    CAN_BE_NULL,
    COLUMNS,
    Gathered,
    Layout,
    RawLayout,
    as_bytes,
    column_of,
    text_of,
)

CORRUPT: Final = "_corrupt"
_SCALARS: Final[dict[type, Any]] = {
    types.StringType: str,
    types.BinaryType: bytes,
    types.BooleanType: bool,
    types.DoubleType: float,
    types.FloatType: float,
    types.LongType: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)],
    types.IntegerType: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)],
    types.ShortType: Annotated[int, msgspec.Meta(ge=-(2**15), le=2**15 - 1)],
    types.ByteType: Annotated[int, msgspec.Meta(ge=-(2**7), le=2**7 - 1)],
    types.DateType: datetime.date,
    types.TimestampType: Annotated[datetime.datetime, msgspec.Meta(tz=True)],
    types.TimestampNTZType: datetime.datetime,
    types.DecimalType: decimal.Decimal,
}


_BUILTIN: Final = (bytes, datetime.datetime, datetime.date, decimal.Decimal)
"""What Arrow takes as it is, within structs, lists and maps."""
_MISFITS: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding a value raises that does not fit."""


def layout_of(schema: types.StructType, options: SourceOptions) -> Layout:
    """Return the layout for what Spark asks for; `OptionError` where it cannot be had."""
    names = raw_names(options)
    value_format = options.valueFormat
    if not value_format:
        is_raw = schema.fieldNames() == list(names)
        value_format = "raw" if is_raw else "msgpack"
    if value_format != "raw":
        return TypedLayout(schema, value_format)
    for field in schema.fields:
        known = COLUMNS.get(field.name)
        if known is None or field.name not in names:
            raise OptionError(
                "valueFormat", f"is raw, and there is no column {field.name!r} but {list(names)}"
            )
        _check_type(field, field.name)
    required = [field.name for field in schema.fields if not field.nullable]
    return RawLayout(schema.fieldNames(), required)


def raw_names(options: SourceOptions) -> tuple[str, ...]:
    """Return the columns of messages as they are."""
    return tuple(name for name in COLUMNS if name != "headers" or options.includeHeaders)


class TypedLayout:
    """Columns of a user's schema."""

    def __init__(self, schema: types.StructType, value_format: str) -> None:
        fields = []
        self.corrupt = False
        for field in schema.fields:
            if field.name == CORRUPT:
                if type(field.dataType) not in (types.BinaryType, types.StringType):
                    raise OptionError("schema", f"must have {CORRUPT} as binary or string")
                _check_nullable(field)
                self.corrupt = True
            elif field.name.startswith("_") and field.name[1:] in COLUMNS:
                _check_type(field, field.name[1:])
            else:
                fields.append(field)
        if not fields:
            raise OptionError("schema", "has no field of the value")
        for field in fields if self.corrupt else ():
            if not field.nullable:
                raise OptionError(
                    "schema",
                    f"has {field.name} as not null, and with {CORRUPT} it is null where a value "
                    "does not fit",
                )
        value_schema = types.StructType(fields)
        struct_of(value_schema.json())  # so that a type without a decoder is refused now
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self.value_format = value_format
        self._json = value_schema.json()
        self._names = value_schema.fieldNames()

    @property
    def value_type(self) -> Any:
        """What a fetch is to decode values as: that spares making dicts of them first.

        Not where a decimal that is decoded may have too many digits, and `_corrupt` is to have its
        value whole.
        """
        if self.value_format == "json" or (self.corrupt and "decimal(" in self._json):
            return None
        return struct_of(self._json) | bytes | None

    def to_arrow(self, gathered: Gathered) -> pa.RecordBatch:
        """Return the messages as a record batch of `schema`."""
        values = gathered.values
        rows, wrong = self._rows(values, gathered)
        found = len(wrong)
        columns = self._fields(rows, wrong, gathered)
        if len(wrong) > found:  # what a later column found is null in the earlier ones, too
            columns = self._fields(rows, wrong, gathered)
        for field in self.schema:
            if field.name == CORRUPT:
                columns[CORRUPT] = _corrupt(values, wrong, field.type)
            elif field.name not in columns:
                columns[field.name] = column_of(field.name[1:], gathered)
        return pa.RecordBatch.from_arrays(
            [columns[field.name] for field in self.schema], schema=self.schema
        )

    def _rows(self, values: list[Any], gathered: Gathered) -> tuple[list[Any], set[int]]:
        struct = struct_of(self._json)
        if self.value_format == "msgpack" and set(map(type, values)) == {struct}:
            return list(values), set()
        if self.value_format == "json":
            # Each on its own: in a joined text, two values in one message make up for one that
            # another message lacks.
            with suppress(TypeError, *_MISFITS):
                return list(map(_decoder_of_bytes(self._json, "json"), values)), set()
        decode = _decoder(self._json, self.value_format)
        rows, wrong = [], set()
        for at, value in enumerate(values):
            try:
                rows.append(decode(value))
            except _MISFITS as error:
                self._refuse(gathered, at, str(error), error)
                wrong.add(at)
                rows.append(_empty(self._names))
        return rows, wrong

    def _fields(self, rows: list[Any], wrong: set[int], gathered: Gathered) -> dict[str, pa.Array]:
        columns = {}
        for at, name in enumerate(self._names):
            column = list(map(attrgetter(f"f{at}"), rows))
            columns[name] = self._array(column, name, gathered, rows, wrong)
        return columns

    def _array(
        self, plain: list[Any], name: str, gathered: Gathered, rows: list[Any], wrong: set[int]
    ) -> pa.Array:
        """Return a column; what Arrow has no space for (a decimal's digits) is wrong, too."""
        kind = self.schema.field(name).type
        plain = _plain(plain, kind)
        try:
            return pa.array(plain, kind)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            pass
        for at, value in enumerate(plain):
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                self._refuse(gathered, at, f"{error} - at `$.{name}`", error)
                wrong.add(at)
                rows[at] = _empty(self._names)
                plain[at] = None
        return pa.array(plain, kind)

    def _refuse(self, gathered: Gathered, at: int, reason: str, error: Exception) -> None:
        if self.corrupt:
            return
        message = gathered.message(at)
        raise ValueError(
            f"the value of message {message.sequence} of topic {message.topic!r} from "
            f"{message.publisher!r} does not fit the schema: {reason}. A column `_corrupt` in the "
            "schema keeps such values"
        ) from error


@lru_cache(maxsize=64)
def struct_of(schema_json: str) -> Any:
    """Return the msgspec struct for a schema: its fields are `f0`, `f1` …, null by default."""
    return _struct(types.StructType.fromJson(msgspec.json.decode(schema_json)))


def _struct(schema: types.StructType) -> Any:
    fields: list[Any] = []
    for at, field in enumerate(schema.fields):
        kind = _type_of(field.dataType, field.name)
        if field.nullable:
            fields.append((f"f{at}", kind | None, msgspec.field(default=None, name=field.name)))
        else:
            fields.append((f"f{at}", kind, msgspec.field(name=field.name)))
    return msgspec.defstruct("Row", fields, kw_only=True, gc=False)


def _type_of(kind: types.DataType, name: str) -> Any:
    if isinstance(kind, types.StructType):
        return _struct(kind)
    if isinstance(kind, types.ArrayType):
        return list[_item_type(kind.elementType, name, kind.containsNull)]  # type: ignore[misc]
    if isinstance(kind, types.MapType) and isinstance(kind.keyType, types.StringType):
        item = kind.valueType, name, kind.valueContainsNull
        return dict[str, _item_type(*item)]  # type: ignore[misc]
    found = _SCALARS.get(type(kind))
    if found is None:
        raise OptionError("schema", f"has a type that no value has: {name} {kind.simpleString()}")
    return found


def _item_type(kind: types.DataType, name: str, can_be_null: bool) -> Any:
    found = _type_of(kind, name)
    return found | None if can_be_null else found


@lru_cache(maxsize=64)
def _decoder_of_bytes(schema_json: str, value_format: str) -> Callable[[Any], Any]:
    module: Any = msgspec.json if value_format == "json" else msgspec.msgpack
    decode: Callable[[Any], Any] = module.Decoder(struct_of(schema_json)).decode
    return decode


@lru_cache(maxsize=64)
def _decoder(schema_json: str, value_format: str) -> Callable[[Any], Any]:
    """Return what makes a struct of one value, whatever the value came as."""
    struct = struct_of(schema_json)
    from_bytes = _decoder_of_bytes(schema_json, value_format)

    def decode(value: Any) -> Any:
        if isinstance(value, struct):
            return value
        if value is None:
            return msgspec.convert({}, struct)
        if isinstance(value, bytes) or (value_format == "json" and isinstance(value, str)):
            return from_bytes(value)
        return msgspec.convert(value, struct)

    return decode


def _empty(names: Sequence[str]) -> Any:
    """Return a row of nulls, required or not."""
    return SimpleNamespace(**{f"f{at}": None for at in range(len(names))})


def _plain(column: list[Any], kind: pa.DataType) -> list[Any]:
    """Return nested structs as dicts by their own names, which is what Arrow takes."""
    if not pa.types.is_nested(kind):
        return column
    plain: list[Any] = msgspec.to_builtins(column, builtin_types=_BUILTIN)
    return plain


def _corrupt(values: list[Any], wrong: set[int], kind: pa.DataType) -> pa.Array:
    kept = [as_bytes(values[at]) if at in wrong else None for at in range(len(values))]
    if pa.types.is_string(kind):
        kept = [text_of(each) if isinstance(each, bytes) else each for each in kept]
    return pa.array(kept, kind)


def _check_type(field: types.StructField, name: str) -> None:
    wanted, found = COLUMNS[name][0], field.dataType.simpleString()
    if found != wanted:
        raise OptionError("schema", f"must have {field.name} as {wanted}, not {found}")
    if name in CAN_BE_NULL:
        _check_nullable(field)


def _check_nullable(field: types.StructField) -> None:
    if not field.nullable:
        raise OptionError("schema", f"has {field.name} as not null, and it can be null")
