"""Revoking a key that reads a sealed multicast, on real sockets."""

import pytest

from p2pmsg.errors import AccessDeniedError
from tests.endpoints import free_port
from tests.integration.peers import check_ledger, eventually, take

pytest.importorskip("cryptography")


@pytest.fixture
def endpoint():
    return f"udp://239.255.10.1:{free_port()}?interface=127.0.0.1"


def pinned(endpoint, peers, name="pub"):
    return f"{endpoint}&key={peers.text(name)}"


@pytest.mark.internal
def test_who_is_revoked_reads_nothing_more_of_a_sealed_multicast(
    make_publisher, make_subscriber, endpoint, peers
):
    publisher = make_publisher(endpoint, security=peers.security("pub", "a", "b"))
    kept, revoked = [
        make_subscriber(pinned(endpoint, peers), joins=publisher, security=peers.security(name))
        for name in "ab"
    ]
    publisher.publish("t", 0)
    assert [take(one, 1)[0].value for one in (kept, revoked)] == [0, 0]
    keys = publisher._peer.sender.multicast.keys
    former = keys.group.secret.id
    publisher.revoke("b")
    eventually(lambda: keys.group.secret.id != former)
    publisher.publish_many("t", list(range(1, 1000)))
    assert [message.value for message in take(kept, 999)] == list(range(1, 1000))
    assert revoked.stats().delivered == 1
    assert publisher.stats().connections_revoked == 1
    assert publisher.stats().subscribers == 1
    check_ledger(kept, lost=0, delivered=1000)


def test_a_subscriber_takes_from_a_group_only_what_its_publisher_may_publish(
    make_publisher, make_subscriber, endpoint, peers, tmp_path
):
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nwho = ['pub']\npublish = ['t']\n")
    publisher = make_publisher(endpoint, security=peers.security("pub", "a"))
    subscriber = make_subscriber(
        pinned(endpoint, peers), joins=publisher,
        security=peers.security("a", "pub", access=rules),
    )  # fmt: skip
    denied, values = [], []
    for number in range(50):
        publisher.publish("forged", -1)
        publisher.publish("t", number)
    while len(values) < 50 or not denied:
        try:
            values.append(subscriber.receive(60).value)
        except AccessDeniedError as error:
            denied.append((error.verb, error.topic))
    assert values == [*range(50)]
    assert denied == [("publish", "forged")]
