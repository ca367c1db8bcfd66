"""Parts of plain messages, and topics and values."""

import pytest

from p2pmsg.bridge.shapes import Reader, Writer


def reader(topic_at, topics=None, codec="bytes"):
    return Reader("other", topic_at, topics, codec)


def test_the_topic_is_the_first_part():
    found = reader("part")
    messages = [
        [b"a", b"1"],
        b"alone",
        [b"b", b"2", b"3"],
        [b"a", b""],
        [b"\xff", b"4"],
        [b"", b"5"],
    ]
    assert found.group(messages) == {
        "a": [b"1", b""],
        "b": [[b"2", b"3"]],
        "other": [b"alone", [b"\xff", b"4"], [b"", b"5"]],
    }
    assert found.without_topic == 3


def test_the_topic_is_a_prefix():
    found = reader("prefix")
    messages = [b"a 1 2", b"b ", b"none", [b"a 3", b"4"], b"x" * 256 + b" 1"]
    assert found.group(messages) == {
        "a": [b"1 2", [b"3", b"4"]],
        "b": [b""],
        "other": [b"none", b"x" * 256 + b" 1"],
    }
    assert found.without_topic == 2


@pytest.mark.parametrize("topic", ["new york", " a", "a "])
def test_a_topic_that_would_be_read_as_another_is_refused(topic):
    with pytest.raises(ValueError, match="its topic has a space"):
        Writer("prefix", "bytes").parts(topic, b"1")
    assert Writer("part", "bytes").parts(topic, b"1") == [topic.encode(), b"1"]
    (sent,) = Writer("prefix", "bytes").parts("new", b"1 2")
    assert reader("prefix").group([sent]) == {"new": [b"1 2"]}


def test_there_is_no_topic():
    found = reader("none")
    assert found.group([b"a", [b"b", b"c"]]) == {"other": [b"a", [b"b", b"c"]]}
    assert found.group([]) == {}
    assert found.without_topic == 0
    assert found.prefixes() == (b"",)


def test_only_some_topics_are_wanted():
    found = reader("part", ["a", "c.*"])
    assert found.prefixes() == (b"a", b"c.")
    messages = [[name, b"1"] for name in (b"a", b"ab", b"b", b"c.d", b"c")]
    assert list(found.group(messages)) == ["a", "c.d"]
    assert reader("part", ["a", "*"]).prefixes() == (b"",)


@pytest.mark.parametrize(
    ("codec", "data", "value"),
    [("json", b'{"a": [1]}', {"a": [1]}), ("msgpack", b"\x81\xa1a\x91\x01", {"a": [1]})],
)
def test_values_are_decoded_and_encoded(codec, data, value):
    found = reader("none", codec=codec)
    bad = b"\xc1{"
    assert found.decode([data, [data, bad], bad]) == [value, [value, bad], bad]
    assert found.undecoded == 2
    (encoded,) = Writer("none", codec).parts("t", value)
    assert found.decode([encoded]) == [value]


@pytest.mark.parametrize(
    ("topic_at", "parts"),
    [("part", [b"t", b"1", b"2"]), ("prefix", [b"t 1", b"2"]), ("none", [b"1", b"2"])],
)
def test_messages_are_made_of_values(topic_at, parts):
    writer = Writer(topic_at, "bytes")
    assert writer.parts("t", [b"1", "2"]) == parts
    assert writer.parts("t", b"x")[-1].endswith(b"x")
    assert writer.parts("t", "é")[-1].endswith("é".encode())


@pytest.mark.parametrize("value", [1, None, {}, [], [b"a", 1], [[b"a"]]])
def test_what_is_no_bytes_is_refused_by_name(value):
    with pytest.raises(ValueError, match="neither bytes, text nor a list of them but"):
        Writer("part", "bytes").parts("t", value)
