"""Exceptions at any line of a peer: it goes on, and what it has accepted comes once."""

import asyncio
import contextlib
import threading
from random import Random

import pytest

import p2pmsg
import p2pmsg.peers
import p2pmsg.publisher
import p2pmsg.queue
import p2pmsg.relay
import p2pmsg.requests
import p2pmsg.subscriber
import recovery
import transports
from p2pmsg import aio, driver
from p2pmsg.driver import section, threads
from p2pmsg.errors import LogFailedError, SendQueueFullError
from p2pmsg.peers import (
    network,
    publisher,
    push_sockets,
    pusher,
    pushing,
    receiving,
    relay,
    responder,
    sending,
    serving,
)
from recovery import replay_buffer, retransmit
from tests.integration.peers import LOOPBACK, TOPIC, check_ledger, work_until
from tests.queues import small_segments
from tests.strikes import AtLine, StruckError, files_of

PUBLISHER = files_of(
    p2pmsg.publisher, publisher, replay_buffer, retransmit, section, sending, serving, threads
)
PUSHER = files_of(p2pmsg.queue, pusher, push_sockets, pushing)
RELAY = files_of(
    p2pmsg.publisher, p2pmsg.relay, p2pmsg.subscriber, recovery, transports, network, relay,
    receiving, section, sending, serving,
)  # fmt: skip
RESPONDER = files_of(p2pmsg.requests, transports, responder, section)
REQUESTER = files_of(p2pmsg.requests, p2pmsg.peers, driver)
STARTS = {"__init__", "shut", "close"}
ENDS = STARTS | {"open", "_take", "_made", "_open", "run", "stats"}
"""Not struck: a peer that could not be opened is no peer, and one that ends has nothing to keep."""


@pytest.mark.rounds(60, 900)
@pytest.mark.parametrize("kind", ["plain", "logged", "synced"])
def test_what_a_publisher_returned_arrives_once(connect, tmp_path, rounds, kind):
    options = {} if kind == "plain" else {"log": p2pmsg.LogConfig(tmp_path)}
    if kind == "synced":
        options["log"] = p2pmsg.LogConfig(tmp_path, fsync="always")
    sender, receiver = connect(publisher=options)
    accepted, struck = {}, 0

    def note(sequence, value):
        assert accepted.setdefault(sequence, value) == value

    for number in range(1, rounds + 1):
        with AtLine(PUBLISHER, 1 + number * 7 % (3 * rounds), error=KeyboardInterrupt) as at:
            for part in range(40 if number % 2 else 3):  # gathered, or alone
                value = f"{number}.{part}"
                note(sender.publish(TOPIC, value, key="k" if part % 3 else None), value)
            values = [f"{number}.many.{part}" for part in range(200)]
            first, _ = sender.publish_many(TOPIC, values)
            for part, value in enumerate(values):
                note(first + part, value)
            sender.flush()
            with contextlib.suppress(TimeoutError):
                sender.wait_for_subscribers(2, 0.001)
            sender.stats()
        struck += at.struck
    assert struck > rounds // 3
    note(sender.publish(TOPIC, "the end"), "the end")
    sender.flush()
    received = {}
    while "the end" not in received.values():
        message = receiver.receive(60)
        received[message.sequence] = message.value
    assert accepted.items() <= received.items()
    assert len(set(received.values())) == len(received)
    assert sender.publish(TOPIC, "still there") == max(received) + 1
    check_ledger(receiver)


def test_an_interrupted_wait_for_the_disk_leaves_no_call_that_waits(tmp_path):
    log = p2pmsg.LogConfig(tmp_path, fsync="always")
    with p2pmsg.Publisher(LOOPBACK, log=log) as sender:
        for number in range(1, 200):
            with AtLine(files_of(threads), number, error=KeyboardInterrupt) as at:
                sender.publish(TOPIC, number)
            if not at.struck:
                break
            sender.publish(TOPIC, number)  # which looks at who waits
    assert number > 30


@contextlib.contextmanager
def a_worker(endpoint, **options):
    """Have a thread do jobs; yield the list of the values that it did."""
    done, stop = [], threading.Event()
    with p2pmsg.Puller(endpoint, **options) as puller:
        thread = threading.Thread(
            target=work_until, args=(stop, puller, lambda job: done.append(job.value))
        )
        thread.start()
        try:
            yield done
        finally:
            stop.set()
            thread.join()


def options_of(kind, folder):
    if kind in ("batch", "memory"):
        return {"acknowledge": "batch"} if kind == "batch" else {}
    return {"log": p2pmsg.queue.QueueLogConfig(directory=folder, fsync=kind)}


