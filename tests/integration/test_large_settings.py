"""Times and sizes that are far above what anybody needs: kept as they are, or refused by name."""

import logging
import time

import pytest

import p2pmsg
from p2pmsg.config import PublisherConfig, SubscriberConfig
from p2pmsg.errors import ConfigError
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
        publisher.wait_for_subscribers(1, timeout=60.0)
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
        publisher.wait_for_subscribers(1, timeout=60.0)
        publisher.publish("t", 1)
        assert subscriber.receive(timeout=60.0).value == 1
    assert FAILED not in caplog.text


@pytest.mark.parametrize("value", [2**31, 2**40, 2**64])
def test_more_frames_than_zeromq_takes_are_refused_by_name(value):
    for config in (PublisherConfig, SubscriberConfig):
        with pytest.raises(ConfigError, match=f"queue_frames.*2147483647.*{value}"):
            config(queue_frames=value)
    with pytest.raises(ConfigError, match="frame_bytes_max"):
        SubscriberConfig(frame_bytes_max=2**63)


@pytest.fixture(autouse=True)
def log_of(caplog):
    caplog.set_level(logging.WARNING, logger="p2pmsg")
