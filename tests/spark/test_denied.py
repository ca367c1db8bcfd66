"""Topics without a right to them, and keys that are refused: in batches, streams and lag."""

import json
import logging
import pickle
import re

import pytest

pytest.importorskip("pyspark")

import p2pmsg
import spark_bridge
from p2pmsg.errors import AccessDeniedError
from spark_bridge.options import parse_options
from spark_bridge.selection import literal_prefix
from spark_bridge.session_directory import covers
from spark_bridge.source import fix_ends
from tests.integration.peers import eventually
from tests.integration.secure import Peers, rewrite
from tests.spark.streams import sealed
from tests.spark.test_names import ALL, plan, reading

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def rule(*topics):
    return f"[[rule]]\nwho = ['query']\nsubscribe = {list(topics)}\n"


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "spark_bridge")
    return caplog


class Feed:
    """A publisher of 't' and 'u', and what a query with a right to 't' only gives."""

    def __init__(self, folder, opened):
        self.peers = Peers(folder)
        self._access = folder / "access"
        self._access.write_text(rule("t"))
        self._security = self.peers.security("feed", "query", access=self._access)
        self.publisher = opened(
            p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed", security=self._security)
        )
        self.endpoint = self.publisher.endpoint
        self.publish(500)

    def publish(self, count):
        for topic in ("t", "u"):
            self.publisher.publish_many(topic, [b"x"] * count)
        self.publisher.flush()

    def allow(self, *topics):
        rewrite(self._access, rule(*topics))
        self._security.grants._due_ns = 0

    def forget(self, key):
        self._security.known.remove(key)

    def options(self, key="query", **options):
        self.peers.security(key)
        place = self.peers.pinned(self.endpoint, "feed")
        return {
            "peers": place, "security": str(self.peers.folder / key),
            "startingOffsets": "earliest", **options,
        }  # fmt: skip


@pytest.fixture
def feed(tmp_path, request):
    def opened(publisher):
        request.addfinalizer(publisher.close)
        return publisher

    made = Feed(tmp_path, opened)
    sealed(made.publisher, "u", 500)
    return made


def topics_of(planned):
    return {topic for topic, _, _ in planned}


def test_a_batch_of_a_denied_topic_says_so_with_the_rule(feed, warnings):
    for topics in ("u", "t,u"):
        options = feed.options(subscribe=topics)
        with pytest.raises(AccessDeniedError, match=r"subscribe 'u' is not .*no rule gives"):
            plan(options)
    ends = pickle.loads(pickle.dumps(fix_ends(parse_options(options))))  # as Spark does
    assert (ends.refusal.topic, ends.ranges[0].topic) == ("u", "t")
    assert topics_of(plan({**options, "failOnDataLoss": "false"})) == {"t"}
    assert "subscribe 'u' is not allowed" in warnings.text
    assert "nobody has" not in warnings.text


def test_a_batch_by_a_pattern_says_what_is_denied(feed, warnings):
    assert topics_of(plan(feed.options(subscribePattern=".*"))) == {"t"}
    assert "subscribe '*' is not allowed" in warnings.text
    assert "match '.*' and are denied are not read" in warnings.text
    warnings.clear()
    feed.allow("t*")
    eventually(lambda: topics_of(plan(feed.options(subscribePattern="t.*"))) == {"t"})
    warnings.clear()
    plan(feed.options(subscribePattern="t.*"))
    assert not warnings.records
    with pytest.raises(AccessDeniedError, match=r"subscribe 'u\*' is not allowed"):
        plan(feed.options(subscribePattern="u.*"))
    assert plan(feed.options(subscribePattern="u.*", failOnDataLoss="false")) == []


def test_a_stream_by_a_pattern_says_what_is_denied(feed, warnings):
    with reading(feed.options(subscribePattern=".*")) as reader:
        first = reader.initialOffset()
        (partition,) = reader.partitions(first, reader.latestOffset(first, ALL))
        assert [each.topic for each in partition.ranges] == ["t"]
    assert "match '.*' and are denied are not read" in warnings.text
    with reading(feed.options(subscribePattern="u.*")) as reader:
        with pytest.raises(AccessDeniedError, match=r"subscribe 'u\*' is not allowed"):
            reader.prepareForTriggerAvailableNow()


