"""Without msgspec values become the same types, and errors have the same words and paths."""

import datetime
import enum
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest

from p2pmsg.codec import by_msgpack, converters, records

by_msgspec = pytest.importorskip("p2pmsg.codec.by_msgspec", exc_type=ImportError)


class Side(enum.Enum):
    BUY = "buy"
    SELL = "sell"


@dataclass
class Trade:
    symbol: str
    price: float
    size: int = 0
    tags: list[str] = field(default_factory=list)


@dataclass
class Node:
    value: int
    children: "list[Node]" = field(default_factory=list)


@dataclass
class Checked:
    size: int

    def __post_init__(self):
        if self.size < 0:
            raise ValueError("size is below 0")


class Quote(TypedDict):
    bid: float
    ask: NotRequired[float]


class Pair(NamedTuple):
    left: int
    right: str = "r"


FITS = [
    (1, int), (1, float), (1.5, float), ("a", str), (b"a", bytes), (None, None), (True, bool),
    (1, int | None), (None, int | None), ("a", int | str), (1, float | int), (1.5, float | int),
    ([1, 2], list[int]), ([1, 2], set[int]), ([1, "a"], tuple[int, str]), ([1, 2], tuple[int, ...]),
    ({"a": 1}, dict[str, int]), ({1: [None]}, dict[int, list[int | None]]), ([1], list),
    ({"a": 1}, dict), ("buy", Side), ("b", Literal["a", "b"]), (3, Literal[3]), (7, Any),
    ({"symbol": "A", "price": 1}, Trade), ({"symbol": "A", "price": 1, "more": 2}, Trade),
    ({"symbol": "A", "price": 1, "size": 3, "tags": ["x"]}, Trade),
    ({"value": 1, "children": [{"value": 2}]}, Node), ({"bid": 1}, Quote),
    ({"bid": 1, "ask": 2}, Quote), ([1], Pair), ([1, "x"], Pair), ({"size": 1}, Checked),
    ("1.50", Decimal), (Decimal("1.50"), Decimal), (3, Decimal), ("2026-11-23", datetime.date),
    (datetime.date(2026, 1, 1), datetime.date), ("08:30:00", datetime.time),
    ("2026-11-23T08:30:00", datetime.datetime), ("P1DT2S", datetime.timedelta),
    ("-PT0.5S", datetime.timedelta), (str(uuid.UUID(int=5)), uuid.UUID),
    (uuid.UUID(int=5), uuid.UUID), ([{"symbol": "A", "price": 1}] * 3, list[Trade]),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), FITS, ids=map(str, range(len(FITS))))
def test_what_fits_becomes_the_same(value, kind):
    expected = by_msgspec.convert(value, kind)
    found = converters.convert(value, kind)

    assert found == expected
    assert type(found) is type(expected)


MISFITS = [
    ("a", int), (1.5, int), (True, int), (1, str), (b"a", str), ("a", bytes), (1, bool), (1, None),
    ("a", float), ("a", int | None), ([], int | str), ([1, "a"], list[int]), (1, list[int]),
    ([1], tuple[int, str]), ([[1, 2], ["a", 3]], list[tuple[int, int]]),
    ({"a": "b"}, dict[str, int]),
    (1, dict), (1, Literal["a"]), ([1], Side), ({"symbol": "A"}, Trade),
    ({"symbol": 1, "price": 1}, Trade), ({"symbol": "A", "price": 1, "tags": ["a", 1]}, Trade),
    ([{"symbol": "A", "price": "x"}], list[Trade]), (1, Trade), ({"ask": 1}, Quote),
    ({"value": 1, "children": [{"value": 2, "children": [{"value": "x"}]}]}, Node),
    ({"symbol": "A", "price": [1]}, Trade | None), ([1], Decimal),
    (1, datetime.date), (1, uuid.UUID), ({"size": -1}, Checked),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), MISFITS, ids=map(str, range(len(MISFITS))))
