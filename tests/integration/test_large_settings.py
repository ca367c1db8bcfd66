"""Times and sizes that are far above what anybody needs: kept as they are, or refused by name."""

import logging
import time

import pytest

import p2pmsg
from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.errors import ConfigError, LossReason
from p2pmsg.reader import HeadsWatch, RangeReader
from tests.integration.peers import LOOPBACK, take

AGES = 1e9
FAILED = "background thread failed"


@pytest.mark.parametrize(
    "config",
    [
        {"linger": 3e6, "gather_within": 1.0},
        {"linger": AGES, "gather_within": AGES},
        {"stall_timeout": AGES, "subscriber_timeout": AGES},
        {"replay_age": AGES},
    ],
)
def test_a_publisher_that_may_wait_for_ages_works(config, caplog):
    publisher = p2pmsg.Publisher(LOOPBACK, config=PublisherConfig(**config))
    with publisher, p2pmsg.Subscriber(publisher.endpoint, start="earliest") as subscriber:
        publisher.wait_for_subscribers(1, timeout=20.0)
        for number in range(50):
            publisher.publish("t", number)
        time.sleep(0.1)  # its thread goes to sleep with messages that wait
        publisher.flush()
        assert [message.value for message in take(subscriber, 50)] == list(range(50))
    assert FAILED not in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        {"repair_timeout": AGES},
        {"publisher_timeout": AGES, "second_line_wait": AGES},
    ],
)
def test_a_subscriber_that_may_wait_for_ages_works(config, caplog):
    with (
        p2pmsg.Publisher(LOOPBACK) as publisher,
        p2pmsg.Subscriber(publisher.endpoint, config=SubscriberConfig(**config)) as subscriber,
    ):
        publisher.wait_for_subscribers(1, timeout=20.0)
        publisher.publish("t", 1)
        assert subscriber.receive(timeout=20.0).value == 1
    assert FAILED not in caplog.text


def test_a_reader_that_may_wait_for_ages_works():
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        publisher.publish("t", 1)
        with RangeReader(publisher.endpoint, timeout=AGES) as reader:
            (batch,) = reader.fetch("t", 0, 1, timeout=AGES)
            assert [message.value for message in batch] == [1]
        with HeadsWatch([publisher.endpoint], refresh=AGES) as watch:
            assert watch.wait_until_asked(AGES)
            for wrong in (float("nan"), "1"):
                with pytest.raises(ConfigError, match="timeout"):
                    watch.wait_until_asked(wrong)


def test_a_cursor_and_a_log_may_wait_for_ages(tmp_path):
    log = p2pmsg.LogConfig(
        tmp_path / "log", segment_age=AGES, fsync_interval=AGES, retention_age=AGES
    )
    with p2pmsg.Publisher(LOOPBACK, log=log) as publisher:
        cursor = p2pmsg.CursorConfig(tmp_path / "cursor", fsync_interval=AGES)
        with p2pmsg.Subscriber(
            publisher.endpoint, start="earliest", cursor=cursor,
            commit_interval=AGES,
        ) as subscriber:  # fmt: skip
            publisher.publish("t", 1)
            assert subscriber.receive(timeout=20.0).value == 1


@pytest.mark.parametrize("value", [2**31, 2**40, 2**64])
def test_more_frames_than_zeromq_takes_are_refused_by_name(value):
    for config in (PublisherConfig, SubscriberConfig):
        with pytest.raises(ConfigError, match=f"queue_frames.*2147483647.*{value}"):
            config(queue_frames=value)
    with pytest.raises(ConfigError, match="frame_bytes_max"):
        SubscriberConfig(frame_bytes_max=2**63)


def test_the_largest_that_are_taken_work():
    config = PublisherConfig(queue_frames=2**31 - 1)
    with p2pmsg.Publisher(LOOPBACK, config=config) as publisher:
        config = SubscriberConfig(queue_frames=2**31 - 1, frame_bytes_max=2**62)
        with p2pmsg.Subscriber(publisher.endpoint, config=config) as subscriber:
            publisher.wait_for_subscribers(1, timeout=20.0)
            publisher.publish("t", 1)
            assert subscriber.receive(timeout=20.0).value == 1


def test_a_reader_takes_frames_as_large_as_was_given():
    config = PublisherConfig(message_bytes_max=32 * 2**20)
    with p2pmsg.Publisher(LOOPBACK, config=config) as publisher:
        publisher.publish("t", bytes(17 * 2**20))
        with RangeReader(publisher.endpoint) as reader:
            (lost,) = reader.fetch("t", 0, 1)
            assert (lost.start, lost.stop, lost.reason) == (0, 1, LossReason.TOO_LARGE)
        with RangeReader(publisher.endpoint, frame_bytes_max=33 * 2**20) as reader:
            (batch,) = reader.fetch("t", 0, 1)
            assert [len(message.value) for message in batch] == [17 * 2**20]
    with pytest.raises(ConfigError, match=r"frame_bytes_max.*65536"):
        RangeReader(publisher.endpoint, frame_bytes_max=1)


def test_as_many_topics_as_the_publishers_own_limit_says():
    config = PublisherConfig(streams_max=8)
    with p2pmsg.Publisher(LOOPBACK, config=config) as publisher:
        for number in range(8):
            publisher.publish(f"t{number}", number)
        with pytest.raises(ConfigError, match=r"streams_max = 8.*t8"):
            publisher.publish("t8", 8)
        with p2pmsg.Subscriber(publisher.endpoint, start="earliest") as subscriber:
            assert sorted(message.value for message in take(subscriber, 8)) == list(range(8))


@pytest.fixture(autouse=True)
def log_of(caplog):
    caplog.set_level(logging.WARNING, logger="p2pmsg")
