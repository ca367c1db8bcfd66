"""What is older than `retention_age` goes, whatever a publisher or relay does meanwhile."""

from p2pmsg import LogConfig, PublisherConfig
from tests.integration.peers import LOOPBACK, eventually

COUNT = 8
SMALL = PublisherConfig(frame_bytes=4096)


def aged_log(directory):
    return LogConfig(directory, segment_bytes=4096, retention_age=0.6)


def fill(publisher):
    for _ in range(COUNT):
        publisher.publish("t", bytes(4000))


def is_short(peer):
    return peer.stats().log.bytes < 4000


def test_a_publisher_that_was_started_again_forgets_old_messages_though_it_publishes_none(
    tmp_path, make_publisher
):
    config = aged_log(tmp_path)
    first = make_publisher(log=config, config=SMALL)
    fill(first)
    first.close()
    again = make_publisher(log=config, config=SMALL)
    eventually(lambda: is_short(again))


def test_a_relay_that_was_started_again_forgets_old_messages_though_none_come(
    tmp_path, make_publisher, make_relay
):
    config = aged_log(tmp_path)
    publisher = make_publisher(config=SMALL)
    first = make_relay(publisher.endpoint, log=config)
    publisher.wait_for_subscribers(1, timeout=60)
    fill(publisher)
    eventually(lambda: [end for _, end in first.stats().streams.values()] == [COUNT])
    first.close()
    publisher.close(timeout=0.0)
    again = make_relay(publisher.endpoint, LOOPBACK, log=config)
    eventually(lambda: is_short(again))
