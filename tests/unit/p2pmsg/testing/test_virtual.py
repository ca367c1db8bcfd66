"""A network in memory for users' tests: it is used as real peers are, and time stands still."""

import pytest

import p2pmsg
from p2pmsg.testing import VirtualNetwork


@pytest.fixture
def network():
    made = VirtualNetwork(seed=1)
    return made


def joined(network, **options):
    publisher = network.publisher()
    subscriber = network.subscriber(publisher, **options)
    publisher.wait_for_subscribers(1)
    return publisher, subscriber


def values(messages):
    return [message.value for message in messages]


def test_no_time_passes_by_itself(network):
    publisher, subscriber = joined(network)
    before = network.now

    publisher.publish("t", 1)

    assert [*subscriber] == []
    assert network.now == before


def test_receive_lets_as_much_time_pass_as_it_needs(network):
    publisher, subscriber = joined(network)
    before = network.now
    publisher.publish("t", 1)

    assert subscriber.receive(timeout=5.0).value == 1
    assert before < network.now < before + 0.1
    with pytest.raises(TimeoutError, match=r"within 5\.0 s"):
        subscriber.receive(timeout=5.0)
    assert network.now > before + 5


def test_without_a_timeout_it_ends_all_the_same(network):
    _, subscriber = joined(network)

    with pytest.raises(TimeoutError, match=r"60\.0 s"):
        subscriber.receive(None)


def test_many_are_published_and_received_together(network):
    publisher, subscriber = joined(network)

    assert publisher.publish_many("t", [1, 2, 3], keys=["a", None, "b"]) == (0, 2)
    network.advance(1.0)
    batch = [*subscriber.receive_many(1), *subscriber.receive_many()]

    assert values(batch) == [1, 2, 3]
    assert [message.key for message in batch] == ["a", None, "b"]
    with pytest.raises(p2pmsg.ConfigError, match="keys"):
        publisher.publish_many("t", [1], keys=[])


def test_values_have_their_type_and_what_does_not_fit_is_said(network):
    wrong = []
    publisher, subscriber = joined(network, type=int, on_invalid=wrong.append)
    publisher.publish_many("t", [0, "one", 2])
    network.drain()

    assert values(subscriber) == [0, 2]
    assert [error.item.sequence for error in wrong] == [1]


@pytest.mark.parametrize("seed", range(5))
def test_losses_are_repaired_in_order(seed):
    network = VirtualNetwork(seed, lossy=0.2, reordering=0.2, duplication=0.1)
    publisher, subscriber = joined(network, on_gap="raise")
    got = []
    for number in range(300):
        publisher.publish("t", number)
        network.advance(0.005)
        got += values(subscriber)
    network.drain()
    got += values(subscriber)

    assert got == [*range(300)]
    assert subscriber.stats().lost == 0
    assert sum(subscriber.stats().repaired.values()) > 0


def test_the_same_seed_gives_the_same_run():
    def run(seed):
        network = VirtualNetwork(seed, lossy=0.3)
        publisher, subscriber = joined(network)
        times = []
        for number in range(20):
            publisher.publish("t", number)
            subscriber.receive(timeout=30.0)
            times.append(network.now)
        return times

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_what_a_partition_holds_up_is_repaired(network):
    publisher, subscriber = joined(network, on_gap="raise")
    network.partition(publisher, subscriber, 0.5)
    publisher.publish("t", 0)
    network.advance(0.4)
    assert [*subscriber] == []
    network.drain()

    assert values(subscriber) == [0]


