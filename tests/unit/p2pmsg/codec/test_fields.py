"""A record has the same fields on all ways: looked at or not, next to a Decimal, by both codecs."""

import dataclasses
from decimal import Decimal
from typing import Any

import pytest

from p2pmsg import codec
from p2pmsg.codec import by_msgpack, prepare

attrs = pytest.importorskip("attrs")
msgspec = pytest.importorskip("msgspec")
by_msgspec = pytest.importorskip("p2pmsg.codec.by_msgspec", exc_type=ImportError)
SPEC = msgspec.msgpack.Encoder()
PACK = by_msgpack.make_encoder()
DECIMAL = Decimal("1.5")


@attrs.define
class Order:
    price: Any
    id: int = 1
    _venue: str = "none"


@attrs.define
class Child(Order):
    amount: int = 3


@dataclasses.dataclass
class Data:
    price: Any
    _venue: str = "none"
    unset: int = dataclasses.field(init=False)
    fixed: int = dataclasses.field(init=False, default=4)


@dataclasses.dataclass(slots=True)
class Slotted:
    price: Any
    unset: int = dataclasses.field(init=False)
    other: int = 2


class Sparse(msgspec.Struct, omit_defaults=True, tag="sparse"):
    price: Any = None
    count: int = 0
    names: list[str] = msgspec.field(default_factory=list)
    by_name: dict[str, int] = msgspec.field(default_factory=dict)
    kept: set[int] = msgspec.field(default_factory=lambda: {1})
    pair: tuple[int, ...] = ()
    sent_as: int = msgspec.field(default=7, name="as")
    maybe: int | msgspec.UnsetType = msgspec.UNSET


class SparseRow(msgspec.Struct, omit_defaults=True, array_like=True, tag=True):
    price: Any = None
    count: int = 0


class ByName(msgspec.Struct, omit_defaults=True, kw_only=True):
    price: Any
    count: int = 0
    needed: int


RECORDS = {
    "attrs": lambda price: Order(price, 2, "X"),
    "attrs, inherited": lambda price: Child(price, 2, "X"),
    "dataclass": lambda price: Data(price, "X"),
    "slotted dataclass": Slotted,
    "Struct of defaults": Sparse,
    "Struct of other values": lambda price: Sparse(price, 5, ["a"], {"a": 1}, {1}, (1,), 8, 9),
    "array-like Struct": SparseRow,
    "Struct by name": lambda price: ByName(price=price, needed=0),
}
LOST = ("attrs", "dataclass")
"""What begins so msgspec's own encoder leaves fields out of, or changes their order."""
NEVER_SET = {Data: ["unset"], Slotted: ["unset"]}
PLACES = {
    "alone": lambda record: record,
    "in a list": lambda record: [1, record, record],
    "in a dict": lambda record: {"a": {"b": record}},
    "in a record": lambda record: Order(record, 2, "Y"),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_same_bytes_on_all_ways(name, place):
    make = RECORDS[name]
    value = place(make(1.5))
    packed = SPEC.encode(prepare(value)) if codec.chosen.NAME == "msgspec" else None
    assert PACK.encode(value) == PACK.encode(prepare(value)) == codec.exact_encoder.encode(value)
    assert packed in (None, PACK.encode(value))
    if not name.startswith(LOST) and not isinstance(value, Order):
        assert SPEC.encode(value) == PACK.encode(value)

    exact = codec.decode(codec.exact_encoder.encode(place(make(DECIMAL))))
    assert exact == codec.decode(PACK.encode(value))
    assert f"{DECIMAL!r}" in f"{exact}"
    assert [*_keys(exact)] == [*_keys(codec.decode(PACK.encode(value)))]


def _keys(value):
    if isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _keys(part)
    elif isinstance(value, list):
        for part in value:
            yield from _keys(part)


@pytest.mark.parametrize("price", [1.5, DECIMAL], ids=str)
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_comes_back_as_its_class(name, price):
    value = RECORDS[name](price)
    for field in NEVER_SET.get(type(value), ()):
        setattr(value, field, 8)
    decoder = msgspec.msgpack.Decoder(type(value), ext_hook=by_msgspec.ext_hook)
    assert decoder.decode(codec.exact_encoder.encode(value)) == value
