"""Publisher and relay are killed in turn, on their logs; the relay's subscriber misses nothing."""

import random
import signal

import pytest

from p2pmsg import NackConfig, SubscriberConfig
from tests.places import lasting_place

pytest.importorskip("recovery.log")

PATIENT = SubscriberConfig(nack=NackConfig(deadline_ms=60_000, attempts_max=1000))
"""On a busy machine the next one is killed before the one that was killed has caught up."""


@pytest.mark.rounds(4, 60)
def test_nothing_is_missing_whoever_is_killed(tmp_path, make_child, make_subscriber, rounds):
    rng = random.Random(7)
    at, place = lasting_place(), lasting_place()

    def publisher():
        child = make_child(
            "publish_logged", at, str(tmp_path / "feed"), "interval", module="logged_children"
        )
        child.line()
        return child

    def relay():
        child = make_child("relay", at, place, str(tmp_path / "relay"), module="relay_children")
        child.line()
        return child

    children = {publisher: publisher(), relay: relay()}
    subscriber = make_subscriber(place, start=0, config=PATIENT)
    expected = 0
    for _ in range(rounds):
        for _ in range(rng.randrange(200, 2000)):
            assert subscriber.receive(30).sequence == expected
            expected += 1
        who = rng.choice([publisher, relay])
        children[who].signal(signal.SIGKILL)
        children[who].wait()
        children[who] = who()
    for _ in range(2000):
        assert subscriber.receive(30).sequence == expected
        expected += 1
    stats = subscriber.stats()
    assert (stats.lost, stats.balanced) == (0, True)
