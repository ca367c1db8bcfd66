"""Columns out of values, and values of one length; with PySpark's types but without Spark."""

import datetime
import decimal

import msgspec
import pytest

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

from pyspark.sql import types  # noqa: E402

import p2pmsg  # noqa: E402
from spark_bridge.errors import OptionError  # noqa: E402
from spark_bridge.options import parse_options  # noqa: E402
from spark_bridge.schema import COLUMNS, Gathered, RawLayout, record_batches  # noqa: E402
from spark_bridge.typed import TypedLayout, layout_of  # noqa: E402
from tests.spark.streams import sealed  # noqa: E402

SIMPLE = {"symbol": types.StringType(), "price": types.DoubleType(), "size": types.LongType()}


def schema_of(fields=None, *, required=(), **more):
    fields = {**(SIMPLE if fields is None else fields), **more}
    return types.StructType(
        [types.StructField(name, kind, name not in required) for name, kind in fields.items()]
    )


def batch_of(values, **columns):
    return p2pmsg.MessageBatch("t", 2**63 + 5, "p", 40, 7_000, values, **columns)


def rows_of(layout, values, **columns):
    return layout.to_arrow(Gathered([batch_of(values, **columns)])).to_pylist()


HEADERS = types.MapType(types.StringType(), types.StringType())
TRADE = {"symbol": "BTC", "price": 1.5, "size": 3}


@pytest.mark.parametrize(
    ("value_format", "value"),
    [
        ("msgpack", TRADE),
        ("msgpack", msgspec.msgpack.encode(TRADE)),
        ("json", msgspec.json.encode(TRADE)),
        ("json", msgspec.json.encode(TRADE).decode()),
        ("json", b'{\n "symbol": "BTC",\n "size": 3, "price": 1.5, "more": [1, {}]}'),
        ("json", TRADE),
    ],
)
def test_a_value_becomes_columns(value_format, value):
    layout = TypedLayout(schema_of(), value_format)

    assert rows_of(layout, [value, value]) == [TRADE, TRADE]


