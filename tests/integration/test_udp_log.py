"""Over UDP with a local log and a durable cursor: both ends may be started again."""

import itertools

import pytest

from p2pmsg import LogConfig
from p2pmsg.testing import lose_datagrams
from tests.endpoints import free_port
from tests.integration.peers import TOPIC, check_ledger, eventually, take
from tests.integration.peers import check_exact as check_sequences

_group = itertools.count(1)


@pytest.fixture
def endpoint():
    return f"udp://239.255.9.{next(_group)}:{free_port()}?interface=127.0.0.1"


def publish(publisher, numbers):
    """Publish numbers one by one and in one call, by turns."""
    numbers = list(numbers)
    for at in range(0, len(numbers), 500):
        part = numbers[at : at + 500]
        for number in part[:100]:
            publisher.publish(TOPIC, number)
        if part[100:]:
            publisher.publish_many(TOPIC, part[100:])


def check_exact(messages, first=0):
    """Check that the values are the sequences from `first` on, in order and without a hole."""
    check_sequences(messages, range(first, first + len(messages)))


@pytest.mark.parametrize(
    ("fsync", "part"),
    [
        ("interval", 0),
        ("always", 0.2),
        pytest.param("never", 0.2, marks=pytest.mark.long),
        pytest.param("interval", 0.2, marks=pytest.mark.long),
        pytest.param("always", 0, marks=pytest.mark.long),
        pytest.param("never", 0, marks=pytest.mark.long),
    ],
)
def test_a_publisher_goes_on_in_its_session(
    tmp_path, make_publisher, make_subscriber, endpoint, fsync, part
):
    log = LogConfig(tmp_path, fsync=fsync)
    first = make_publisher(endpoint, log=log, name="feed")
    subscriber = make_subscriber(endpoint, joins=first)
    lose_datagrams(subscriber, part)
    session = first.session
    publish(first, range(2000))
    check_exact(take(subscriber, 2000))
    first.close()

    second = make_publisher(endpoint, log=log, name="feed")
    assert second.session == session
    second.wait_for_subscribers(1, timeout=60)
    publish(second, range(2000, 4000))
    check_exact(take(subscriber, 2000), 2000)
    second.publish("opened since", 0)
    assert subscriber.receive(60).topic == "opened since"
    check_ledger(subscriber, delivered=4001, outstanding=0, lost=0)
    stats = second.stats()
    assert stats.log is not None
    assert stats.published == 4001
    assert sum(stats.repaired.values()) == stats.messages_repaired
    if not part:  # the receiver knows that the marks count from the start
        eventually(lambda: second.stats().multicast.receivers_waited_for == 1)
    else:
        assert stats.repaired["buffer"] >= stats.multicast.messages_repaired
