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


def test_topics_keys_headers_and_times_arrive(network):
    publisher, subscriber = joined(network, topics="trades")
    publisher.publish("quotes", 0)
    publisher.publish("trades", 1, "BTC", 17, {"h": 2})
    network.advance(1.0)

    (message,) = subscriber

    assert (message.topic, message.value, message.key) == ("trades", 1, "BTC")
    assert (message.timestamp_ns, message.headers, message.sequence) == (17, {"h": 2}, 0)


def test_many_are_published_and_received_together(network):
    publisher, subscriber = joined(network)

    assert publisher.publish_many("t", [1, 2, 3], keys=["a", None, "b"]) == (0, 2)
    network.advance(1.0)
    batch = [*subscriber.receive_many(1), *subscriber.receive_many()]

    assert values(batch) == [1, 2, 3]
    assert [message.key for message in batch] == ["a", None, "b"]
    with pytest.raises(p2pmsg.ConfigError, match="keys"):
        publisher.publish_many("t", [1], keys=[])


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


def lose_one(network, on_gap):
    """Have message 1 of three lost, and never repaired."""
    soon_gone = p2pmsg.PublisherConfig(replay_age=0.4)
    publisher = network.publisher(config=soon_gone)
    subscriber = network.subscriber(publisher, on_gap=on_gap)
    publisher.wait_for_subscribers(1)
    publisher.publish("t", 0)
    network.advance(1.0)
    network.partition(publisher, subscriber, 0.5)
    publisher.publish("t", 1)
    network.advance(0.4)
    publisher.publish("t", 2)
    network.drain()
    return subscriber


def test_a_loss_is_raised_and_receiving_goes_on(network):
    subscriber = lose_one(network, "raise")

    assert subscriber.receive().value == 0
    with pytest.raises(p2pmsg.MessagesLostError) as lost:
        subscriber.receive()
    assert subscriber.receive().value == 2
    assert (lost.value.report.start, lost.value.report.stop) == (1, 2)


def test_a_callable_gets_the_loss(network):
    reports = []
    subscriber = lose_one(network, reports.append)

    assert values(subscriber) == [0, 2]
    assert [(report.start, report.reason.value) for report in reports] == [(1, "evicted")]


def test_messages_that_others_overtook_come_late():
    network = VirtualNetwork(seed=9, reordering=0.5)
    publisher, subscriber = joined(network, on_gap="skip")
    for number in range(100):
        publisher.publish("t", number)
        network.advance(0.002)
    network.advance(1.0)
    messages = [*subscriber]

    assert sorted(values(messages)) == [*range(100)]
    assert any(message.late for message in messages)


def test_a_slow_reader_of_the_newest_gets_it(network):
    publisher, subscriber = joined(network, on_gap="latest")
    for number in range(1000):
        publisher.publish("t", number, f"k{number % 4}")
    network.advance(1.0)

    got = values(subscriber)
    assert got[-4:] == [996, 997, 998, 999]
    assert len(got) < 1000


def test_a_slow_reader_is_waited_for(network):
    config = p2pmsg.SubscriberConfig(receive_bytes=65_536)
    publisher, subscriber = joined(network, config=config)
    for number in range(500):
        publisher.publish("t", [number, bytes(1000)])
        network.advance(0.001)
    network.advance(1.0)
    assert subscriber.stats().outstanding > 0

    got = []
    while len(got) < 500:
        got.append(subscriber.receive(timeout=5.0).value[0])
    assert got == [*range(500)]


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


@pytest.mark.parametrize("seed", range(5))
def test_what_was_missing_waits_for_a_restart_as_long_as_repair_timeout_says(seed):
    network = VirtualNetwork(seed=seed, lossy=0.4, log=True, repair_timeout=120.0)
    lost = []
    publisher, subscriber = joined(network, on_gap=lost.append)
    for number in range(20):
        publisher.publish("t", number)
        network.advance(0.002)
    publisher.crash()
    network.advance(100.0)
    publisher.restart()
    network.advance(30.0)

    assert values(subscriber) == list(range(20))
    assert lost == []


def test_what_is_closed_is_refused(network):
    publisher, subscriber = joined(network)
    publisher.publish("t", 1)
    publisher.close()
    assert values(subscriber) == [1]  # closing has waited for it
    subscriber.close()

    with pytest.raises(p2pmsg.ClosedError):
        publisher.publish("t", 1)
    with pytest.raises(p2pmsg.ClosedError):
        subscriber.receive()


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


def test_each_message_is_committed_when_the_next_one_is_asked_for(network):
    publisher = network.publisher()
    with network.subscriber(publisher, cursor="c", commit="message") as first:
        publisher.wait_for_subscribers(1)
        publisher.publish_many("t", [0, 1, 2, 3, 4])
        network.advance(1.0)
        assert [first.receive().value for _ in range(3)] == [0, 1, 2]
        first.crash()  # 2 was in hand
        first.restart()
        network.advance(1.0)
        assert [first.receive().value for _ in range(2)] == [2, 3]
    second = network.subscriber(publisher, cursor="c", commit="message")
    network.drain()
    assert second.receive().value == 4  # leaving the block had committed 3
    with pytest.raises(p2pmsg.ConfigError, match="commit"):
        network.subscriber(publisher, commit="message")


def test_what_was_closed_does_not_come_back_when_the_network_heals(network):
    publisher, subscriber = joined(network, cursor="c")
    subscriber.close()
    network.heal()
    network.advance(1.0)

    assert network.subscriber(publisher, cursor="c").connected == 0
