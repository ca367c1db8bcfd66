"""A bridge's ends as text, its messages' parts and values, and the numbers in them."""

import pytest

from p2pmsg.bridge import sequences
from p2pmsg.bridge.endpoint import OurEnd, PlainEnd, parse_end
from p2pmsg.bridge.sequences import Sequences
from p2pmsg.bridge.shapes import Reader, Writer
from p2pmsg.errors import ConfigError
from transports import EndpointError, parse_endpoint

AT_1 = parse_endpoint("tcp://127.0.0.1:1")


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("zmq+sub://127.0.0.1:1", PlainEnd("zmq", "sub", AT_1, False)),
        ("zmq+push://*:0?bind=1", PlainEnd("zmq", "push", parse_endpoint("tcp://*:0"), True)),
        ("zmq+pull+ipc:///run/a", PlainEnd("zmq", "pull", parse_endpoint("ipc:///run/a"), False)),
        ("zmq+pub+inproc://a?bind=1", PlainEnd("zmq", "pub", parse_endpoint("inproc://a"), True)),
        ("tcp://127.0.0.1:1", OurEnd("", "tcp://127.0.0.1:1")),
        ("queue+ipc:///run/a", OurEnd("queue", "ipc:///run/a")),
        ("stream+tcp://a:1", OurEnd("stream", "tcp://a:1")),
    ],
)  # fmt: skip
def test_what_an_end_says(text, end):
    assert parse_end(text) == end


@pytest.mark.parametrize("text", ["zmq+sub://127.0.0.1:1", "zmq+pub+ipc://a?bind=1"])
def test_its_name_can_be_parsed_again(text):
    end = parse_end(text)
    assert parse_end(end.name_at(str(end.endpoint))) == end


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("zmq+dealer://a:1", "zmq has no 'dealer' here (known: sub, pull, pub, push)"),
        ("amqp+sub://a:1", "unknown 'amqp' before the + (known: zmq"),
        ("zmq+sub+udp://a:1", "zmq goes over tcp, ipc, inproc, not 'udp'"),
        ("zmq+sub://a:1?bind=0", "unknown option 'bind=0' (known: bind=1, curve=1, key=KEY)"),
        ("zmq+sub://*:1", "cannot connect to '*:1': it binds with ?bind=1"),
        ("zmq+sub://a:0", "cannot connect to 'a:0': it binds with ?bind=1"),
        ("zmq+sub://a", "missing port after host 'a'"),
        ("zmq+sub://", "empty host in 'zmq+sub://'"),
        ("zmq+sub://a:x", "port 'x' is not a number from 0 to 65535 in 'zmq+sub://a:x'"),
        ("foo://1", "unknown scheme 'foo'"),
        ("foo://1", "plain sockets: zmq+sub, zmq+pull, zmq+pub, zmq+push, sp+sub"),
        ("queue+tcp+x://a:1", "scheme"),
        ("nothing", "missing scheme"),
        (None, "an endpoint is a str"),
    ],
)
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(EndpointError) as raised:
        parse_end(text)
    assert words in str(raised.value)
    assert raised.value.endpoint == text


def reader(topic_at, topics=None, codec="bytes"):
    return Reader("other", topic_at, topics, codec)


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
