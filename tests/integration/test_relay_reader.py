"""Reading heads and ranges from a relay, as Spark's tasks do."""

import time

import pytest

import p2pmsg
from p2pmsg import LogConfig, RangeReader
from recovery import Loss, LossReason
from tests.integration.inside import core_of, held
from tests.integration.peers import LOOPBACK, eventually, take


@pytest.fixture
def read(opened):
    return lambda place, **options: opened.enter_context(RangeReader(place.endpoint, **options))


def values(items):
    return [value for batch in items for value in batch.values]


def filled(make_publisher, make_relay, count=1):
    """Publishers that have published a thousand messages each, and are gone; and their relay."""
    publishers = [make_publisher(name=f"p{index}") for index in range(count)]
    relay = make_relay([publisher.endpoint for publisher in publishers])
    for index, publisher in enumerate(publishers):
        publisher.publish_many("t", list(range(1000 * index, 1000 * index + 1000)))
    eventually(lambda: list(relay.stats().streams.values()) == [(0, 1000)] * count)
    for publisher in publishers:
        publisher.close()
    return publishers, relay


def test_the_only_session_of_a_relay_is_taken(make_publisher, make_relay, read):
    (publisher,), relay = filled(make_publisher, make_relay)
    reader = read(relay)
    heads = reader.heads()
    assert (heads.session, heads.publisher) == (publisher.session, "p0")
    assert heads.recovery_endpoint == relay.recovery_endpoint
    assert heads.streams == {"t": p2pmsg.StreamHead(0, 1000)}
    assert values(reader.fetch("t", 100, 900)) == list(range(100, 900))
    assert reader.sessions() == [p2pmsg.SessionEntry(publisher.session, "p0", 1)]


def test_of_several_one_must_be_named(make_publisher, make_relay, read):
    publishers, relay = filled(make_publisher, make_relay, 3)
    with pytest.raises(p2pmsg.ConfigError, match=r"session must be given: .* serves 3 sessions"):
        read(relay).heads()
    listed = {(each.session, each.publisher) for each in read(relay).sessions()}
    assert listed == {(publisher.session, publisher.name) for publisher in publishers}
    for index, publisher in enumerate(publishers):
        reader = read(relay, session=publisher.session)
        assert reader.heads().publisher == publisher.name
        got = values(reader.fetch("t", 0, 1000))
        assert got == list(range(1000 * index, 1000 * index + 1000))


def test_one_reader_fetches_of_several_sessions(make_publisher, make_relay, read):
    publishers, relay = filled(make_publisher, make_relay, 2)
    reader = read(relay)
    fetches = [reader.fetch("t", 10, 500, session=each.session) for each in publishers]
    assert [values(fetch) for fetch in fetches] == [
        list(range(10, 500)), list(range(1010, 1500)),
    ]  # fmt: skip


def test_what_was_learned_is_enough_elsewhere(make_publisher, make_relay, read):
    (publisher,), relay = filled(make_publisher, make_relay)
    heads = read(relay).heads()
    task = read(relay, session=heads.session, recovery_endpoint=heads.recovery_endpoint)
    assert values(task.fetch("t", 0, 1000, session=publisher.session)) == list(range(1000))


def test_a_session_that_the_relay_does_not_have(make_publisher, make_relay, read):
    _, relay = filled(make_publisher, make_relay)
    with pytest.raises(TimeoutError, match="has no session 0000000000000007"):
        read(relay, session=7, timeout=0.5).heads()
    (loss,) = read(relay).fetch("t", 0, 10, session=7)
    assert (loss.start, loss.stop, loss.reason) == (0, 10, p2pmsg.LossReason.PUBLISHER_GONE)


def test_a_relay_without_sessions_is_waited_for(make_relay, make_publisher, read):
    publisher = make_publisher()
    relay = make_relay("tcp://127.0.0.1:1")
    with pytest.raises(TimeoutError, match="has no session yet"):
        read(relay, timeout=0.5).heads()
    assert read(relay).sessions() == []
    assert [each.hops for each in read(publisher).sessions()] == [0]


def test_a_relay_that_is_restarted_is_met_again(make_publisher, make_relay, read):
    publisher = make_publisher()
    publisher.publish_many("t", list(range(1000)))
    relay = make_relay(publisher.endpoint)
    relay.wait_for_streams(1, timeout=10)
    reader = read(relay)
    eventually(lambda: reader.heads().streams == {"t": p2pmsg.StreamHead(0, 1000)})
    relay.close(timeout=0.0)
    again = make_relay(publisher.endpoint, relay.endpoint)
    again.wait_for_streams(1, timeout=10)
    assert reader.heads(timeout=10).recovery_endpoint == again.recovery_endpoint
    assert values(reader.fetch("t", 0, 1000)) == list(range(1000))


def test_a_relays_log_is_refused_by_publishers_and_stays_the_relays(
    tmp_path, make_publisher, make_relay, make_subscriber
):
    publisher = make_publisher()
    relay = make_relay(publisher.endpoint, log=LogConfig(tmp_path))
    publisher.publish_many("t", list(range(100)))
    eventually(lambda: [head[1] for head in relay.stats().streams.values()] == [100])
    relay.close(timeout=0.0)
    with pytest.raises(p2pmsg.ConfigError, match="this is a relay's"):
        p2pmsg.Publisher(LOOPBACK, log=LogConfig(tmp_path))
    publisher.close(timeout=0.0)
    again = make_relay(publisher.endpoint, log=LogConfig(tmp_path))
    messages = take(make_subscriber(again.endpoint, start="earliest"), 100)
    assert [message.value for message in messages] == list(range(100))


@pytest.mark.parametrize("reason", ["publisher_gone", "timeout", "rewound"])
def test_a_loss_on_the_way_to_the_relay_keeps_its_reason(make_publisher, make_relay, read, reason):
    (publisher,), relay = filled(make_publisher, make_relay)
    lost = Loss(1000, 1010, LossReason(reason))
    with held(relay):
        core_of(relay).lose(publisher.session, "t", lost, now_ns=time.monotonic_ns())
    items = list(read(relay, timeout=5.0).fetch("t", 900, 1010))
    assert values(items[:-1]) == list(range(900, 1000))
    report = items[-1]
    assert (report.start, report.stop, report.reason.value) == (1000, 1010, reason)
