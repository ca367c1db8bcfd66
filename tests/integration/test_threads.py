"""Several threads, signals and busy waiting at one peer."""

import contextlib
from collections import Counter
from itertools import chain

import pytest

import p2pmsg
from tests.integration.peers import (
    TOPIC,
    Collector,
    check_ledger,
    eventually,
    in_threads,
    take,
)


@pytest.mark.parametrize("size", [0, 300])
def test_eight_threads_publish(make_publisher, make_subscriber, size):
    publisher = make_publisher()
    collector = Collector(make_subscriber(publisher.endpoint, joins=publisher))
    returned = [[] for _ in range(8)]
    padding = bytes(size)

    def publish(thread):
        for n in range(5_000):
            returned[thread].append(publisher.publish(TOPIC, [thread, n, padding]))
            if n % 1000 == 0:
                publisher.flush()
                publisher.stats()

    in_threads(*(lambda thread=thread: publish(thread) for thread in range(8)))
    messages = collector.wait_for(40_000)
    assert [message.sequence for message in messages] == list(range(40_000))
    assert sorted(chain.from_iterable(returned)) == list(range(40_000))
    for thread in range(8):
        own = [message for message in messages if message.value[0] == thread]
        assert [message.value[1] for message in own] == list(range(5_000))
        assert [message.sequence for message in own] == returned[thread]
    check_ledger(collector.subscriber, delivered=40_000, lost=0)


@pytest.mark.parametrize("ways", ["receive", "iterate", "receive_many", "all"])
def test_threads_share_the_messages_of_one_subscriber(connect, ways):
    publisher, subscriber = connect()

    def receive(into):
        with contextlib.suppress(TimeoutError):
            while True:
                into.append(subscriber.receive(1.0).sequence)

    def iterate(into):
        with contextlib.suppress(p2pmsg.ClosedError):
            for message in subscriber:
                into.append(message.sequence)

    def receive_many(into):
        with contextlib.suppress(TimeoutError):
            while True:
                into += [m.sequence for m in subscriber.receive_many(7, timeout=1.0)]

    def publish():
        for n in range(30_000):
            publisher.publish(TOPIC, n)
        eventually(lambda: sum(map(len, taken)) >= 30_000)
        subscriber.close()

    kinds = {"receive": [receive] * 3, "iterate": [iterate] * 3, "receive_many": [receive_many] * 3}
    chosen = kinds.get(ways, [receive, iterate, receive_many] * 2)
    taken = [[] for _ in chosen]

    def run(kind, into):
        with contextlib.suppress(p2pmsg.ClosedError):
            kind(into)

    in_threads(
        publish,
        *(
            lambda kind=kind, into=into: run(kind, into)
            for kind, into in zip(chosen, taken, strict=True)
        ),
    )
    for into in taken:
        assert into == sorted(into)
    counts = Counter(chain.from_iterable(taken))
    assert set(counts) == set(range(30_000))
    assert set(counts.values()) == {1}
    check_ledger(subscriber, delivered=30_000, outstanding=0, lost=0)


def test_close_while_another_thread_waits_for_space(connect):
    publisher, subscriber = connect(publisher={"stall_timeout": 20.0}, receive_bytes=2**16)
    returned, errors = [], []

    def publish():
        try:
            while True:
                returned.append(publisher.publish(TOPIC, bytes(1000)))
        except p2pmsg.ClosedError as error:
            errors.append(error)

    def close():
        eventually(lambda: publisher.stats().stalls > 0)
        publisher.close(timeout=0.2)

    in_threads(publish, publish, close)
    assert len(errors) == 2
    assert publisher.stats().undelivered >= 1
    assert sorted(returned) == list(range(publisher.stats().published))
    taken = take(subscriber, 10)
    assert [message.sequence for message in taken] == list(range(10))
