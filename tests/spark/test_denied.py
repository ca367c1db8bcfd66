"""Topics without a right to them, and keys that are refused: in batches, streams and lag."""

import json
import logging
import pickle

import pytest

pytest.importorskip("pyspark")

import p2pmsg
import spark_bridge
from p2pmsg.errors import AccessDeniedError
from spark_bridge.options import parse_options
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
    assert ends.refusal.topic == "u"
    assert topics_of(plan({**options, "failOnDataLoss": "false"})) == {"t"}
    assert "subscribe 'u' is not allowed" in warnings.text
    assert "nobody has" not in warnings.text


def lag_of(reader, end):
    report = json.dumps(reader.reportLatestOffset())
    source = {"endOffset": json.dumps(end), "latestOffset": report}
    return spark_bridge.lag_of({"id": "q", "sources": [source]})


def test_a_right_and_a_key_that_are_taken_away_are_in_the_lag(feed):
    feed.allow("t", "u")
    with reading(feed.options(subscribe="t,u")) as reader:
        end = reader.latestOffset(reader.initialOffset(), ALL)
        assert lag_of(reader, end).denied == {}
        feed.allow("u")
        feed.publish(100)
        eventually(lambda: lag_of(reader, end).denied == {feed.endpoint: ("t",)})
        assert {topic for _, _, topic in lag_of(reader, end).streams} == {"u"}
        feed.allow("t", "u")
        eventually(lambda: sum(lag_of(reader, end).streams.values()) == 200)
        feed.forget("query")

        def is_named():  # as denied; as away, where the connection is made again
            lag = lag_of(reader, end)
            return lag.denied == {feed.endpoint: ("t", "u")} or lag.away == (feed.endpoint,)

        eventually(is_named)


def test_who_refuses_the_key_is_named_with_the_reason(feed, warnings):
    feed.peers.security("stranger")
    options = feed.options(key="stranger", subscribe="t")
    with pytest.raises(spark_bridge.BridgeError) as refusal:
        plan(options)
    text = str(refusal.value)
    assert f"no heads from {feed.endpoint} (the peer there does not admit our key" in text
    with reading(options) as reader:
        reader.latestOffset(reader.initialOffset(), ALL)
    assert f"no answer from {feed.endpoint} (" in warnings.text
