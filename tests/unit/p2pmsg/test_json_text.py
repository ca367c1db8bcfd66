"""Values as JSON."""

import datetime
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg import codec, json_text
from p2pmsg.json_text import json_value, to_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"abc", '"abc"'),
        (b"\xff\x00", '{"base64":"/wA="}'),
        ([1, float("nan"), float("inf")], "[1,null,null]"),
        ({1: "a", b"k": None}, '{"1":"a","k":null}'),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), '"2026-01-02T00:00:00+00:00"'),
        (codec.Ext(5, b"a"), '{"extension":5,"data":"a"}'),
    ],
)
def test_a_value_as_json(value, text):
    assert to_json(value) == text


@pytest.mark.parametrize("levels", [500, 990, 20_000])
@pytest.mark.parametrize(
    ("wrap", "begin", "end"),
    [
        (lambda part: [part, 2], "[", ",2]"),
        (lambda part: {"a": part, b"b": "é"}, '{"a":', ',"b":"é"}'),
    ],
    ids=["list", "dict"],
)
def test_a_value_as_json_however_deeply_it_is_nested(levels, wrap, begin, end):
    value = {}
    for _ in range(levels):
        value = wrap(value)

    assert to_json(value) == begin * levels + "{}" + end * levels
    assert to_json(json_value(value)) == to_json(value)


def test_a_key_that_is_nested_deeply():
    key = ()
    for _ in range(990):
        key = (key,)

    assert to_json({key: 1}) == f'{{"{"[" * 991}{"]" * 991}":1}}'


def test_a_value_that_has_itself_in_it_is_refused():
    endless = []
    endless += [1, endless, endless]
    with pytest.raises(ValueError, match="nested deeper"):
        to_json(endless)


def test_keys_that_are_one_in_json_have_the_last_value_in_the_first_place():
    assert to_json({1: [[2]], "a": {}, "1": 3}) == '{"1":3,"a":{}}'
    assert to_json({"1": 3, 1: [[2]]}) == '{"1":[[2]]}'


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("é\\\n")


@given(st.recursive(
    LEAVES, lambda part: st.lists(part) | st.dictionaries(st.text("é\"a"), part) | st.tuples(part)
))  # fmt: skip
def test_deep_values_are_written_as_others_are(value):
    plain = json_value(value)
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    assert json_text._text_of_deep(plain) == to_json(value) == text