def test_what_does_not_fit_is_refused_in_the_same_words(value, kind):
    with pytest.raises(by_msgspec.CodecError) as expected:
        by_msgspec.convert(value, kind)
    with pytest.raises(converters.CodecError) as found:
        converters.convert(value, kind)

    assert str(found.value) == str(expected.value)


INVALID = [
    ("x", Side),
    ("c", Literal["a", "b"]),
    ("x", Decimal),
    ("x", datetime.date),
    ("x", uuid.UUID),
]


@pytest.mark.parametrize(("value", "kind"), INVALID, ids=str)
def test_a_text_that_is_no_such_value_is_refused(value, kind):
    for convert, error in (
        (by_msgspec.convert, by_msgspec.CodecError),
        (converters.convert, converters.CodecError),
    ):
        with pytest.raises(error, match="Invalid"):
            convert(value, kind)


@pytest.mark.parametrize("codec", [by_msgspec, by_msgpack], ids=["msgspec", "msgpack"])
def test_a_type_that_cannot_be_had_is_refused_by_name(codec):
    class Unknown:
        pass

    for kind in (Unknown, list[Unknown], dict[str, Unknown | None]):
        with pytest.raises(TypeError, match="Unknown"):
            codec.check_kind(kind)
    codec.check_kind(list[Trade | None])


def test_limits_hold():
    meta = {"ge": 0, "lt": 5}
    ours = converters.converter(Annotated[int, records.Meta(**meta)])
    theirs = Annotated[int, by_msgspec.Meta(**meta)]
    for value in (-1, 0, 4, 5):
        try:
            expected = by_msgspec.convert(value, theirs)
        except by_msgspec.CodecError as error:
            with pytest.raises(converters.CodecError, match=str(error).replace("|", ".")[:15]):
                ours(value)
        else:
            assert ours(value) == expected
    short = Annotated[str, records.Meta(max_length=2)]
    with pytest.raises(converters.CodecError, match="length"):
        converters.convert("abc", short)


def structs(base):
    """The same classes on either base."""

    class Row(base, array_like=True, frozen=True):
        a: int
        b: list[int] = []  # noqa: RUF012

    class Entry(base, gc=False):
        a: int
        row: Row
        b: str = "x"

    return Row, Entry


OURS, THEIRS = structs(records.Struct), structs(by_msgspec.Struct)


@pytest.mark.parametrize("arguments", [(1,), (1, [2])])
def test_structs_go_and_come_alike(arguments):
    ours = OURS[1](5, OURS[0](*arguments))
    theirs = THEIRS[1](5, THEIRS[0](*arguments))
    data = by_msgspec.make_encoder().encode(theirs)
    assert by_msgpack.make_encoder().encode(ours) == data
    assert by_msgpack.make_decoder(OURS[1]).decode(data) == ours
    assert by_msgpack.json_encode(ours) == by_msgspec.json_encode(theirs)
    for broken in ({"a": 5, "row": []}, {"a": 5, "row": ["x"]}, {"row": [1]}, []):
        with pytest.raises(by_msgspec.CodecError) as expected:
            by_msgspec.convert(broken, THEIRS[1])
        with pytest.raises(converters.CodecError) as found:
            converters.convert(broken, OURS[1])
        assert str(found.value) == str(expected.value)


def test_json_has_the_same_text():
    values = [
        {"a": [1, 2.5, None, True], "é": "ü\n"}, [float("nan"), float("inf")], b"abc", Side.BUY,
        Trade("A", 1.5), Decimal("1.5"), datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    ]  # fmt: skip
    for value in values:
        assert by_msgpack.json_encode(value) == by_msgspec.json_encode(value)
    for text in ("", "{", "[1,]", "NaN", "1e999", '{"a":1} x', "[" * 100_000):
        for codec in (by_msgspec, by_msgpack):
            with pytest.raises(codec.CodecError):
                codec.json_decode(text)
