"""Who is connected, and what is said of topics that nobody publishes."""

from contextlib import ExitStack

import pytest

import p2pmsg
from p2pmsg import unanswered
from p2pmsg.subscriber import missing_topics, one_way
from tests.endpoints import free_port, lasting_endpoint
from tests.integration.peers import eventually


def test_connected_follows_publishers_and_relays(make_publisher, make_relay, make_subscriber):
    first, second = make_publisher(lasting_endpoint()), make_publisher()
    relay = make_relay(second.endpoint)
    subscriber = make_subscriber([first.endpoint, relay.endpoint, "tcp://127.0.0.1:1"])

    eventually(lambda: subscriber.connected == 2 and relay.connected == 1)
    assert [line.connected for line in subscriber.stats().lines] == [True, True, False]

    first.close()
    eventually(lambda: subscriber.connected == 1)
    first = make_publisher(first.endpoint)
    eventually(lambda: subscriber.connected == 2)
    subscriber.close()
    assert subscriber.connected == 0


def test_a_puller_knows_how_many_pushers_answer(opened, endpoint):
    puller = opened.enter_context(p2pmsg.Puller([endpoint, f"{endpoint}2"]))
    assert puller.connected == 0
    opened.enter_context(p2pmsg.Pusher(endpoint))

    eventually(lambda: puller.connected == 1)
    puller.close()
    assert puller.connected == 0


@pytest.mark.internal
def test_a_topic_that_nobody_publishes_is_named(
    make_publisher, make_subscriber, caplog, monkeypatch
):
    monkeypatch.setattr(missing_topics, "WAIT_NS", 10**8)
    monkeypatch.setattr(missing_topics, "LOOK_NS", 10**7)
    publisher = make_publisher(name="feed")
    publisher.publish("quotes.btc", 1)
    make_subscriber(publisher.endpoint, topics=["quote.btc", "quotes.*", "sports.*"])

    eventually(lambda: caplog.messages)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("nobody has 'quote.btc' yet")
    assert caplog.messages[0].endswith(
        f"'feed' at {publisher.endpoint}. Similar topics: 'quotes.btc'"
    )


@pytest.mark.internal
def test_a_topic_that_a_relay_leaves_out_is_named_at_both_sides(
    make_publisher, make_relay, make_subscriber, caplog, monkeypatch
):
    monkeypatch.setattr(missing_topics, "WAIT_NS", 10**8)
    monkeypatch.setattr(missing_topics, "LOOK_NS", 10**7)
    publisher = make_publisher(name="feed")
    publisher.publish("t", 1)
    publisher.publish("u", 1)
    relay = make_relay(publisher.endpoint, name="r", topics=["t", "v*"])
    relay.wait_for_streams(1, 60)
    make_subscriber(relay.endpoint, topics=["u"], start="earliest")

    eventually(lambda: len(caplog.messages) == 1)
    assert caplog.messages[0].startswith("nobody has 'u' yet")
    assert f"the relay at {relay.endpoint}, which carries only 't', 'v*'" in caplog.messages[0]


@pytest.mark.internal
def test_a_group_in_which_nothing_is_heard_is_named(make_subscriber, caplog, monkeypatch):
    monkeypatch.setattr(unanswered, "FIRST_NS", 10**8)
    place = f"udp://239.255.11.2:{free_port()}?interface=127.0.0.1"
    subscriber = make_subscriber(place)

    eventually(lambda: caplog.messages)
    assert caplog.messages[0].startswith(f"no publisher was heard at {place} for ")
    found = subscriber.stats().lines[0].found
    assert found.startswith("check that group, port and interface")
    assert "ttl=2" in found
    with p2pmsg.Publisher(place):
        eventually(lambda: subscriber.connected == 1 and not subscriber.stats().lines[0].found)


@pytest.mark.internal
@pytest.mark.parametrize("is_relay", [False, True], ids=["publisher", "relay"])
def test_who_is_heard_but_not_reached_for_questions_is_said(
    tmp_path, monkeypatch, caplog, is_relay
):
    """All frames came, nothing was delivered, and neither the log nor the counters said so."""
    monkeypatch.setattr(one_way, "FIRST_NS", 300_000_000)
    place, other = f"ipc://{tmp_path}/data", f"ipc://{tmp_path}/other"
    recovery = tmp_path / "recovery"
    with ExitStack() as stack:
        enter = stack.enter_context
        if is_relay:
            source = enter(p2pmsg.Publisher(other))
            enter(p2pmsg.Relay([other], place, recovery_endpoint=f"ipc://{recovery}"))
        else:
            source = enter(p2pmsg.Publisher(place, recovery_endpoint=f"ipc://{recovery}"))
        recovery.unlink()
        subscriber = enter(p2pmsg.Subscriber(place, start="earliest"))
        source.publish("t", 1)
        text = f"its recovery endpoint ipc://{recovery} has not answered"
        eventually(lambda: text in caplog.text)
        assert text in subscriber.stats().lines[0].found
        with pytest.raises(TimeoutError):
            subscriber.receive(timeout=0.1)
        source.close(timeout=0)