def lag_of(reader, end):
    report = json.dumps(reader.reportLatestOffset())
    source = {"endOffset": json.dumps(end), "latestOffset": report}
    return spark_bridge.lag_of({"id": "q", "sources": [source]})


@pytest.mark.parametrize("named", [True, False])
def test_a_right_that_is_taken_away_is_in_the_lag(feed, named):
    which, denied = ({"subscribe": "t"}, "t") if named else ({"subscribePattern": "t.*"}, "t*")
    feed.allow("t*")
    options = feed.options(**which)
    with reading(options) as reader, reading({**options, "failOnPeerAway": "true"}) as strict:
        starts = reader.initialOffset(), strict.initialOffset()
        end, _ = reader.latestOffset(starts[0], ALL), strict.latestOffset(starts[1], ALL)
        assert lag_of(reader, end).denied == {}
        feed.allow("v")
        feed.publish(100)
        eventually(lambda: lag_of(reader, end).denied == {feed.endpoint: (denied,)})
        lag = lag_of(reader, end)
        assert lag.streams == {}
        assert str(lag).endswith(f"0 streams; not known of '{denied}' at {feed.endpoint}, denied")
        assert reader.latestOffset(end, ALL) is end

        def fails():
            with pytest.raises(AccessDeniedError, match=f"subscribe '{re.escape(denied)}'"):
                strict.latestOffset(end, ALL)
            return True

        eventually(lambda: strict.reportLatestOffset()["denied"])
        assert fails()
        feed.allow("t*")
        eventually(lambda: lag_of(reader, end).denied == {})
        eventually(lambda: sum(lag_of(reader, end).streams.values()) == 100)


def test_who_refuses_the_key_is_said_with_the_reason(feed, warnings):
    feed.peers.security("stranger")
    options = feed.options(key="stranger", subscribe="t")
    with pytest.raises(spark_bridge.BridgeError) as refusal:
        plan(options)
    text = str(refusal.value)
    assert f"no heads from {feed.endpoint} (the peer there does not admit our key" in text
    assert text.endswith("The batch fails because failOnDataLoss is true")
    with reading(options) as reader:
        first = reader.initialOffset()
        reader.latestOffset(first, ALL)
        with pytest.raises(spark_bridge.BridgeError, match="does not admit our key"):
            with reading({**options, "failOnPeerAway": "true"}) as strict:
                strict.prepareForTriggerAvailableNow()
    assert "no peer has answered yet" in warnings.text
    assert f"is called 't': {feed.endpoint} (" in warnings.text
    assert "nobody has the topic" not in warnings.text


def test_a_key_that_is_removed_while_a_stream_reads_is_in_the_lag(feed):
    options = feed.options(subscribe="t")
    with reading(options) as reader, reading({**options, "failOnPeerAway": "true"}) as strict:
        end = reader.latestOffset(reader.initialOffset(), ALL)
        strict.initialOffset()
        feed.forget("query")
        eventually(lambda: lag_of(reader, end).denied == {feed.endpoint: ("t",)})
        assert reader.latestOffset(end, ALL) is end
        eventually(lambda: strict.reportLatestOffset()["denied"])
        with pytest.raises(AccessDeniedError, match="the key has no name"):
            strict.latestOffset(end, ALL)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("t", "t"), ("quotes.*", "quotes"), (r"md\.quotes/.*", "md.quotes/"), ("t|u", ""),
        (".*", ""), ("ab?c", "a"), ("ab+c", "ab"), (r"a\.*", "a"), ("(?i)t.*", ""),
        (r"t\d", "t"), ("^t", ""), ("t[ab]", "t"), ("a{0,2}", ""), ("a b", "a b"), ("é.*", ""),
    ],
)  # fmt: skip
def test_what_a_patterns_topics_begin_with(pattern, prefix):
    assert literal_prefix(pattern) == prefix


def test_what_is_denied_covers_topics_and_prefixes():
    assert covers(["t"], "t")
    assert not covers(["t"], "tt")
    assert covers(["u", "t*"], "tt")
    assert covers(["*"], "tt")
    assert not covers([], "t")
