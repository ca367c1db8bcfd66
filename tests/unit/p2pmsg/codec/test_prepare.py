"""Each part of a value arrives as the type it has, or is refused by the path to it."""

import dataclasses
import datetime
import decimal
import enum
from typing import Any

import pytest

from p2pmsg import codec
from p2pmsg.codec import packed_if_plain, prepare, prepare_noting
from p2pmsg.errors import MessageError

DECIMAL = decimal.Decimal("1.50")
UTC = datetime.UTC


class Side(enum.Enum):
    BUY = "buy"


class Zone(datetime.tzinfo):
    def utcoffset(self, moment):
        return None


@dataclasses.dataclass
class Order:
    price: Any
    side: Any = None


class Struct(codec.Struct):
    price: Any
    size: int = 1


def arrived(value):
    return codec.decode(codec.encode(value))


REFUSED = {
    "an Enum": ({"orders": [0, {"side": Side.BUY}]}, 'value["orders"][1]["side"]', "Enum"),
    "an unknown type": ({"orders": [0, 1, 2, Order(1j)]}, 'value["orders"][3].price', "complex"),
    "a long int": ([Struct(2**64)], "value[0].price", "64 bits"),
    "a key": ({"a": {datetime.date(2026, 1, 1): 1}}, 'value["a"]', "key"),
    "bytes that are no Timestamp": ([codec.Ext(-1, b"12")], "value[0]", "no valid Timestamp"),
    "a long int as key": ({2**64: 1}, "value", "key"),
    "a time in a zone": (
        [datetime.time(1, tzinfo=Zone())],
        "value[0]",
        "no fixed offset",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("value", "path", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_would_arrive_as_another_type_is_refused_by_its_path(value, path, reason):
    assert packed_if_plain(value) is None
    with pytest.raises(MessageError, match=reason) as caught:
        prepare(value)
    assert caught.value.field == path


def test_a_value_without_end_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(MessageError, match="nested deeper"):
        prepare(endless)


def test_a_hook_says_what_unknown_types_go_as():
    def hook(value):
        if isinstance(value, complex):
            return [value.real, value.imag, DECIMAL]
        raise TypeError("no idea")

    assert arrived(prepare({"a": Order(1j)}, hook)) == {
        "a": {"price": [0.0, 1.0, DECIMAL], "side": None}
    }
    with pytest.raises(MessageError, match=r"enc_hook: no idea") as caught:
        prepare([object()], hook)
    assert caught.value.field == "value[0]"
    with pytest.raises(MessageError, match="nested deeper"):
        prepare(1j, lambda value: value)


def test_numpy_scalars_go_as_numbers():
    numpy = pytest.importorskip("numpy")
    scalars = [numpy.float64(1.5), numpy.float32(0.5), numpy.int8(-3), numpy.uint64(2**64 - 1)]
    found = arrived([*scalars, numpy.bool_(True), numpy.str_("a")])

    assert found == [1.5, 0.5, -3, 2**64 - 1, True, "a"]
    assert [type(one) for one in found] == [float, float, int, int, bool, str]
    assert prepare_noting(scalars, None, "value") == (found[:4], False)
    for value in (numpy.array([1]), numpy.longdouble(1), numpy.datetime64("2026-01-01")):
        with pytest.raises(MessageError, match="cannot be packed") as caught:
            prepare({"a": value})
        assert caught.value.field == 'value["a"]'


def test_pydantic_models_go_as_their_fields():
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        price: float
        parts: list[int] = []  # noqa: RUF012

    class Exact(pydantic.BaseModel):
        price: decimal.Decimal
        side: Side = Side.BUY

    assert arrived({"m": Model(price=1, parts=[2])}) == {"m": {"price": 1.0, "parts": [2]}}
    assert arrived(prepare([Exact(price="1.50")])) == [{"price": DECIMAL, "side": "buy"}]
    assert type(codec.convert({"price": 1}, Model)) is Model
    with pytest.raises(codec.CodecError, match=r"valid integer.* - at `\$\.parts\[1\]`"):
        codec.convert({"price": 1, "parts": [1, "x"]}, Model)


def test_what_no_receiver_could_read_is_refused():
    msgpack = pytest.importorskip("msgpack")
    with pytest.raises(BufferError):
        codec.encode([memoryview(b"abcd")[::2]])
    if codec.NAME == "msgspec":  # the package msgpack packs its own type without asking
        with pytest.raises(TypeError, match="within the years 1 to 9999"):
            codec.encode([msgpack.Timestamp(2**40, 0)])
    with pytest.raises(MessageError) as caught:
        prepare({"at": [msgpack.Timestamp(2**40, 0)]})
    assert caught.value.field == 'value["at"][0]'


def nested(levels, innermost):
    for _ in range(levels):
        innermost = [innermost]
    return innermost


def test_what_is_nested_deeply_arrives_or_is_refused():
    encode = codec.exact_encoder.encode
    for value in (nested(500, 1), nested(499, {}), nested(190, DECIMAL), [[[1]] * 1000] * 3):
        assert codec.decode(encode(value)) == value
    values = nested(501, 1), nested(500, {}), nested(900, 1), nested(1500, {}), nested(220, DECIMAL)
    for value in values:
        with pytest.raises(MessageError, match="nested deeper than 200 levels"):
            encode(value)
