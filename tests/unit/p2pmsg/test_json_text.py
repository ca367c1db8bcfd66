"""Values as JSON."""

import datetime

import pytest

from p2pmsg import codec
from p2pmsg.json_text import to_json


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