@pytest.mark.parametrize("kind", ["memory", "never", "always", "batch"])
@pytest.mark.timeout(900)
@pytest.mark.rounds(40, 800)
def test_a_pusher_loses_no_job_that_it_accepted(memory_path, kind, rounds):
    rng = Random(11)
    ways = {"acknowledge": "batch"} if kind == "batch" else {}
    accepted, number = set(), 0

    async def strike(pusher):
        nonlocal number
        before = pusher.stats()
        with AtLine(PUSHER, rng.randint(1, rng.choice((50, 500, 3000))), ENDS) as at:
            for part in range(rng.randint(1, 20)):
                number += 1
                key = f"k{part % 3}" if part % 3 and kind != "batch" else None
                with contextlib.suppress(StruckError, SendQueueFullError, LogFailedError):
                    pusher.push(number, key=key)
                    accepted.add(number)
                if part % 4 == 0:
                    with contextlib.suppress(StruckError, TimeoutError):
                        await pusher.drain(timeout=0.5)
            for _ in range(200):
                if at.struck:
                    break
                await asyncio.sleep(0.001)
        assert pusher.stats().pushed >= before.pushed
        return at.struck

    async def main():
        struck = 0
        async with aio.Pusher(LOOPBACK, **options_of(kind, memory_path)) as pusher:
            with a_worker(pusher.endpoint, **ways) as done:
                for _ in range(rounds):
                    struck += await strike(pusher)
                await pusher.join(timeout=120)
                assert accepted <= set(done)
            stats = pusher.stats()
            assert stats.balanced, stats
            assert stats.in_flight == 0
        assert struck > rounds / 2

    with small_segments(16384):
        asyncio.run(main())


def test_a_pusher_brings_its_log_to_the_disk_after_an_exception_where_it_does_that(memory_path):
    others = {*vars(pusher.PusherPeer)} - {"_keep_up", "_sync", "_reach_disk"}

    async def main():
        log = p2pmsg.queue.QueueLogConfig(memory_path, fsync="always")
        async with aio.Pusher(LOOPBACK, log=log, in_flight_max=10_000) as sender:
            for number in range(1, 1000):
                with AtLine(files_of(pusher), number, others) as at:
                    for _ in range(3):
                        sender.push(number)
                        await sender.drain(timeout=60)
                sender.push(number)
                await sender.drain(timeout=60)
                if not at.struck:
                    return
        raise AssertionError("it has fewer lines")

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", "log"])
@pytest.mark.timeout(900)
@pytest.mark.rounds(60, 900)
def test_a_relay_loses_and_repeats_nothing(memory_path, kind, rounds):
    rng, number, struck = Random(12), 0, 0
    options = {"log": p2pmsg.LogConfig(memory_path)} if kind == "log" else {}

    async def main():
        nonlocal number, struck
        with p2pmsg.Publisher(LOOPBACK) as publisher:
            async with aio.Relay([publisher.endpoint], LOOPBACK, **options) as relay:
                with p2pmsg.Subscriber(relay.endpoint) as subscriber:
                    await relay.wait_for_subscribers(1, 60)
                    for _ in range(rounds):
                        at = AtLine(RELAY, rng.randint(1, rng.choice((100, 1000, 5000))))
                        for _ in range(5):
                            count = rng.randint(1, 50)
                            publisher.publish_many("t", [*range(number, number + count)])
                            number += count
                            with at:
                                for _ in range(20):  # a busy machine may bring it late
                                    if at.struck:
                                        break
                                    await asyncio.sleep(0.001)
                                    relay.stats()
                        struck += at.struck
                    values = []
                    while len(values) < number:
                        values += [
                            m.value
                            for m in await asyncio.to_thread(subscriber.receive_many, timeout=60)
                        ]
                    assert values == [*range(number)]
                    check_ledger(subscriber, delivered=number, lost=0)

    asyncio.run(main())
    assert struck > rounds / 2


@pytest.mark.timeout(900)
@pytest.mark.rounds(60, 900)
def test_a_responder_leaves_no_request_without_an_answer(rounds):
    rng, struck = Random(13), 0

    async def main():
        nonlocal struck
        async with aio.Responder(LOOPBACK, {"same": lambda value: value}) as responder:
            with p2pmsg.Requester(responder.endpoint) as requester:

                def request(number):  # once more each 0.1 s
                    try:
                        return requester.request("same", number, timeout=60.0, attempts_max=600)
                    except p2pmsg.errors.RemoteError as error:  # it came where a handler runs
                        assert "StruckError" in str(error)
                        return number

                for number in range(rounds):
                    parts = [[number, part] for part in range(10)]
                    asked = asyncio.gather(*(asyncio.to_thread(request, part) for part in parts))
                    with AtLine(
                        RESPONDER, rng.randint(1, rng.choice((30, 100, 1000))), STARTS
                    ) as at:
                        while not (at.struck or asked.done()):
                            await asyncio.sleep(0.005)
                    assert await asked == parts
                    struck += at.struck

    asyncio.run(main())
    assert struck > rounds / 2


def test_a_requester_asks_on():
    with (
        p2pmsg.Responder("inproc://struck", {"same": lambda value: value}) as responder,
        p2pmsg.Requester(responder.endpoint, busy_wait=0.0) as requester,
    ):
        for number in range(1, 2000, 3):
            with AtLine(REQUESTER, number, error=KeyboardInterrupt) as at:
                requester.request("same", number, timeout=60.0)
            assert requester.request("same", ["next", number], timeout=60.0) == ["next", number]
            if not at.struck:
                return
        raise AssertionError("a request has fewer lines")
