"""Typed values and callbacks on a network in memory: as real subscribers treat them."""

import asyncio
from dataclasses import dataclass

import pytest

import p2pmsg
from p2pmsg.errors import InvalidValueError
from p2pmsg.testing import VirtualNetwork


@dataclass
class Trade:
    symbol: str
    price: float


@pytest.fixture
def network():
    made = VirtualNetwork(seed=1, lossy=0.1)
    return made


def joined(network, **options):
    publisher = network.publisher()
    subscriber = network.subscriber(publisher, **options)
    publisher.wait_for_subscribers(1)
    return publisher, subscriber


def test_values_arrive_as_their_type(network):
    publisher, subscriber = joined(network, type=Trade)
    publisher.publish_many("t", [Trade("BTC", float(n)) for n in range(300)])
    publisher.publish("t", {"symbol": "ETH", "price": 2})
    network.drain()

    got = [message.value for message in subscriber]

    assert got == [*(Trade("BTC", float(n)) for n in range(300)), Trade("ETH", 2.0)]


def test_a_value_that_does_not_fit_is_raised_and_receiving_goes_on(network):
    publisher, subscriber = joined(network, type=Trade)
    publisher.publish_many("t", [Trade("A", 0.0), {"symbol": "A", "price": "x"}, Trade("A", 2.0)])
    network.drain()

    assert subscriber.receive().value == Trade("A", 0.0)
    with pytest.raises(InvalidValueError, match=r"price") as caught:
        subscriber.receive()
    assert (caught.value.path, caught.value.item.sequence) == ("$.price", 1)
    assert caught.value.item.value == {"symbol": "A", "price": "x"}
    assert subscriber.receive().value == Trade("A", 2.0)
    stats = subscriber.stats()
    assert (stats.delivered, stats.values_invalid) == (3, 1)


@pytest.mark.parametrize("given", ["skip", "callable"])
def test_a_value_that_does_not_fit_is_skipped_or_handed_over(network, given):
    errors = []
    policy = "skip" if given == "skip" else errors.append
    publisher, subscriber = joined(network, type=int, on_invalid=policy)
    publisher.publish_many("t", [0, "one", 2, "three"])
    network.drain()

    assert [message.value for message in subscriber] == [0, 2]
    assert [error.item.sequence for error in errors] == ([] if given == "skip" else [1, 3])
    assert subscriber.stats().values_invalid == 2


@pytest.mark.parametrize("name", ["on_gap", "on_invalid"])
def test_callbacks_that_would_do_nothing_are_refused(network, name):
    async def coroutine(report):
        pass

    def values(report):
        yield report

    publisher = network.publisher()
    for function in (coroutine, values):
        with pytest.raises(p2pmsg.ConfigError, match="on_gap, on_end, on_invalid"):
            network.subscriber(publisher, **{name: function})
    with pytest.raises(p2pmsg.ConfigError, match="on_gap, on_end, on_invalid"):
        network.aio_subscriber(publisher, **{name: values})
    network.aio_subscriber(publisher, **{name: coroutine})


def test_tasks_get_typed_values_and_coroutines_get_what_does_not_fit():
    errors = []

    async def note(error):
        await asyncio.sleep(0)
        errors.append(error.item.sequence)

    async def main():
        network = VirtualNetwork(seed=1, lossy=0.1)
        async with network.aio_publisher() as publisher:
            subscriber = network.aio_subscriber(publisher, type=Trade, on_invalid=note)
            await publisher.wait_for_subscribers(1)
            for value in (Trade("A", 1.0), 17, Trade("B", 2.0)):
                publisher.publish("t", value)
            got = [await subscriber.receive(timeout=5.0) for _ in range(2)]
        assert [message.value for message in got] == [Trade("A", 1.0), Trade("B", 2.0)]

    asyncio.run(main())
    assert errors == [1]
