"""What the options name and nobody has, over real publishers and relays; without a JVM."""

import contextlib
import json
import logging

import pytest

pytest.importorskip("pyspark")

import p2pmsg
from spark_bridge import heads
from spark_bridge.errors import OptionError
from spark_bridge.options import parse_options
from spark_bridge.schema import RawLayout
from spark_bridge.source import P2pmsgBatchReader, P2pmsgStreamReader, fix_ends
from tests.endpoints import lasting_endpoint
from tests.spark.streams import sealed

LAYOUT = RawLayout(["topic", "offset"])
ALL = None
"""What `latestOffset` gets from Spark where there is no limit does not matter here."""


@pytest.fixture
def feed(publisher):
    """A publisher with 10 messages of `t` and 5 of `u`."""
    publisher.publish_many("t", [b"x"] * 10)
    publisher.publish_many("u", [b"x"] * 5)
    sealed(publisher, "u", 5)
    return publisher


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "spark_bridge")
    return caplog


@pytest.fixture(autouse=True)
def long_waits(monkeypatch):
    """A slow machine's peers answer later than a query waits for them."""
    monkeypatch.setattr(heads, "FIRST_WAIT_SECONDS", 60.0)


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(heads, "FIRST_WAIT_SECONDS", 1.0)


def chosen(feed, options):
    """Options with the placeholders of a parameter filled in."""
    filled = {"subscribe": "t", **options}
    if {"assign", "subscribePattern"} & options.keys():
        del filled["subscribe"]
    return {"peers": feed.endpoint} | {
        name: text.replace("ENDPOINT", feed.endpoint).replace("SESSION", f"{feed.session:016x}")
        for name, text in filled.items()
    }


@contextlib.contextmanager
def reading(options):
    reader = P2pmsgStreamReader(parse_options(options), LAYOUT)
    try:
        yield reader
    finally:
        reader.stop()


def begin(options, start=None):
    """Begin a stream as Spark does; return the offsets before and after its first batch."""
    with reading(options) as reader:
        first = reader.initialOffset() if start is None else start
        return first, reader.latestOffset(first, ALL)


def plan(options):
    """Plan a batch as Spark does; return its ranges."""
    parsed = parse_options(options)
    partitions = P2pmsgBatchReader(parsed, LAYOUT, fix_ends(parsed)).partitions()
    return [
        (each.topic, each.start, each.stop) for partition in partitions for each in partition.ranges
    ]


NOBODY = [
    ({"assign": '{"t": ["fed"]}'}, "assign", "names 'fed' for topic 't'.*'feed' at ENDPOINT"),
    ({"assign": '{"t": ["tcp://127.0.0.1:1"]}'}, "assign", "names 'tcp://127.0.0.1:1'"),
    ({"startingOffsets": '{"t": {"fed": 3}}'}, "startingOffsets", "names 'fed' for topic 't'"),
]
BEYOND = [
    ({"startingOffsets": '{"t": 11}'}, "startingOffsets", "11 for topic 't'.*'feed'.*head is 10"),
    ({"startingOffsets": '{"t": {"SESSION": 11, "*": 0}}'}, "startingOffsets", "head is 10"),
]
ENDS = [
    ({"endingOffsets": '{"t": {"fed": 3}}'}, "endingOffsets", "names 'fed' for topic 't'"),
    ({"endingOffsets": '{"t": 500}'}, "endingOffsets", "500 for topic 't'.*whose head is 10"),
    ({"endingOffsets": '{"t": {"ENDPOINT": 11}}'}, "endingOffsets", "whose head is 10"),
]


@pytest.mark.parametrize(
    ("act", "options", "option", "reason"),
    [(plan, *each) for each in NOBODY + BEYOND + ENDS] + [(begin, *NOBODY[0]), (begin, *BEYOND[0])],
)
def test_what_names_nobody_or_is_beyond_the_head_is_refused_at_once(
    feed, act, options, option, reason
):
    with pytest.raises(OptionError, match=reason.replace("ENDPOINT", feed.endpoint)) as refusal:
        act(chosen(feed, options))
    assert refusal.value.option == option


@pytest.mark.parametrize(
    ("options", "ranges"),
    [
        ({"assign": '{"t": ["feed"], "u": ["ENDPOINT", "SESSION"]}'}, [("t", 0, 10), ("u", 0, 5)]),
        ({"startingOffsets": '{"t": {"feed": 10}}'}, []),
        (
            {"startingOffsets": '{"t": {"SESSION": 3}}', "endingOffsets": '{"t": 10}'},
            [("t", 3, 10)],
        ),
        ({"startingOffsets": '{"t": {"ENDPOINT": -2}}'}, [("t", 0, 10)]),
    ],
)
def test_what_names_somebody_is_read(feed, warnings, options, ranges):
    assert plan(chosen(feed, options)) == ranges
    assert not warnings.records


