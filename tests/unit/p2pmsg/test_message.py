"""Messages and batches, and values as JSON."""

import datetime
import itertools
import json
import pickle

import pytest

from p2pmsg import Message, MessageBatch, codec
from p2pmsg.json_text import json_value, to_json
from p2pmsg.message import Origin

VALUES = [b"a", {"price": 1.5}, None]
COLUMNS = {
    "timestamps_ns": [30, 10, 20],
    "keys": ["k", None, "m"],
    "headers": [None, {"h": 1}, None],
}
SUBSETS = [names for size in range(4) for names in itertools.combinations(sorted(COLUMNS), size)]


def expected(columns: dict[str, list], *, late: bool) -> list[Message]:
    times, keys, headers = (columns.get(name) for name in ("timestamps_ns", "keys", "headers"))
    return [
        Message(
            topic="t",
            value=VALUES[at],
            timestamp_ns=times[at] if times else 7,
            sequence=40 + at,
            origin=Origin(session=2**63 + 5, publisher="feed"),
            key=keys[at] if keys else None,
            headers=headers[at] if headers else None,
            late=late,
        )
        for at in range(3)
    ]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("names", SUBSETS, ids=lambda names: "+".join(names) or "values only")
def test_iterated_indexed_and_sliced_are_the_same(names, late):
    columns = {name: COLUMNS[name] for name in names}
    batch = MessageBatch("t", 2**63 + 5, "feed", 40, 7, VALUES, **columns)
    batch.late = late

    messages = expected(columns, late=late)
    assert list(batch) == messages
    assert [batch[at] for at in range(3)] == messages
    assert batch[-1] == messages[2]
    assert list(batch[1:]) == messages[1:]
    assert all(message.session == 2**63 + 5 for message in batch)
    assert all(message.publisher == "feed" for message in batch)


def test_a_message_survives_pickling_and_may_be_in_a_set():
    message = Message("t", b"a", 7, 0, Origin(1, "feed"), "k")
    assert pickle.loads(pickle.dumps(message)) == message
    assert {message} == {Message("t", b"a", 7, 0, Origin(1, "feed"), "k")}
    assert message != Message("t", b"a", 7, 0, Origin(2, "feed"), "k")


@pytest.mark.parametrize("name", ["value", "origin", "session", "publisher"])
def test_a_message_does_not_change(name):
    message = Message("t", b"a", 7, 0, Origin(1, "feed"))
    with pytest.raises(AttributeError):
        setattr(message, name, 1)


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
