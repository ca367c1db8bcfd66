"""Rights by topic between real peers with keys: what is denied comes by no way."""

import time

import pytest

import p2pmsg
from p2pmsg.errors import AccessDeniedError
from tests.integration.commands import eventually
from tests.integration.secure import Peers

LOOPBACK = "tcp://127.0.0.1:0"


@pytest.fixture
def peers(tmp_path):
    return Peers(tmp_path)


def test_each_gets_what_it_may_have_live_and_from_history(peers, tmp_path):
    access = tmp_path / "access.toml"
    access.write_text("[[rule]]\nwho = ['ann']\nsubscribe = ['*']\n"
                      "[[rule]]\nwho = ['bob']\nsubscribe = ['a']\n")  # fmt: skip
    feed = peers.security("feed", "ann", "bob", access=access)
    with p2pmsg.Publisher(LOOPBACK, security=feed) as publisher:
        for topic in ("a", "b"):
            publisher.publish(topic, f"{topic}0")
        where = peers.pinned(publisher.endpoint, "feed")
        ann = p2pmsg.Subscriber(where, start="earliest", security=peers.security("ann"))
        bob = p2pmsg.Subscriber(
            where, topics=["a", "b"], start="earliest", security=peers.security("bob")
        )
        with ann, bob:
            publisher.wait_for_subscribers(2, timeout=60)
            for topic in ("b", "a"):
                publisher.publish(topic, f"{topic}1")
            assert {ann.receive(60).value for _ in range(4)} == {"a0", "a1", "b0", "b1"}
            got, denials, end_s = [], [], time.monotonic() + 60
            while len(got) < 2 or not denials:
                assert time.monotonic() < end_s
                try:
                    got.append(bob.receive(60).value)
                except AccessDeniedError as error:
                    denials.append((error.verb, error.topic))
            assert got == ["a0", "a1"]
            assert denials == [("subscribe", "b")]

            feed.rights.revoke("bob")
            publisher.publish("a", "a2")
            assert ann.receive(60).value == "a2"
            eventually(lambda: feed.rights.is_revoked(peers.text("bob")))
