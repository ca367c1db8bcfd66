"""Sealed multicasts: ciphers, two lines, restarts, and hostile datagrams by the million."""

import pytest

from p2pmsg import LogConfig
from p2pmsg.sync import opening
from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.endpoints import free_port
from tests.integration.peers import check_ledger, take

pytest.importorskip("cryptography")


def place(group):
    return f"udp://239.255.12.{group}:{free_port()}?interface=127.0.0.1"


def pinned(endpoint, peers):
    return f"{endpoint}&key={peers.text('pub')}"


@pytest.mark.internal
def test_with_chacha20_where_the_processor_has_no_aes(
    make_publisher, make_subscriber, peers, monkeypatch
):
    monkeypatch.setattr(opening, "cpu_flags", lambda: "flags : sse2\n")
    endpoint = place(1)
    publisher = make_publisher(endpoint, security=peers.security("pub", "sub"))
    assert publisher._sender.multicast.keys.group.secret.cipher == "chacha20-poly1305"
    own = peers.security("sub")
    subscriber = make_subscriber(pinned(endpoint, peers), joins=publisher, security=own)
    lose_datagrams(subscriber, 0.1)
    publisher.publish_many("t", list(range(3000)))
    assert [message.value for message in take(subscriber, 3000)] == list(range(3000))
    check_ledger(subscriber, lost=0, delivered=3000)


def test_two_lines_bring_what_one_loses(make_publisher, make_subscriber, peers):
    lines = [place(4), place(5)]
    publisher = make_publisher(lines, security=peers.security("pub", "sub"))
    subscriber = make_subscriber(
        [pinned(line, peers) for line in lines], joins=publisher, security=peers.security("sub")
    )
    lose_datagrams(subscriber, 0.2)
    for start in range(0, 3000, 500):
        publisher.publish_many("t", list(range(start, start + 500)))
        publisher.rotate_keys()
    assert [message.value for message in take(subscriber, 3000)] == list(range(3000))
    stats = check_ledger(subscriber, lost=0, delivered=3000)
    assert all(line.frames for line in stats.lines)
    assert "unauthentic" not in stats.frames_invalid


@pytest.mark.internal
def test_a_publisher_that_is_started_again_has_other_keys(
    make_publisher, make_subscriber, peers, tmp_path
):
    endpoint, log = place(7), LogConfig(tmp_path / "log")
    own = peers.security("pub", "sub")
    publisher = make_publisher(endpoint, name="prices", log=log, security=own)
    subscriber = make_subscriber(
        pinned(endpoint, peers), joins=publisher, security=peers.security("sub")
    )
    publisher.publish_many("t", list(range(500)))
    assert [message.value for message in take(subscriber, 500)] == list(range(500))
    former = publisher._sender.multicast.keys.group.secret
    publisher.close()
    again = make_publisher(endpoint, name="prices", log=log, security=own)
    assert again._sender.multicast.keys.group.secret.key != former.key
    again.publish_many("t", list(range(500, 1000)))
    assert [message.value for message in take(subscriber, 500)] == list(range(500, 1000))
    check_ledger(subscriber, lost=0, delivered=1000)
