"""What the sink publishes of each type; with PySpark's types but without Spark."""

import pytest

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from pyspark.sql import types  # noqa: E402

from spark_bridge.columns import values_of  # noqa: E402
from spark_bridge.errors import OptionError  # noqa: E402
from spark_bridge.options import parse_sink_options  # noqa: E402
from spark_bridge.sink import check_columns  # noqa: E402

OPTIONS = parse_sink_options({"endpoint": "tcp://h:1", "topic": "t"})
MAP = pa.map_(pa.string(), pa.int32())
COUNTS = {"k": 1, "none": None}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [1, None]),
        (pa.list_(pa.int32()), [[1, None], [], None]),
        (MAP, [COUNTS, {}, None]),
        (pa.map_(pa.int64(), pa.binary()), [{2**62: b"x"}]),
        (pa.map_(pa.binary(), pa.list_(MAP)), [{b"k": [COUNTS, None]}, {b"": None}]),
        (pa.map_(pa.string(), MAP), [{"outer": COUNTS, "none": None}]),
        (pa.list_(MAP), [[COUNTS, None], None]),
        (pa.large_list(MAP), [[COUNTS]]),
        (pa.list_(MAP, 1), [[COUNTS]]),
        (pa.struct([("g", MAP), ("n", pa.int32())]), [{"g": COUNTS, "n": 1}, None]),
        (pa.struct([("a", pa.struct([("g", MAP)]))]), [{"a": {"g": COUNTS}}, {"a": None}]),
    ],
    ids=str,
)
def test_maps_become_dicts_at_whatever_depth(kind, values):
    assert values_of(pa.array(pairs(values), kind)) == values


def pairs(value):
    """Write maps as PyArrow takes them; what has a field of a struct in it is a struct."""
    if isinstance(value, list):
        return [pairs(each) for each in value]
    if isinstance(value, dict) and {"g", "a"} & value.keys():
        return {name: pairs(each) for name, each in value.items()}
    if isinstance(value, dict):
        return [(key, pairs(each)) for key, each in value.items()]
    return value


def columns(**kinds):
    fields = [types.StructField(name, kind) for name, kind in kinds.items()]
    return types.StructType(fields)


TEXT, NUMBER, VARIANT = types.StringType(), types.IntegerType(), types.VariantType()
DATED = types.MapType(types.DateType(), NUMBER)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (VARIANT, "has a type that no message has: value variant; cast it to string"),
        (columns(v=VARIANT), r"no message has: value\.v variant"),
        (types.ArrayType(VARIANT), r"no message has: value\.element variant"),
        (types.MapType(TEXT, VARIANT), r"no message has: value\.value variant"),
        (types.YearMonthIntervalType(), "no message has: value interval year to month"),
        (DATED, "a map whose keys no message has: value map<date,int>; cast them to string"),
        (columns(g=DATED), r"no message has: value\.g map<date,int>"),
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
        (types.MapType(TEXT, VARIANT), r"no message has: headers\.value variant"),
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
