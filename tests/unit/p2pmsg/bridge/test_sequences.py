"""Numbers in messages, and what is missing between them."""

import pytest

from p2pmsg.bridge import sequences
from p2pmsg.bridge.sequences import Sequences
from p2pmsg.errors import ConfigError


def counted(place, values, codec="bytes"):
    found = Sequences(place, codec)
    for value in values:
        topic, value = value if isinstance(value, tuple) else ("t", value)
        found.note(topic, value)
    return found


def at(found):
    return found.gaps, found.missing, found.back, found.unnumbered


@pytest.mark.parametrize(
    ("place", "order"), [("2:4", "big"), ("2:4:be", "big"), ("2:4:le", "little")]
)
def test_gaps_are_counted(place, order):
    numbers = [7, 8, 10, 11, 20]
    found = counted(place, [b"xx" + number.to_bytes(4, order) + b"y" for number in numbers])
    assert at(found) == (2, 9, 0, 0)
    assert found.newest == ("t", 12, 20)


def test_a_number_wraps():
    found = counted("0:1", [bytes([number % 256]) for number in range(250, 520)])
    assert at(found) == (0, 0, 0, 0)
    assert at(counted("0:1", [b"\xfe", b"\x01"])) == (1, 2, 0, 0)


FIELDS = [
    {"h": {"n": 1}}, {"h": {"n": 2}}, {"h": {"n": 9}}, {"h": 3}, 5, {"h": {"n": "x"}},
    {"h": {"n": True}}, {"h": {"n": 3}},
]  # fmt: skip
COUNTS = {
    "in the first part": ("0:2", [[b"\0\1", b"x"], [b"\0\3", b"x"], []], "bytes", (1, 1, 0, 1)),
    "a sender goes back": ("0:1", [b"d", b"e", b"\0", b"\1", b"\3"], "bytes", (1, 1, 1, 0)),
    "by topic": ("0:1", [("a", b"\0"), ("b", b"\1"), ("a", b"\2")], "bytes", (1, 1, 0, 0)),
    "a field": ("h.n", FIELDS, "json", (1, 6, 1, 4)),
    "an index": ("1", [[0, 5], [0, 7], [0]], "msgpack", (1, 1, 0, 1)),
    "too short": ("2:2", [b"123", b"", b"1234", "text"], "bytes", (0, 0, 0, 3)),
}


@pytest.mark.parametrize(("place", "values", "codec", "counts"), COUNTS.values(), ids=COUNTS)
def test_numbers_are_counted_where_they_are(place, values, codec, counts):
    assert at(counted(place, values, codec)) == counts


def test_topics_are_bounded(monkeypatch):
    monkeypatch.setattr(sequences, "TOPICS_MAX", 3)
    found = counted("0:1", [(str(number), b"\0") for number in range(10)])
    assert len(found._expected) == 3
    found.note("9", b"\5")
    assert found.missing == 4


@pytest.mark.parametrize(
    "place", ["", "1", "1:9", "1:0", "-1:4", "1:4:me", "a:b", None, "1:4:be:x"]
)
def test_a_place_that_is_none_is_named(place):
    with pytest.raises(ConfigError, match="sequence_at"):
        Sequences(place, "bytes")