def test_a_stream_warns_of_topics_that_nobody_has_and_reads_them_when_they_come(feed, warnings):
    begin(chosen(feed, {"subscribe": "t"}))
    assert not warnings.records
    begin(chosen(feed, {"subscribe": "t,tt"}))
    assert "nobody has the topic 'tt'; it is read when it comes" in warnings.text
    begin(chosen(feed, {"assign": '{"v": ["feed"]}'}))
    assert "nobody has the topic 'v'" in warnings.text
    begin(chosen(feed, {"subscribePattern": "w.*"}))
    assert "nobody has a topic that matches 'w.*'; there are 't', 'u'" in warnings.text


@pytest.mark.parametrize(
    ("options", "option"),
    [({"subscribe": "t,tt"}, "subscribe"), ({"assign": '{"tt": ["feed"]}'}, "assign")],
)
def test_a_batch_refuses_topics_that_nobody_has(feed, warnings, options, option):
    given = chosen(feed, options)
    with pytest.raises(OptionError, match="nobody has the topic 'tt'") as refusal:
        plan(given)

    assert refusal.value.option == option
    plan({**given, "failOnDataLoss": "false"})
    assert "nobody has the topic 'tt'" in warnings.text
    assert plan(chosen(feed, {"subscribePattern": "v.*"})) == []
    assert "nobody has a topic that matches 'v.*'" in warnings.text


def test_logs_are_asked_for_names_too(tmp_path):
    log = p2pmsg.LogConfig(tmp_path)
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed", log=log) as publisher:
        publisher.publish_many("t", [b"x"] * 10)
        sealed(publisher, "t", 10)
        session = f"{publisher.session:016x}"
    at = {"path": str(tmp_path)}

    assert plan({**at, "assign": json.dumps({"t": [session]})}) == [("t", 0, 10)]
    with pytest.raises(OptionError, match=f"names 'feed'.*there are file:.*{session}"):
        plan({**at, "assign": '{"t": ["feed"]}'})
    with pytest.raises(OptionError, match=r"'endingOffsets'.*11 for topic 't'.*head is 10"):
        plan({**at, "subscribe": "t", "endingOffsets": '{"t": 11}'})
    with pytest.raises(OptionError, match=r"nobody has the topic 'tt'; there are 't'"):
        plan({**at, "subscribe": "tt"})


@pytest.fixture
def other():
    with p2pmsg.Publisher("tcp://127.0.0.1:0", name="other") as publisher:
        publisher.publish_many("t", [b"x"] * 3)
        sealed(publisher, "t", 3)
        yield publisher


def test_a_checkpoint_of_other_peers_is_refused_with_both_named(feed, other, warnings):
    options = {"peers": other.endpoint, "subscribe": "t"}
    _, checkpoint = begin({**options, "peers": feed.endpoint})
    both = f"has {other.endpoint}, and the checkpoint is of {feed.endpoint}"

    with pytest.raises(OptionError, match=both) as refusal:
        begin(options, checkpoint)
    assert refusal.value.option == "peers"
    with pytest.raises(OptionError, match=both):  # a batch was planned before the restart
        with reading(options) as reader:
            reader.partitions(checkpoint, checkpoint)
    _, end = begin({**options, "failOnDataLoss": "false"}, checkpoint)
    assert both in warnings.text
    assert set(end["peers"]) == {feed.endpoint, other.endpoint}


@pytest.mark.usefixtures("short_waits")
def test_a_checkpoint_of_peers_that_come_go_or_move_is_taken(feed, other, warnings):
    _, checkpoint = begin({"peers": f"{feed.endpoint},{other.endpoint}", "subscribe": "t"})

    begin({"peers": feed.endpoint, "subscribe": "t"}, checkpoint)
    assert f"the checkpoint is also of {other.endpoint}, which 'peers' does not" in warnings.text
    warnings.clear()
    _, end = begin(
        {"peers": f"{lasting_endpoint()},{other.endpoint}", "subscribe": "t"}, checkpoint
    )
    assert set(end["peers"]) == {feed.endpoint, other.endpoint}
    _, checkpoint = begin({"peers": feed.endpoint, "subscribe": "t"})
    with p2pmsg.Relay(feed.endpoint, "tcp://127.0.0.1:0", name="relay") as relay:
        relay.wait_for_streams(2, timeout=60)
        warnings.clear()
        begin({"peers": relay.endpoint, "subscribe": "t"}, checkpoint)
    assert not warnings.records
