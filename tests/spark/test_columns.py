"""What the sink publishes of each type; with PySpark's types but without Spark."""

import pytest

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from pyspark.sql import types  # noqa: E402

from spark_bridge.errors import OptionError  # noqa: E402
from spark_bridge.options import parse_sink_options  # noqa: E402
from spark_bridge.sink import check_columns  # noqa: E402

OPTIONS = parse_sink_options({"endpoint": "tcp://h:1", "topic": "t"})


def columns(**kinds):
    fields = [types.StructField(name, kind) for name, kind in kinds.items()]
    return types.StructType(fields)


TEXT, NUMBER, VARIANT = types.StringType(), types.IntegerType(), types.VariantType()
DATED = types.MapType(types.DateType(), NUMBER)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (VARIANT, "has a type that no message has: value variant; cast it to string"),
        (types.ArrayType(VARIANT), r"no message has: value\.element variant"),
        (types.YearMonthIntervalType(), "no message has: value interval year to month"),
        (DATED, "a map whose keys no message has: value map<date,int>; cast them to string"),
        (types.MapType(columns(a=NUMBER), TEXT), "no message has: value map<struct<a:int>,string>"),
    ],
)
def test_types_that_no_message_has_are_refused_by_name(kind, reason):
    with pytest.raises(OptionError, match=reason):
        check_columns(columns(value=kind), OPTIONS)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (types.MapType(NUMBER, TEXT), "'headers' with keys of type string, not map<int,string>"),
        (types.MapType(TEXT, DATED), r"no message has: headers\.value map<date,int>"),
        (TEXT, "'headers' as a map"),
    ],
)
def test_headers_that_no_message_has_are_refused_by_name(kind, reason):
    with pytest.raises(OptionError, match=reason):
        check_columns(columns(value=TEXT, headers=kind), OPTIONS)


@pytest.mark.parametrize(
    "kind",
    [
        types.MapType(types.LongType(), types.MapType(types.BinaryType(), types.BooleanType())),
        types.MapType(types.NullType(), types.NullType()),
        types.DayTimeIntervalType(),
        types.DecimalType(38, 18),
        types.NullType(),
        columns(at=types.TimestampType(), on=types.DateType()),
    ],
    ids=str,
)
def test_other_types_are_published(kind):
    check_columns(columns(value=kind, headers=types.MapType(TEXT, NUMBER)), OPTIONS)
