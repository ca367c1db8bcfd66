"""Frames that wait in the socket when they are asked for: one is taken after the other."""

import random
import threading
import time
from itertools import islice

import pytest

from p2pmsg import CursorConfig, SubscriberConfig
from p2pmsg.sync import receiving
from tests.integration.peers import DEADLINE_S, check_ledger, eventually

READERS = {
    "receive": lambda subscriber, iterator, size: [subscriber.receive(60)],
    "receive_many": lambda subscriber, iterator, size: subscriber.receive_many(size, 60),
    "iterate": lambda subscriber, iterator, size: list(islice(iterator, size)),
}


@pytest.fixture
def flood(make_child, make_subscriber):
    """Subscribe to somebody who publishes faster than it is read; return both."""

    def start(*topics, **options):
        child = make_child("flood", *topics)
        return child, make_subscriber(child.line(), **options)

    return start


@pytest.fixture
def followed(monkeypatch):
    """Count the frames that were taken without asking what else is to be done."""
    found = []

    def follow(driver, inner=receiving._follow):
        result = inner(driver)
        found.append(result is not None)
        return result

    monkeypatch.setattr(receiving, "_follow", follow)
    return lambda: sum(found)


@pytest.mark.long
@pytest.mark.parametrize("how", ["receive_many", pytest.param("iterate", marks=pytest.mark.long)])
def test_a_busy_subscriber_still_does_what_is_due(flood, followed, how):
    """Its keep-alives go out: the publisher forgets who is silent for longer than a second."""
    child, subscriber = flood("a", config=SubscriberConfig(publisher_timeout=0.5))
    iterator, expected = iter(subscriber), 0
    begun = time.monotonic()
    end, last = begun + 1.6, begun + DEADLINE_S
    while time.monotonic() < end or (followed() <= 200 and time.monotonic() < last):
        for message in READERS[how](subscriber, iterator, 2000):
            assert message.sequence == expected
            expected += 1
    assert followed() > 200
    assert child.lines.empty()  # or else it would have said that it is alone


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]
)
def test_all_ways_of_reading_take_turns(flood, followed, seed):
    rng = random.Random(seed)
    topics = ["a", "b"] if seed % 2 else ["a"]
    _, subscriber = flood(*topics)
    iterator, expected = iter(subscriber), dict.fromkeys(topics, 0)
    end, turns = time.monotonic() + DEADLINE_S, 0
    while turns < 100 or (followed() <= 5 and time.monotonic() < end):
        turns += 1
        how = rng.choice(list(READERS))
        for message in READERS[how](subscriber, iterator, rng.choice([1, 7, 1500, 10_000])):
            assert message.sequence == expected[message.topic]
            expected[message.topic] += 1
        delivered = {one.topic: one.delivered for one in check_ledger(subscriber).streams}
        assert {topic: delivered.get(topic, 0) for topic in topics} == expected
    assert followed() > 5


def test_closing_in_the_middle_ends_the_loop(flood, followed):
    _, subscriber = flood("a")
    taken = []
    reader = threading.Thread(target=lambda: taken.extend(map(id, subscriber)))
    reader.start()
    eventually(lambda: followed() > 20)
    subscriber.close()
    reader.join(60)
    assert not reader.is_alive()
    check_ledger(subscriber, delivered=len(taken))


WAYS = [
    *(("", how) for how in READERS),
    ("cursor", "receive_many"),
    *(pytest.param("cursor", how, marks=pytest.mark.long) for how in ("receive", "iterate")),
]


@pytest.fixture
def crowded(request, flood, tmp_path):
    """A busy subscriber; with a cursor its frames go the slow path."""
    options = {"cursor": CursorConfig(tmp_path / "cursor", fsync="never")} if request.param else {}
    return flood("a", **options)[1]
