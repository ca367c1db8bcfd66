"""More topics than a queue has room for: libzmq drops subscriptions that find it full, silently."""

import pytest

import p2pmsg
from tests.integration.peers import check_ledger, check_silence, eventually

COUNT = 500


@pytest.mark.parametrize("scheme", ["tcp", "ipc", "inproc"])
def test_a_subscriber_gets_each_topic_that_it_asked_for(
    make_publisher, make_subscriber, tmp_path, scheme
):
    where = {"tcp": "tcp://127.0.0.1:0", "ipc": f"ipc://{tmp_path}/p", "inproc": "inproc://many"}
    publisher = make_publisher(where[scheme])
    topics = [f"topic {n}" for n in range(COUNT)]
    subscriber = make_subscriber(publisher.endpoint, topics=topics, joins=publisher)
    for topic in topics:
        publisher.publish(topic, topic)
    publisher.publish("another", None)
    assert {subscriber.receive(10).value for _ in topics} == set(topics)
    check_silence(subscriber)
    check_ledger(subscriber, delivered=COUNT, outstanding=0, lost=0)
    assert subscriber.stats().repaired["buffer"] == 0


def test_each_topic_is_asked_for_again_behind_a_cut(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher()
    proxy = make_proxy(publisher)
    topics = [f"topic {n}" for n in range(COUNT)]
    subscriber = make_subscriber(proxy.endpoint, topics=topics, joins=publisher)
    before = proxy.connections
    proxy.cut()
    eventually(lambda: proxy.connections > before)
    for turn in range(3):
        for topic in topics:
            publisher.publish(topic, turn)
        taken = [subscriber.receive(10) for _ in topics]
        assert sorted(message.topic for message in taken) == sorted(topics)
        assert {message.value for message in taken} == {turn}
    check_ledger(subscriber, delivered=3 * COUNT, outstanding=0, lost=0)


@pytest.mark.parametrize("frames", [1, 2])
def test_the_shortest_queue_has_room_for_what_joining_takes(
    make_publisher, make_subscriber, frames
):
    publisher = make_publisher()
    subscriber = make_subscriber(
        publisher.endpoint,
        topics=["a", "b", "c"],
        joins=publisher,
        config=p2pmsg.SubscriberConfig(queue_frames=frames),
    )
    for value in range(50):
        publisher.publish("b", value)
        assert subscriber.receive(10).value == value
    check_ledger(subscriber, delivered=50, outstanding=0, lost=0)


def test_a_late_joiner_of_thousands_of_streams_gets_all_of_each(make_publisher, make_subscriber):
    publisher = make_publisher()
    topics = [f"topic {n}" for n in range(5000)]
    for topic in topics:
        for value in range(3):
            publisher.publish(topic, value)
    publisher.flush()
    subscriber = make_subscriber(publisher.endpoint, start="earliest", joins=publisher)
    taken = {topic: [] for topic in topics}
    for _ in range(3 * len(topics)):
        message = subscriber.receive(30)
        taken[message.topic].append(message.value)
    assert all(values == [0, 1, 2] for values in taken.values())
    stats = check_ledger(subscriber, delivered=3 * len(topics), outstanding=0, lost=0)
    assert stats.nacks_sent < 5 * len(topics)  # one for each frame, and few in vain


def test_heads_that_would_not_fit_in_a_frame_come_in_pages(make_publisher, make_subscriber):
    publisher = make_publisher()
    topics = [f"{n:240}" for n in range(18_000)]  # more than 4 MiB of names
    for topic in topics:
        publisher.publish(topic, 0)
    subscriber = make_subscriber(publisher.endpoint, joins=publisher)
    publisher.publish(topics[-1], 1)
    assert subscriber.receive(30).value == 1
    assert len(subscriber.stats().streams) == len(topics)

    with p2pmsg.RangeReader(publisher.endpoint) as reader:
        assert len(reader.heads(timeout=30).streams) == len(topics)
    with p2pmsg.HeadsWatch([publisher.endpoint]) as watch:
        eventually(lambda: watch.heads()[publisher.endpoint])
        assert len(watch.heads()[publisher.endpoint].streams) == len(topics)
