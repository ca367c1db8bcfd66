"""The metrics client with keys."""

import pytest

from p2pmsg import Subscriber, metrics
from p2pmsg.errors import AuthenticationError, ConfigError
from tests.integration.test_security import refused

LOOPBACK = "tcp://127.0.0.1:0"
TIMEOUT = 60.0


def read_by(peers, client):
    place = peers.pinned(client.endpoint, "client")
    with Subscriber(place, security=peers.security("stranger")) as subscriber:
        assert isinstance(refused(lambda: subscriber.receive(TIMEOUT)), AuthenticationError)
    with Subscriber(place, security=peers.security("collector"), start="earliest") as subscriber:
        assert subscriber.receive(TIMEOUT)


def test_only_a_known_collector_reads(peers):
    security = peers.security("client", "collector")
    with metrics.Client(LOOPBACK, security=security, interval=0, close_timeout=0) as client:
        client.increment("orders")
        read_by(peers, client)
    with pytest.raises(ConfigError, match="security must be None with a plain StatsD server"):
        metrics.Client("udp://127.0.0.1:8125", security=security)
