"""Sealed multicasts: ciphers, two lines, restarts, and hostile datagrams by the million."""

import pytest

from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.endpoints import free_port
from tests.integration.peers import check_ledger, take

pytest.importorskip("cryptography")


def place(group):
    return f"udp://239.255.12.{group}:{free_port()}?interface=127.0.0.1"


def pinned(endpoint, peers):
    return f"{endpoint}&key={peers.text('pub')}"


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
