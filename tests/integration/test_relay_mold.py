"""A relay turns an exchange's MoldUDP64 feed into a stream with a log, which Spark can read."""

import pytest

import p2pmsg
from p2pmsg import LogConfig, MoldPublisher, RangeReader, Relay
from tests.integration.test_udp_multicast import free_port

pytest.importorskip("recovery.log")

FEED = "mold://239.192.77.5:{}?interface=127.0.0.1&request=127.0.0.1:{}"
COUNT = 500


def test_a_mold_feed_is_logged_and_served_on_after_it_has_ended(tmp_path, make_subscriber):
    feed = FEED.format(free_port(), free_port())
    values = [b"%d" % number for number in range(COUNT)]
    with Relay([feed], "tcp://127.0.0.1:0", log=LogConfig(tmp_path)) as relay:
        with MoldPublisher(feed, session="FEED") as publisher:
            first = make_subscriber(relay.endpoint, start="earliest")
            for value in values:
                publisher.publish(value)
            messages = [first.receive(20) for _ in values]
        assert [message.value for message in messages] == values
        assert [message.sequence for message in messages] == list(range(1, COUNT + 1))
        assert first.stats().lost == 0

    with Relay([feed], "tcp://127.0.0.1:0", log=LogConfig(tmp_path)) as again:
        with RangeReader(again.endpoint) as reader:
            (topic, head), *others = reader.heads(20).streams.items()
            assert (head.earliest, head.next, others) == (1, COUNT + 1, [])
            batches = reader.fetch(topic, 1, COUNT + 1)
            assert [message.value for batch in batches for message in batch] == values
        assert isinstance(again.stats(), p2pmsg.RelayStats)
