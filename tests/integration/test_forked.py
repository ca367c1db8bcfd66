"""A forked child has nothing of its parent's peers, and each use of one says so."""

import asyncio
import copy
import os
import pickle
import signal
import traceback

import pytest

import p2pmsg
from p2pmsg import aio, metrics
from p2pmsg.statsd import Collector
from tests.integration.peers import LOOPBACK, eventually

INHERITED = "it belongs to the parent process"


def in_child(*calls):
    """Return what each call comes to in a forked child: the text of its error, or its result."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os.write(writing, pickle.dumps([outcome(call) for call in calls]))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(said)


def outcome(call):
    try:
        return repr(call())
    except p2pmsg.ClosedError as error:
        return str(error)
    except Exception as error:
        return repr(error)


def assert_refused(found):
    assert all(INHERITED in each for each in found), found


def drain(source):
    return lambda: list(source)


def test_a_child_gets_no_jobs_of_the_parent_s_puller(opened):
    pusher = opened.enter_context(p2pmsg.Pusher(LOOPBACK))
    puller = opened.enter_context(p2pmsg.Puller(pusher.endpoint, prefetch=8))
    for number in range(8):
        pusher.push(number)
    first = puller.receive(timeout=60)
    eventually(lambda: puller.stats().ready >= 2)
    held = next(puller)
    found = in_child(
        drain(puller), lambda: next(puller), lambda: puller.receive(1), lambda: puller.run(print),
        lambda: puller.run(print, threads=2), lambda: (held.state, held.ack()),
    )  # fmt: skip
    assert_refused(found[:-1])
    assert found[-1] == repr(("gone", False))
    assert first.ack()
    assert held.ack()
    for expected in range(2, 8):
        with puller.receive(60) as job:
            assert job.value == expected


def test_a_child_gets_no_jobs_of_the_parent_s_pipeline(opened):
    pusher = opened.enter_context(p2pmsg.Pusher(LOOPBACK, mode="pipeline"))
    puller = opened.enter_context(p2pmsg.Puller(pusher.endpoint, mode="pipeline"))
    for number in range(4):
        pusher.push(number)
    assert puller.receive(60).value == 0
    found = in_child(drain(puller), lambda: puller.receive(1), lambda: puller.receive_many(1))
    assert_refused(found)
    assert [puller.receive(60).value for _ in range(3)] == [1, 2, 3]
    puller.commit()


@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
@pytest.mark.parametrize("cursor", [False, True], ids=["plain", "cursor"])
def test_a_child_gets_no_messages_of_the_parent_s_subscriber(opened, tmp_path, begun, cursor):
    publisher = opened.enter_context(p2pmsg.Publisher(LOOPBACK))
    options = {"cursor": tmp_path / "cursor"} if cursor else {}
    subscriber = opened.enter_context(
        p2pmsg.Subscriber(publisher.endpoint, start="earliest", **options)
    )
    publisher.wait_for_subscribers(timeout=60)
    publisher.publish_many("t", range(100))
    publisher.flush()
    messages = iter(subscriber)
    assert next(messages).value == 0
    source = messages if begun else subscriber
    found = in_child(
        drain(source), drain(source), lambda: subscriber.receive(1),
        lambda: subscriber.receive_many(timeout=1),
    )  # fmt: skip
    assert_refused(found)
    assert [next(messages).value for _ in range(99)] == [*range(1, 100)]


def test_a_child_s_other_peers_say_whose_they_are(opened):
    responder = p2pmsg.Responder(LOOPBACK, {"t": lambda value: value})
    opened.enter_context(responder)
    idle = p2pmsg.Responder(LOOPBACK)
    opened.callback(idle.close)
    client = opened.enter_context(metrics.Client(LOOPBACK, close_timeout=0))
    client.increment("hits")
    relay = opened.enter_context(p2pmsg.Relay(responder.endpoint, LOOPBACK))
    found = in_child(
        responder.start, responder.serve, idle.start, client.flush,
        lambda: client.increment("hits"), client.wait_for_collectors, relay.wait_for_streams,
        lambda: relay.wait_for_subscribers(1),
    )  # fmt: skip
    assert_refused(found)


def test_a_child_cannot_iterate_over_the_parent_s_peers_of_asyncio():
    async def iterate(source):
        return [each async for each in source]

    async def run():
        async with (
            aio.Publisher(LOOPBACK) as publisher,
            aio.Subscriber(publisher.endpoint, start="earliest") as subscriber,
            aio.Pusher(LOOPBACK) as pusher,
            aio.Puller(pusher.endpoint) as puller,
            aio.Responder(LOOPBACK) as responder,
            aio.metrics.Client(LOOPBACK) as client,
        ):
            for number in range(3):
                publisher.publish("t", number)
                pusher.push(number)
            messages = aiter(subscriber)
            assert (await anext(messages)).value == 0
            first = await anext(puller)
            found = await asyncio.to_thread(
                in_child,
                *[
                    lambda source=source: asyncio.run(iterate(source))
                    for source in (subscriber, messages, puller)
                ],
                client.flush,
            )
            assert (await anext(messages)).value == 1
            first.ack()
            for expected in (1, 2):
                async with await puller.receive(60) as job:
                    assert job.value == expected
            assert responder.endpoint
            return found

    found = asyncio.run(run())
    assert all(INHERITED in each or "WrongLoopError" in each for each in found), found


def test_peers_cannot_be_copied_or_pickled(opened):
    publisher = opened.enter_context(p2pmsg.Publisher(LOOPBACK))
    peers = [
        publisher,
        opened.enter_context(p2pmsg.Subscriber(publisher.endpoint)),
        opened.enter_context(p2pmsg.Relay(publisher.endpoint, LOOPBACK)),
        opened.enter_context(p2pmsg.Pusher(LOOPBACK)),
        opened.enter_context(p2pmsg.Puller("tcp://127.0.0.1:9")),
        opened.enter_context(p2pmsg.Pusher(LOOPBACK, mode="pipeline")),
        opened.enter_context(p2pmsg.Puller("tcp://127.0.0.1:9", mode="pipeline")),
        opened.enter_context(p2pmsg.Requester("tcp://127.0.0.1:9")),
        opened.enter_context(p2pmsg.Responder(LOOPBACK)),
        opened.enter_context(metrics.Client(LOOPBACK)),
        opened.enter_context(Collector("udp://127.0.0.1:0")),
    ]
    for peer in peers:
        refuse_copies(peer)


def test_peers_of_asyncio_cannot_be_copied_or_pickled():
    async def run():
        async with (
            aio.Publisher(LOOPBACK) as publisher,
            aio.Subscriber(publisher.endpoint) as subscriber,
            aio.Pusher(LOOPBACK) as pusher,
            aio.Puller(pusher.endpoint) as puller,
            aio.Requester("tcp://127.0.0.1:9") as requester,
            aio.Responder(LOOPBACK) as responder,
            aio.metrics.Client(LOOPBACK) as client,
        ):
            for peer in (publisher, subscriber, pusher, puller, requester, responder, client):
                refuse_copies(peer)

    asyncio.run(run())


def refuse_copies(peer):
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=rf"{type(peer).__name__} cannot be copied or pickled"):
            way(peer)