def test_a_crash_begins_a_new_session_and_a_log_keeps_the_old_one():
    for log in (False, True):
        network = VirtualNetwork(seed=4, log=log)
        publisher, subscriber = joined(network)
        session = publisher.session
        publisher.publish("t", 1)
        network.advance(1.0)
        publisher.crash()
        with pytest.raises(p2pmsg.ClosedError, match="crashed"):
            publisher.publish("t", 2)
        network.advance(1.0)
        publisher.restart()
        publisher.wait_for_subscribers(1)
        publisher.publish("t", 3)
        network.advance(5.0)

        assert values(subscriber) == [1, 3]
        assert (publisher.session == session) == log


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 2**32}, "seed"),
        ({"lossy": 1.5}, "lossy"),
        ({"reordering": -1}, "reordering"),
        ({"duplication": "x"}, "duplication"),
        ({"delay": (2.0, 1.0)}, "delay"),
        ({"repair_timeout": 0}, "repair_timeout"),
    ],
)
def test_a_wrong_argument_is_named(options, field):
    with pytest.raises(p2pmsg.ConfigError) as refused:
        VirtualNetwork(**options)

    assert refused.value.field == field


def test_a_relay_serves_when_the_publisher_is_gone(network):
    publisher = network.publisher()
    relay = network.relay(publisher)
    publisher.wait_for_subscribers(1)
    for number in range(20):
        publisher.publish("t", number)
        network.advance(0.001)
    publisher.close()
    subscriber = network.subscriber(relay, start="earliest", on_gap="raise")
    relay.wait_for_subscribers(1)
    network.drain()

    assert values(subscriber) == [*range(20)]
    relay.close()
    with pytest.raises(p2pmsg.ClosedError, match="relay"):
        relay.wait_for_subscribers(1)


@pytest.mark.parametrize("log", [True, False])
def test_a_relay_with_a_log_has_it_again_after_a_crash(log):
    network = VirtualNetwork(seed=8, lossy=0.1)
    publisher = network.publisher()
    relay = network.relay(publisher, log=log)
    publisher.wait_for_subscribers(1)
    for number in range(20):
        publisher.publish("t", number)
        network.advance(0.01)
    network.drain()
    publisher.crash()
    relay.crash()
    relay.restart()
    subscriber = network.subscriber(relay, start="earliest")
    network.advance(5.0)

    assert values(subscriber) == ([*range(20)] if log else [])


def test_with_a_cursor_the_next_one_goes_on_after_the_last_commit(network):
    publisher = network.publisher()
    with network.subscriber(publisher, cursor="c", on_gap="raise") as first:
        publisher.wait_for_subscribers(1)
        for number in range(6):
            publisher.publish("t", number)
        network.advance(1.0)
        got = [first.receive() for _ in range(4)]
        before = first.stats().cursor
        assert (before.path, before.sessions, before.streams) == ("c", 1, 0)
        first.commit(got[1])
        after = first.stats().cursor
        assert (after.commits, after.streams) == (before.commits + 1, 1)
        assert [ledger.committed for ledger in first.stats().streams] == [2]
        with pytest.raises(p2pmsg.errors.CursorError, match="c"):
            network.subscriber(publisher, cursor="c")
        network.advance(1.0)  # nothing is committed by itself
        first.crash()
        with pytest.raises(p2pmsg.ClosedError, match="crashed"):
            first.receive()
        first.restart()
        network.advance(1.0)
        assert first.receive().value == 2  # 2 and 3 were not committed
        assert first.receive().value == 3
        first.commit()
    publisher.publish("t", 6)  # while nobody is there
    network.advance(1.0)
    second = network.subscriber(publisher, cursor="c", on_gap="raise")
    network.drain()

    assert values(second) == [4, 5, 6]
    other = network.publisher()
    third = network.subscriber(other)
    other.wait_for_subscribers(1)
    other.publish("t", 0)
    with pytest.raises(p2pmsg.ConfigError, match="message"):
        second.commit(third.receive(timeout=5.0))
    with pytest.raises(p2pmsg.ConfigError, match="cursor"):
        network.subscriber(publisher).commit()
    assert (third.stats().cursor, second.stats().cursor.streams) == (None, 1)


def test_what_was_closed_does_not_come_back_when_the_network_heals(network):
    publisher, subscriber = joined(network, cursor="c")
    subscriber.close()
    network.heal()
    network.advance(1.0)

    assert network.subscriber(publisher, cursor="c").connected == 0
