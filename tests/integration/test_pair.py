"""Two cores over a socket pair, driven by the smallest shell: no core is touched for it."""

import ast
from contextlib import closing
from pathlib import Path

import pytest

from p2pmsg import ClosedError
from p2pmsg.testing import PeerPair, pair


def receive(peers, count):
    messages = []
    while len(messages) < count:
        messages += peers.receive(60.0)
    return messages


def ledger(peers):
    stats = peers.stats()
    assert all(stream.balanced for stream in stats.streams)
    return stats.published, stats.delivered, stats.outstanding, stats.lost


def test_live_messages_come_in_order_and_the_ledger_is_balanced():
    with closing(PeerPair()) as peers:
        sequences = [peers.publish(f"topic-{index % 2}", {"n": index}) for index in range(100)]
        messages = receive(peers, 100)
        assert sequences == [index // 2 for index in range(100)]
        for topic, first in (("topic-0", 0), ("topic-1", 1)):
            values = [message.value["n"] for message in messages if message.topic == topic]
            assert values == list(range(first, 100, 2))
        assert peers.close()
        assert ledger(peers) == (100, 100, 0, 0)
        assert peers.stats().repaired == {"buffer": 0}


def test_only_the_topics_asked_for_come():
    with closing(PeerPair(["a", "b*"])) as peers:
        for topic in ("a", "aa", "b1", "c"):
            peers.publish(topic, topic)
        assert peers.close()
        assert sorted(message.value for batch in peers for message in batch) == ["a", "b1"]


@pytest.mark.parametrize("drop_every", [1, 2, 7])
def test_what_is_lost_is_repaired_over_the_reply_channel(drop_every):
    with closing(PeerPair(drop_every=drop_every)) as peers:
        for index in range(100):
            peers.publish("a", index)
            if index % 10 == 9:
                assert receive(peers, 1)
        assert peers.close()
        for batch in peers:
            assert batch
        assert ledger(peers) == (100, 100, 0, 0)
        assert peers.stats().repaired["buffer"] > 0


def test_a_heartbeat_shows_that_the_last_frame_was_lost():
    with closing(PeerPair(drop_every=2)) as peers:
        peers.publish("a", "first")
        assert [message.value for message in receive(peers, 1)] == ["first"]
        peers.publish("a", "last")
        assert [message.value for message in receive(peers, 1)] == ["last"]
        assert peers.stats().repaired == {"buffer": 1}


def test_a_reader_that_is_too_slow_is_shed_and_repaired():
    with closing(PeerPair()) as peers:
        for index in range(300):  # 30 MB, of which the subscriber holds 16 MiB
            peers.publish("a", index.to_bytes(2, "big") + bytes(100_000))
        assert peers.stats().frames_shed > 0
        values = [int.from_bytes(message.value[:2], "big") for message in receive(peers, 300)]
        assert values == list(range(300))
        assert peers.close()
        assert ledger(peers) == (300, 300, 0, 0)


def test_what_came_is_received_after_closing_and_nothing_is_published():
    peers = PeerPair(drop_every=3)
    for index in range(10):
        peers.publish("a", index)
    assert peers.close()
    assert peers.close()
    assert [message.value for batch in peers for message in batch] == list(range(10))
    assert peers.receive() == []
    with pytest.raises(ClosedError):
        peers.publish("a", 10)


def test_waiting_ends_at_the_timeout():
    with closing(PeerPair()) as peers, pytest.raises(TimeoutError):
        peers.receive(0.01)


def test_it_uses_public_names_only_and_has_at_most_200_lines():
    text = Path(pair.__file__).read_text("utf-8")
    private = [
        f"{ast.unparse(node)}, line {node.lineno}"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if ast.unparse(node.value) != "self"
    ]
    assert private == []
    assert len(text.splitlines()) <= 200