def test_what_is_missing_or_null_is_null():
    layout = TypedLayout(schema_of(), "msgpack")
    empty = {"symbol": None, "price": None, "size": None}

    assert rows_of(layout, [{}, None, {"price": None}, {"price": 2}]) == [
        empty, empty, empty, {**empty, "price": 2.0}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value_format", "value", "reason"),
    [
        ("msgpack", {"symbol": 1}, r"Expected `str \| null`, got `int` - at `\$.symbol`"),
        ("msgpack", {"size": 2**63}, "Expected `int`"),
        ("msgpack", b"\xc1", "MessagePack"),
        ("json", b"{", "truncated"),
        ("json", b'{"size": 1.5}', "Expected `int"),
        ("json", b'{"a": 1}\n{"a": 1}', "trailing"),
        ("json", b"\xff", "malformed|invalid"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_or_kept(value_format, value, reason):
    with pytest.raises(ValueError, match=reason) as refusal:
        rows_of(TypedLayout(schema_of(), value_format), [TRADE, value])
    assert "message 41 of topic 't' from 'p'" in str(refusal.value)

    layout = TypedLayout(schema_of(_corrupt=types.BinaryType()), value_format)
    good, bad, last = rows_of(layout, [TRADE, value, TRADE])

    assert good == last == {**TRADE, "_corrupt": None}
    assert bad.pop("_corrupt") == (
        value if isinstance(value, bytes)
        else value.encode() if isinstance(value, str) else msgspec.msgpack.encode(value)
    )  # fmt: skip
    assert set(bad.values()) == {None}


@pytest.mark.parametrize(
    ("kind", "fits", "lacking"),
    [
        (types.ArrayType(types.LongType(), containsNull=False), [1], [1, None]),
        (types.MapType(types.StringType(), types.LongType(), False), {"x": 1}, {"x": None}),
        (schema_of({"x": types.LongType()}, required=("x",)), {"x": 1}, {"x": None}),
    ],
)
def test_what_is_required_within_a_value_is_required(kind, fits, lacking):
    """Spark reads such an element without asking whether it is null."""
    layout = TypedLayout(schema_of({"v": kind}, _corrupt=types.StringType()), "json")
    values = [msgspec.json.encode({"v": value}) for value in (fits, lacking)]
    wanted = list(fits.items()) if isinstance(kind, types.MapType) else fits

    assert rows_of(layout, [*values, b"{}"]) == [
        {"v": wanted, "_corrupt": None},
        {"v": None, "_corrupt": values[1].decode()},
        {"v": None, "_corrupt": None},
    ]
    with pytest.raises(ValueError, match=r"message 41 .*`null` - at `\$.v"):
        rows_of(TypedLayout(schema_of({"v": kind}), "json"), values)


def test_columns_of_the_message_have_an_underscore():
    layout = TypedLayout(
        schema_of(
            {
                "topic": types.StringType(),
                "_topic": types.StringType(),
                "_key": types.StringType(),
                "_session": types.LongType(),
                "_offset": types.LongType(),
                "_timestamp": types.TimestampType(),
                "_headers": HEADERS,
            }
        ),
        "msgpack",
    )
    (row,) = rows_of(layout, [{"topic": "its own"}], keys=["k"], headers=[{"h": 1}])

    assert row == {
        "topic": "its own", "_topic": "t", "_key": "k", "_session": 5 - 2**63, "_offset": 40,
        "_timestamp": datetime.datetime(1970, 1, 1, 0, 0, 0, 7, datetime.UTC),
        "_headers": [("h", "1")],
    }  # fmt: skip


def test_every_type_that_a_value_can_have():
    moment = datetime.datetime(2024, 8, 8, 12, 30, 0, 123456, datetime.UTC)
    value = {
        "a": [1, None, 3],
        "m": {"x": {"y z": 1.5}},
        "s": {"in ner": {"b": True}},
        "bin": b"\x00\xff",
        "d": "12.34",
        "at": moment,
        "on": "2024-08-08",
        "i": -(2**31),
        "b": 127,
        "f": 0.5,
    }
    y = types.StructType([types.StructField("y z", types.DoubleType())])
    deep = types.StructType([types.StructField("b", types.BooleanType())])
    schema = schema_of(
        {
            "a": types.ArrayType(types.LongType()),
            "m": types.MapType(types.StringType(), y),
            "s": types.StructType([types.StructField("in ner", deep)]),
            "bin": types.BinaryType(),
            "d": types.DecimalType(4, 2),
            "at": types.TimestampType(),
            "on": types.DateType(),
            "i": types.IntegerType(),
            "b": types.ByteType(),
            "f": types.FloatType(),
        }
    )
    (row,) = rows_of(TypedLayout(schema, "msgpack"), [value])

    assert row == {
        **value,
        "m": [("x", {"y z": 1.5})],
        "d": decimal.Decimal("12.34"),
        "on": datetime.date(2024, 8, 8),
    }
    (row,) = rows_of(
        TypedLayout(schema, "json"), [msgspec.json.encode({**value, "at": moment.isoformat()})]
    )
    assert row["bin"] == b"\x00\xff"
    assert row["at"] == moment


def test_what_arrow_has_no_space_for_does_not_fit_either():
    fields = {"n": types.LongType(), "d": types.DecimalType(4, 2)}
    with pytest.raises(ValueError, match=r"message 41 .*at `\$.d`"):
        rows_of(TypedLayout(schema_of(fields), "msgpack"), [{"d": "1.5"}, {"d": "123456.7"}])

    layout = TypedLayout(schema_of(fields, _corrupt=types.StringType()), "json")
    first, second = rows_of(layout, [b'{"n": 1, "d": "1.50"}', b'{"n": 2, "d": "123456.7"}'])
    assert first == {"n": 1, "d": decimal.Decimal("1.50"), "_corrupt": None}
    assert second == {"n": None, "d": None, "_corrupt": '{"n": 2, "d": "123456.7"}'}


@pytest.mark.parametrize("value_format", ["json", "msgpack"])
def test_a_time_without_a_zone_is_no_timestamp(value_format):
    """It would be another one in each zone that a session can have."""
    encode = (msgspec.json if value_format == "json" else msgspec.msgpack).encode
    zoned, bare = "2024-08-08T12:30:00+02:00", "2024-08-08T12:30:00"
    values = [encode({"at": zoned, "all": [zoned]}), encode({"at": bare}), encode({"all": [bare]})]
    fields = {"at": types.TimestampType(), "all": types.ArrayType(types.TimestampType())}
    moment = datetime.datetime(2024, 8, 8, 10, 30, tzinfo=datetime.UTC)
    rows = rows_of(
        TypedLayout(schema_of(fields, _corrupt=types.BinaryType()), value_format), values
    )

    assert rows == [
        {"at": moment, "all": [moment], "_corrupt": None},
        {"at": None, "all": None, "_corrupt": values[1]},
        {"at": None, "all": None, "_corrupt": values[2]},
    ]
    with pytest.raises(ValueError, match=r"message 41 .*timezone component - at `\$.at`"):
        rows_of(TypedLayout(schema_of(fields), value_format), values)

    local = TypedLayout(schema_of({"at": types.TimestampNTZType()}), value_format)
    assert rows_of(local, values[:2]) == [
        {"at": datetime.datetime(2024, 8, 8, 10, 30)},
        {"at": datetime.datetime(2024, 8, 8, 12, 30)},
    ]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (schema_of(_offset=types.StringType()), "_offset as bigint, not string"),
        (schema_of(_corrupt=types.LongType()), "_corrupt as binary or string"),
        (schema_of({"_offset": types.LongType()}), "no field of the value"),
        (schema_of(v=types.MapType(types.LongType(), types.LongType())), "v map<bigint,bigint>"),
        (schema_of(required=("price",), _corrupt=types.StringType()), "price .*not null.*_corrupt"),
        (schema_of(required=("_corrupt",), _corrupt=types.StringType()), "_corrupt .*not null"),
        (schema_of(required=("_headers",), _headers=HEADERS), "_headers .*not null"),
    ],
)
def test_schemas_that_cannot_be_had(schema, reason):
    with pytest.raises(OptionError, match=reason):
        TypedLayout(schema, "msgpack")


def test_which_layout_an_option_means():
    base = {"peers": "tcp://h:1", "subscribe": "t"}
    raw = types.StructType([types.StructField("offset", types.LongType())])
    typed = types.StructType([types.StructField("price", types.DoubleType())])

    assert layout_of(typed, parse_options(base)).value_format == "msgpack"
    assert isinstance(layout_of(raw, parse_options({**base, "valueFormat": "raw"})), RawLayout)
    with pytest.raises(OptionError, match="no column 'price'"):
        layout_of(typed, parse_options({**base, "valueFormat": "raw"}))
    required = types.StructType([types.StructField("offset", types.LongType(), False)])
    layout = layout_of(required, parse_options({**base, "valueFormat": "raw"}))
    assert rows_of(layout, [b"x"]) == [{"offset": 40}]
    assert not layout.schema.field("offset").nullable
    required = types.StructType([types.StructField("value", types.BinaryType(), False)])
    with pytest.raises(OptionError, match="value as not null"):
        layout_of(required, parse_options({**base, "valueFormat": "raw"}))


def fetch(publisher, values, **how):
    publisher.publish_many("t", values)
    sealed(publisher, "t", len(values))
    with p2pmsg.reader.RangeReader(publisher.endpoint) as reader:
        return list(reader.fetch("t", 0, len(values), **how))


def test_a_fetch_decodes_typed_values_and_falls_back_frame_by_frame(publisher):
    layout = TypedLayout(schema_of(_corrupt=types.BinaryType()), "msgpack")
    values = [{**TRADE, "size": number} for number in range(3000)]
    values[1500] = "wrong"
    batches = fetch(publisher, values, value_type=layout.value_type)
    kinds = [type(batch.values[0]).__name__ for batch in batches]
    (record,) = record_batches(layout, batches)

    assert set(kinds) == {"Row", "dict"}
    assert record.schema == layout.schema
    assert [row["size"] for row in record.to_pylist()] == [
        None if number == 1500 else number for number in range(3000)
    ]


@pytest.mark.parametrize(
    ("kind", "beyond"),
    [
        (types.DecimalType(4, 2), "123456.7"),
        (types.ArrayType(schema_of({"y": types.DecimalType(4, 2)})), [{"y": "123456.7", "z": 1}]),
    ],
)
def test_a_fetched_value_is_kept_whole_whatever_does_not_fit(publisher, kind, beyond):
    """Also its fields without a column, and without those that it does not have."""
    fields = {"x": kind, "absent": types.LongType()}
    layout = TypedLayout(schema_of(fields, _corrupt=types.BinaryType()), "msgpack")
    sent = {"x": beyond, "other": [1, {"a": "b"}]}
    values = [value for batch in fetch(publisher, [sent, {}], value_type=layout.value_type)
              for value in batch.values]  # fmt: skip
    first, second = rows_of(layout, values)

    assert msgspec.msgpack.decode(first.pop("_corrupt")) == sent
    assert set(first.values()) == set(second.values()) == {None}
    assert TypedLayout(schema_of(fields), "msgpack").value_type is not None


@pytest.mark.parametrize("size", [1, 128, 255, 256, 70_000])
def test_values_of_one_length_come_as_a_block(publisher, size):
    values = [bytes([number % 251]) * size for number in range(2000 if size < 1000 else 20)]
    batches = fetch(publisher, values, fixed=True)
    layout = RawLayout(["value", "offset"])
    rows = [row for record in record_batches(layout, batches) for row in record.to_pylist()]

    assert all(isinstance(batch, p2pmsg.message.FixedBatch) for batch in batches) == (size < 65_536)
    assert rows == [{"value": value, "offset": at} for at, value in enumerate(values)]
    assert [message.value for batch in batches for message in batch] == values
    assert batches[0][1:].values == values[1 : len(batches[0])]
    assert batches[0][-1].sequence == len(batches[0]) - 1


@pytest.mark.parametrize("size", [1, 128, 70_000])
def test_record_batches_hold_what_was_sent_whatever_came_before(size):
    """Columns that are the same again are cut from the last one."""
    layout = RawLayout(list(COLUMNS))
    counts = [("a", 100), ("a", 70), ("a", 128), ("b", 128), ("b", 65), ("a", 200), ("a", 64)]
    for number, (topic, count) in enumerate(counts):
        values = [bytes([at % 251]) * size for at in range(count)]
        lead = b"\xc4" + bytes([size]) if size < 256 else b"\xc6" + size.to_bytes(4, "big")
        half = count // 2
        parts = [values[:half], values[half:]]
        batches = [
            p2pmsg.message.FixedBatch(
                topic, 2**63 + number, "p" + topic, at, 1_000_000, b"".join(lead + v for v in part),
                len(lead) + size, len(lead),
            )
            for at, part in zip((5, 5 + half), parts, strict=True)
        ]  # fmt: skip
        made = layout.to_arrow(Gathered(batches))
        made.validate(full=True)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, layout.schema) as writer:
            writer.write_batch(made)
        stream = sink.getvalue()
        assert stream.size < count * (size + 120) + 4096  # no more than its own rows
        rows = pa.ipc.open_stream(stream).read_all().to_pylist()
        assert [row["value"] for row in rows] == values
        assert [row["offset"] for row in rows] == list(range(5, 5 + count))
        for name, wanted in (
            ("topic", topic), ("publisher", "p" + topic), ("session", number - 2**63),
            ("key", None), ("headers", None),
        ):  # fmt: skip
            assert {row[name] for row in rows} == {wanted}
