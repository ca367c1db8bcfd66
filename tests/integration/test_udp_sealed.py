"""Sealed multicasts on real sockets: who reads them, who does not, and what a stranger can do."""

import socket

import pytest

from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.integration.aio import shell
from tests.integration.peers import check_ledger, take
from tests.integration.secure import Peers

__all__ = ["shell"]

pytest.importorskip("cryptography")

GROUP = "udp://239.255.9.{}:{}?interface=127.0.0.1"
_group = iter(range(1, 255))


def free_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def endpoint():
    return GROUP.format(next(_group), free_port())


@pytest.fixture
def peers(tmp_path):
    return Peers(tmp_path)


def pinned(endpoint, peers, name="pub"):
    return f"{endpoint}&key={peers.text(name)}"


def test_two_subscribers_with_keys_read_all_although_datagrams_are_lost(
    make_publisher, make_subscriber, endpoint, peers
):
    publisher = make_publisher(endpoint, security=peers.security("pub", "a", "b"))
    subscribers = [
        make_subscriber(pinned(endpoint, peers), joins=publisher, security=peers.security(name))
        for name in "ab"
    ]
    for subscriber in subscribers:
        lose_datagrams(subscriber, 0.2)
    publisher.publish("t", {"a": [1, 2]}, key="k", headers={"n": 1})
    publisher.publish_many("t", list(range(1, 5000)))
    publisher.publish("t", bytes(50_000))
    for subscriber in subscribers:
        messages = take(subscriber, 5001)
        assert [message.sequence for message in messages] == list(range(5001))
        assert messages[0].value == {"a": [1, 2]}
        assert messages[0].headers == {"n": 1}
        assert [message.value for message in messages[1:-1]] == list(range(1, 5000))
        assert messages[-1].value == bytes(50_000)
        stats = check_ledger(subscriber, lost=0, delivered=5001)
        assert stats.lines[0].kernel_drops > 0
        assert sum(stats.repaired.values()) > 0
    assert publisher.stats().multicast.nacks > 0
