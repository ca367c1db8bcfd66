"""What was gathered leaves when its publisher pauses, however long it may wait for others."""

import asyncio

import pytest

import p2pmsg
from p2pmsg import aio
from p2pmsg.config import PublisherConfig
from tests.integration.inside import core_of

# What is gathered may wait for a twentieth of it, 30 s, and is looked at after 600 s.
LONG = PublisherConfig(linger=600, gather_within=10)


@pytest.mark.parametrize("count", [40, 5_000])
def test_who_pauses_keeps_nobody_waiting(make_publisher, make_subscriber, count):
    publisher = make_publisher(config=LONG)
    subscriber = make_subscriber(publisher.endpoint)
    publisher.wait_for_subscribers(timeout=20)
    for burst in range(3):
        for number in range(count):
            publisher.publish("t", burst * count + number)
        got = [subscriber.receive(timeout=20).value for _ in range(count)]
        assert got == list(range(burst * count, (burst + 1) * count))


def test_other_streams_keep_nobody_waiting(make_publisher, make_subscriber):
    publisher = make_publisher(config=LONG)
    subscriber = make_subscriber(publisher.endpoint)
    publisher.wait_for_subscribers(timeout=20)
    for number in range(100):
        for topic in "abc":
            publisher.publish(topic, number)
    got = {topic: [] for topic in "abc"}
    for _ in range(300):
        message = subscriber.receive(timeout=20)
        got[message.topic].append(message.value)
    assert got == {topic: list(range(100)) for topic in "abc"}


def test_a_stream_at_full_rate_is_not_watched(make_publisher, make_subscriber):
    """Or its publisher would wait for the thread that looks, at each frame."""
    publisher = make_publisher()
    make_subscriber(publisher.endpoint, on_gap="skip")
    publisher.wait_for_subscribers(timeout=20)
    value = b"v" * 4_000
    core = core_of(publisher)
    for _ in range(200):
        for _ in range(64):
            publisher.publish("t", value)
    batch = core.open_batches.get("t")
    assert batch is None or batch.fills
    assert isinstance(publisher, p2pmsg.Publisher)


@pytest.mark.parametrize("count", [40, 5_000])
def test_in_a_loop_who_pauses_keeps_nobody_waiting(count):
    async def main():
        async with (
            aio.Publisher("tcp://127.0.0.1:0", config=LONG) as publisher,
            aio.Subscriber(publisher.endpoint) as subscriber,
        ):
            await publisher.wait_for_subscribers(timeout=20)
            for burst in range(3):
                for number in range(count):
                    publisher.publish("t", burst * count + number)
                    if number % 20 == 0:
                        await asyncio.sleep(0)
                got = [(await subscriber.receive(timeout=20)).value for _ in range(count)]
                assert got == list(range(burst * count, (burst + 1) * count))

    asyncio.run(main())


def test_in_a_loop_what_its_tasks_publish_one_after_the_other_shares_frames():
    async def publish(publisher, topic):
        for number in range(300):
            publisher.publish(topic, number)
            await asyncio.sleep(0)

    async def main():
        async with aio.Publisher("tcp://127.0.0.1:0", config=LONG) as publisher:
            await asyncio.gather(*(publish(publisher, "t") for _ in range(10)))
            return core_of(publisher).replay.frames_held

    # 33 go one by one, then ten in each round of the loop
    assert asyncio.run(main()) <= 33 + 300 + 30
