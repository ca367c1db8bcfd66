"""Values as JSON."""

import datetime
import json

import pytest

from p2pmsg import codec
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


@pytest.mark.parametrize("wrap", [lambda part: [part, 2], lambda part: {"a": part, b"b": "é"}])
def test_what_can_be_published_can_be_json(wrap):
    value = {}
    for _ in range(500):
        value = wrap(value)

    text = to_json(value)
    assert json.loads(text) == json_value(value)
    for _ in range(20_000):
        value = wrap(value)
    with pytest.raises(ValueError, match="nested too deeply"):
        to_json(value)


def test_keys_that_are_one_in_json_have_the_last_value_in_the_first_place():
    assert to_json({1: [[2]], "a": {}, "1": 3}) == '{"1":3,"a":{}}'
    assert to_json({"1": 3, 1: [[2]]}) == '{"1":[[2]]}'
