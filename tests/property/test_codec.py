"""The two codecs write the same bytes, and read the same values."""

import datetime
import decimal
import enum
import uuid
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.codec import by_msgpack, extensions

by_msgspec = pytest.importorskip("p2pmsg.codec.by_msgspec", exc_type=ImportError)
SPEC, PACK = by_msgspec.make_encoder(), by_msgpack.make_encoder()
READ_SPEC, READ_PACK = by_msgspec.make_decoder(), by_msgpack.make_decoder()


class Side(enum.Enum):
    BUY = "buy"
    LEVEL = 3


@dataclass
class Point:
    x: float
    y: object


TEXT = st.text(st.characters(exclude_categories=("Cs",)))
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), TEXT, st.binary(),
    st.sampled_from(["a" * 31, "a" * 32, "é" * 128, b"b" * 256]),
)  # fmt: skip
MOMENTS = st.datetimes(
    datetime.datetime(1900, 1, 1), datetime.datetime(9000, 1, 1),
    timezones=st.sampled_from([datetime.UTC, datetime.timezone(datetime.timedelta(hours=-7))]),
)  # fmt: skip
TEXTS = st.one_of(
    st.decimals(), st.dates(), st.times(), st.datetimes(), st.timedeltas(), st.uuids(), MOMENTS,
    st.times(timezones=st.just(datetime.UTC)), st.sampled_from(Side),
    st.builds(Point, SCALARS, TEXT),
)  # fmt: skip
KEYS = st.one_of(
    TEXT, st.integers(-(2**63), 2**63), st.booleans(), st.tuples(TEXT, st.integers(0, 9))
)


def nested(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=20), st.tuples(inner, inner),
            st.dictionaries(KEYS, inner, max_size=20), st.sets(st.integers(0, 99)),
        ),
        max_leaves=20,
    )  # fmt: skip


@given(nested(st.one_of(SCALARS, TEXTS)))
def test_both_codecs_write_the_same_bytes(value):
    assert PACK.encode(value) == SPEC.encode(value)


@given(nested(st.one_of(SCALARS, MOMENTS)))
def test_both_codecs_read_the_same_values(value):
    data = SPEC.encode(value)
    assert SPEC.encode(READ_PACK.decode(data)) == SPEC.encode(READ_SPEC.decode(data))
    assert repr(READ_PACK.decode(data)) == repr(READ_SPEC.decode(data))


@given(st.binary(max_size=60))
def test_both_codecs_refuse_the_same_bytes(data):
    try:
        expected = READ_SPEC.decode(data)
    except (by_msgspec.CodecError, ValueError, RecursionError, OverflowError):
        with pytest.raises((by_msgpack.CodecError, ValueError, OverflowError)):
            READ_PACK.decode(data)
    else:
        found = READ_PACK.decode(data)
        assert _shown(found) == _shown(expected)


def _shown(value):
    """An Ext of either codec, and a nan, in one form."""
    if type(value).__name__ == "Ext":
        return "Ext", value.code, bytes(value.data)
    if isinstance(value, list | tuple):
        return [_shown(part) for part in value]
    if isinstance(value, dict):
        return [(_shown(key), _shown(part)) for key, part in value.items()]
    return repr(value)


CODES = range(112, 128)  # as PROTOCOL.md has them
EXTENDED = st.one_of(
    st.decimals(allow_nan=False), st.dates(), st.times(), st.datetimes(), st.timedeltas(),
    st.uuids(),
)  # fmt: skip


@given(EXTENDED)
def test_an_extension_brings_back_what_it_was_made_of(value):
    code, data = extensions.pack(value)
    assert code in CODES
    for encoder, decoder, codec in ((SPEC, READ_PACK, by_msgspec), (PACK, READ_SPEC, by_msgpack)):
        found = decoder.decode(encoder.encode([codec.Ext(code, data)]))[0]
        assert (type(found), found) == (type(value), value)


@given(st.integers(-128, 127), st.binary(max_size=40))
def test_an_extension_of_any_code_has_the_same_bytes(code, data):
    packed = SPEC.encode([1, by_msgspec.Ext(code, data), {"a": by_msgspec.Ext(code, data)}])
    assert PACK.encode([1, by_msgpack.Ext(code, data), {"a": by_msgpack.Ext(code, data)}]) == packed


@given(st.sampled_from(CODES), st.binary(max_size=20))
def test_a_malformed_extension_comes_as_it_is_and_costs_nothing_else(code, data):
    for encoder, decoder, codec in ((SPEC, READ_SPEC, by_msgspec), (PACK, READ_PACK, by_msgpack)):
        found, after = decoder.decode(encoder.encode([codec.Ext(code, data), "after"]))
        assert after == "after"
        if isinstance(found, codec.Ext):
            with pytest.raises((LookupError, ValueError, ArithmeticError)):
                extensions.unpack(code, data)
        else:
            assert type(found) in extensions.KINDS


def test_a_decimal_nan_and_a_signed_zero_come_back():
    for text in ("NaN", "sNaN", "-0", "0E+3", "Infinity", "1.500"):
        value = decimal.Decimal(text)
        found = extensions.unpack(*extensions.pack(value))
        assert found.as_tuple() == value.as_tuple()


def test_the_bytes_of_the_protocol_page():
    packed = {
        decimal.Decimal("1.50"): "d6 70 31 2e 35 30",
        datetime.date(2026, 11, 23): "c7 0a 71 32 30 32 36 2d 31 31 2d 32 33",
        datetime.time(8, 30): "d7 72 30 38 3a 33 30 3a 30 30",
        datetime.timedelta(seconds=-1): "d7 74 2d 31 30 30 30 30 30 30",
        uuid.UUID(int=255): "d8 75" + " 00" * 15 + " ff",
        datetime.datetime(2026, 11, 23, 8, 30): "c7 13 73 " + b"2026-11-23T08:30:00".hex(" "),
    }
    for value, expected in packed.items():
        for encoder, codec in ((SPEC, by_msgspec), (PACK, by_msgpack)):
            data = encoder.encode(codec.Ext(*extensions.pack(value)))
            assert data == bytes.fromhex(expected), value


def test_long_texts_bytes_and_arrays_have_the_same_heads():
    for size in (255, 256, 65_535, 65_536):
        for value in ("a" * size, b"b" * size, [0] * size, dict.fromkeys(range(size))):
            data = SPEC.encode(value)
            assert PACK.encode(value) == data
            assert READ_PACK.decode(data) == value
