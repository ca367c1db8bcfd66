"""Opening, closing, several threads, who is connected, callbacks, and times to wait."""

import asyncio
import contextlib
import errno
import gc
import inspect
import os
import re
import threading
from collections import Counter
from contextlib import ExitStack
from itertools import chain

import pytest

import p2pmsg
from p2pmsg import aio, unanswered
from p2pmsg.subscriber import missing_topics, one_way
from tests.endpoints import free_port, lasting_endpoint
from tests.integration.peers import (
    LOOPBACK,
    TOPIC,
    Collector,
    check_exact,
    check_ledger,
    check_silence,
    eventually,
    in_threads,
    small_frames,
    take,
)


def test_closing_twice_and_using_afterwards(connect):
    publisher, subscriber = connect()
    publisher.publish(TOPIC, 0)
    take(subscriber, 1)
    for _ in range(2):
        publisher.close()
        subscriber.close()
    for use in (
        lambda: publisher.publish(TOPIC, 0),
        lambda: publisher.publish("new", 0),
        lambda: publisher.publish_many(TOPIC, [0]),
        publisher.flush,
        lambda: publisher.wait_for_subscribers(5, timeout=5),
        subscriber.receive,
        lambda: subscriber.receive(0),
        subscriber.receive_many,
    ):
        with pytest.raises(p2pmsg.ClosedError):
            use()
    assert list(subscriber) == []
    assert publisher.stats().published == 1
    assert check_ledger(subscriber).delivered == 1
    assert "closed" in repr(publisher)


def test_close_waits_for_a_subscriber_that_still_has_gaps(
    make_publisher, make_subscriber, make_proxy
):
    for seed in range(5):
        publisher = make_publisher(config=small_frames())
        proxy = make_proxy(publisher, frame_loss=0.3, seed=seed, loss_after_frames=5)
        subscriber = make_subscriber(proxy.endpoint, joins=publisher, on_gap="raise")
        for n in range(5_000):
            publisher.publish(TOPIC, n)
        publisher.close(timeout=60)
        assert publisher.stats().undelivered == 0
        check_exact(take(subscriber, 5_000))
        check_silence(subscriber)
        check_ledger(subscriber, delivered=5_000, outstanding=0, lost=0)


