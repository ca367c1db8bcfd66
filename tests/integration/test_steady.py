"""Frames that wait in the socket when they are asked for: one is taken after the other."""

import random
import threading
import time
from itertools import count, islice, pairwise

import pytest

from p2pmsg import CursorConfig, SubscriberConfig
from p2pmsg.sync import receiving, subscriber_thread
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


@pytest.mark.parametrize("how", ["receive_many", pytest.param("iterate", marks=pytest.mark.long)])
def test_a_busy_subscriber_still_does_what_is_due(flood, followed, how):
    """Its keep-alives go out: the publisher forgets who is silent for longer than a second."""
    child, subscriber = flood("a", config=SubscriberConfig(keep_alive=0.1))
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


def test_a_loss_between_frames_is_noticed_and_repaired(flood, followed, monkeypatch):
    inner, frames = receiving._follow, count(1)

    def lose_each_tenth(driver):
        found = inner(driver)
        return inner(driver) if found is not None and next(frames) % 10 == 0 else found

    monkeypatch.setattr(receiving, "_follow", lose_each_tenth)
    _, subscriber = flood("a", "b")
    expected = {"a": 0, "b": 0}
    while followed() < 30:
        for message in subscriber.receive_many(timeout=60):
            assert message.sequence == expected[message.topic]
            expected[message.topic] += 1
    stats = check_ledger(subscriber, lost=0)
    assert stats.repaired["buffer"] > 0


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


@pytest.mark.parametrize(("crowded", "how"), WAYS, indirect=["crowded"])
def test_a_busy_reader_gives_way_to_a_thread_that_is_late(crowded, how, monkeypatch):
    driver, iterator = crowded._driver, iter(crowded)
    given, slept, nap, give = [], [], time.sleep, driver.give_way
    monkeypatch.setattr(driver, "give_way", lambda: (given.append(driver.last_round_ns), give()))
    reader = threading.get_ident()

    def sleep(seconds):  # other threads of this process sleep, too
        if threading.get_ident() == reader:
            slept.append(seconds)
        nap(seconds)

    monkeypatch.setattr(subscriber_thread.time, "sleep", sleep)

    def read_while(is_so):
        end = time.monotonic() + DEADLINE_S
        while is_so() and time.monotonic() < end:
            READERS[how](crowded, iterator, 2000)

    driver._ended.set()  # else the thread would say when it is late
    driver._thread.join(60)
    frames = driver._core.frames_received + 50
    read_while(lambda: driver._core.frames_received < frames)
    assert not given
    driver.late_ns = 1
    read_while(lambda: len(given) < 5)
    assert len(slept) == len(given) >= 5
    assert max(slept) < 0.001
    assert all(then + 10_000_000 <= now for then, now in pairwise(given))  # not before each frame


@pytest.mark.parametrize(("crowded", "how"), WAYS, indirect=["crowded"])
def test_the_thread_has_its_turns_next_to_a_busy_reader(crowded, how, monkeypatch):
    driver, iterator, late_ns = crowded._driver, iter(crowded), []
    inner = driver._ended.wait

    def wait(seconds):
        late_ns.append(driver.late_ns)
        return inner(seconds)

    monkeypatch.setattr(driver._ended, "wait", wait)
    end = time.monotonic() + DEADLINE_S
    while len(late_ns) < 10 and time.monotonic() < end:
        READERS[how](crowded, iterator, 2000)
    assert len(late_ns) >= 10
    assert all(then + 10_000_000 < now for then, now in pairwise(late_ns))


def test_after_a_round_of_another_thread_it_is_asked_again_what_is_to_be_done(flood):
    """It may have found a gap in another stream, whose repair comes over another socket."""
    _, subscriber = flood("a")
    driver = subscriber._driver
    end = time.monotonic() + DEADLINE_S
    while driver.followed is None and time.monotonic() < end:
        subscriber.receive_many(timeout=60)
    assert driver.followed is not None
    with driver.io_lock:
        driver.round(0)
    assert driver.followed is None
