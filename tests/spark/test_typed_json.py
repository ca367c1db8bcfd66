"""Each JSON value is one row, whatever its neighbours are; with PySpark's types, without Spark."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql import types

import p2pmsg
from spark_bridge.schema import Gathered
from spark_bridge.typed import TypedLayout

FIELDS = [
    types.StructField("a", types.StringType()),
    types.StructField("n", types.IntegerType()),
]
CORRUPT = types.StructField("_corrupt", types.BinaryType())


class Plain(msgspec.Struct):
    a: str | None = None
    n: int | None = None


def rows_of(values, *more):
    layout = TypedLayout(types.StructType([*FIELDS, *more]), "json")
    batch = p2pmsg.MessageBatch("t", 5, "p", 40, 7_000, values)
    return layout.to_arrow(Gathered([batch])).to_pylist()


def alone(value):
    try:
        row = msgspec.json.decode(value, type=Plain)
    except (msgspec.MsgspecError, ValueError):
        return {"a": None, "n": None, "_corrupt": value}
    return {"a": row.a, "n": row.n, "_corrupt": None}


objects = st.integers(0, 9).map(lambda number: b'{"n":%d}' % number)
pieces = objects | st.sampled_from(
    [b'{"n":', b'{"a":"', b'"}', b"{", b"}", b'"', b"1", b",", b"\n", b" ", b"[", b"]", b"],[",
     b"null", b"\\", b"\xff"]
)  # fmt: skip
values = st.lists(
    objects | st.lists(pieces, max_size=4).map(b"".join) | st.binary(max_size=3), max_size=8
).filter(bool)


@given(values)
@example([b'{"n":1', b'} {"n":2}'])
@example([b'{"n":1}{"n":2}', b""])
@example([b'{"n":0}{"n":9}', *(b'{"n":%d}' % number for number in range(1, 6)), b" "])
@example([b'{"n":1}],[{"n":2}', b'{"a":"x', b'"}'])
@example([b'{"n":1,', b'"n":5}', b'{"n":6}{"n":7}'])
def test_a_value_is_decoded_as_if_it_were_alone(sent):
    assert rows_of(sent, CORRUPT) == [alone(value) for value in sent]