@pytest.mark.internal
def test_a_close_that_was_interrupted_as_it_began_loses_nothing(connect, monkeypatch):
    publisher, subscriber = connect(publisher={"config": p2pmsg.PublisherConfig(linger=1.0)})
    for number in range(3000):
        publisher.publish("t", number)

    def interrupted(*_, **__):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("p2pmsg.publisher.core.PublisherCore.begin_close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publisher.close()
    publisher.close(timeout=60)
    assert [subscriber.receive(60).value for _ in range(3000)] == list(range(3000))


def test_a_closed_subscriber_keeps_its_ledger(connect):
    publisher, subscriber = connect()
    publisher.publish_many(TOPIC, range(10_000))
    take(subscriber, 10)
    eventually(lambda: subscriber.stats().published == 10_000)
    subscriber.close()
    check_ledger(subscriber, published=10_000, delivered=10, outstanding=9_990, lost=0)


def test_a_port_in_use(make_publisher, tmp_path):
    for endpoint in (LOOPBACK, f"ipc://{tmp_path}/socket", "inproc://in-use"):
        publisher = make_publisher(endpoint)
        with pytest.raises(p2pmsg.BindError) as refused:
            p2pmsg.Publisher(publisher.endpoint)
        assert isinstance(refused.value, OSError)
        assert re.search("in use|listens there|has bound it", str(refused.value))
        assert refused.value.errno == errno.EADDRINUSE
    taken = make_publisher()
    with pytest.raises(p2pmsg.BindError):
        p2pmsg.Publisher(LOOPBACK, recovery_endpoint=taken.endpoint)
    with pytest.raises(p2pmsg.BindError):
        p2pmsg.Publisher("tcp://192.0.2.1:0")


def open_files():
    return len(os.listdir("/proc/self/fd"))


def test_twenty_peers_leave_no_file_and_no_thread(make_publisher):
    make_publisher()  # the context's own files
    gc.collect()
    files, threads = open_files(), threading.active_count()
    for n in range(20):
        with p2pmsg.Publisher(LOOPBACK) as publisher:
            with p2pmsg.Subscriber(publisher.endpoint) as subscriber:
                publisher.wait_for_subscribers(1, timeout=60)
                publisher.publish(TOPIC, n)
                assert subscriber.receive(60).value == n
        with contextlib.suppress(p2pmsg.BindError):
            p2pmsg.Publisher("tcp://192.0.2.1:0")
    # Fewer, where a former test's were still ending.
    eventually(lambda: open_files() <= files and threading.active_count() <= threads)


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


async def coroutine(report):
    raise AssertionError("never awaited")


def generator(report):
    yield


async def async_generator(report):
    yield


def place():
    return f"tcp://127.0.0.1:{free_port()}"


NOTHING_DONE = (coroutine, generator, async_generator)
OPTIONS = {
    "on_gap": lambda function: {"on_gap": function},
    "on_gap of a topic": lambda function: {"on_gap": {"t": function}},
    "on_end": lambda function: {"on_end": function},
    "on_invalid": lambda function: {"type": int, "on_invalid": function},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("function", NOTHING_DONE)
def test_a_callback_that_would_do_nothing_is_refused(function, options):
    with pytest.raises(p2pmsg.ConfigError, match="plain functions, without yield"):
        p2pmsg.Subscriber(place(), **options(function))


SECONDS = ("x", None.__class__, float("nan"), True, b"1")
COUNTS = ("a", 1.5, True, -1)


def calls_of(peer):
    """Return the calls that take a time to wait, and those that take a count, of one peer."""
    times, counts = [], []
    for name in (
        "receive", "receive_many", "batches", "wait_for_subscribers", "wait_for_streams",
        "drain", "join", "close", "request", "wait_for_collectors",
    ):  # fmt: skip
        call = getattr(peer, name, None)
        if call is None:
            continue
        parameters = inspect.signature(call).parameters
        first = ("topic",) if "topic" in parameters else ()
        if "timeout" in parameters:
            times.append((call, first))
        counts += [(call, field) for field in ("count", "count_max") if field in parameters]
    return times, counts


def refused(result):
    """Return the error of a call of either shell."""
    try:
        value = result()
        if inspect.iscoroutine(value):
            while value.send(None) is None:
                pass  # it lets other tasks run first, where calls went on for 1 ms
    except p2pmsg.ConfigError as error:
        return error
    return pytest.fail("it was not refused")


def check_all(peer):
    times, counts = calls_of(peer)
    assert times or counts
    for call, first in times:
        for value in SECONDS:
            error = refused(lambda call=call, first=first, value=value: call(*first, timeout=value))
            assert "timeout must be" in str(error)
            assert repr(value) in str(error)
    for call, field in counts:
        for value in COUNTS:
            error = refused(lambda call=call, f=field, value=value: call(**{f: value}))
            assert f"{field} must be an int of at least" in str(error)
            assert repr(value) in str(error)


def makers(module):
    return [
        lambda: module.Publisher(LOOPBACK),
        lambda: module.Subscriber("tcp://127.0.0.1:9"),
        lambda: module.Relay("tcp://127.0.0.1:9", LOOPBACK),
        lambda: module.Pusher(LOOPBACK),
        lambda: module.Puller("tcp://127.0.0.1:9"),
        lambda: module.Requester("tcp://127.0.0.1:9"),
    ]


@pytest.mark.parametrize("number", range(6))
def test_no_time_and_no_count_in_a_thread(number):
    with makers(p2pmsg)[number]() as peer:
        check_all(peer)


@pytest.mark.parametrize("number", range(6))
def test_no_time_and_no_count_in_a_loop(number):
    async def main():
        async with makers(aio)[number]() as peer:
            check_all(peer)

    asyncio.run(main())


def test_less_than_no_time_is_no_wait():
    with p2pmsg.Subscriber("tcp://127.0.0.1:9") as subscriber:
        with pytest.raises(TimeoutError):
            subscriber.receive(timeout=-1)
    with p2pmsg.Publisher(LOOPBACK) as publisher:
        with pytest.raises(TimeoutError):
            publisher.wait_for_subscribers(timeout=-1)
