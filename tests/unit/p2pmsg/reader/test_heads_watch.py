"""When a peer that does not answer is connected to again."""

import time

import pytest

from p2pmsg.reader.heads_watch import HeadsPeer

SECOND = 1_000_000_000


@pytest.fixture
def peer(monkeypatch):
    """A peer at an address where nobody is, whose first second is second 0."""
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic_ns", lambda: 0)
        made = HeadsPeer("tcp://127.0.0.1:9", None)
    yield made
    made.channel.close()


def tries(peer, monkeypatch, seconds):
    """Return at which half second it is connected to again."""
    found = []
    monkeypatch.setattr(peer.channel, "reconnect", lambda: found.append(half / 2))
    for half in seconds:
        peer.ask(half * SECOND // 2, SECOND // 20, SECOND)
    return found


def test_it_is_waited_twice_as_long_before_each_try_up_to_eight_seconds(peer, monkeypatch):
    assert tries(peer, monkeypatch, range(66)) == [2.5, 7.0, 15.5, 24.0, 32.5]


def test_one_that_answers_is_tried_as_soon_as_before(peer, monkeypatch):
    assert tries(peer, monkeypatch, range(20)) == [2.5, 7.0]
    peer._now_ns = 10 * SECOND
    peer._heard()
    assert peer.reachable
    assert tries(peer, monkeypatch, range(20, 40)) == [12.5, 17.0]
    assert not peer.reachable
