"""`p2pmsg.aio.Subscriber`: everything that only a subscriber in an event loop does."""

import asyncio
import contextlib
import select
import time

import pytest

import p2pmsg
from p2pmsg import aio
from p2pmsg.errors import ClosedError, CursorError
from tests.endpoints import free_port
from tests.integration.aio import LOOPS, connected, run
from tests.integration.mold import make_feed, place
from tests.integration.peers import LOOPBACK, TOPIC

__all__ = ["make_feed", "place"]


def publish(publisher, *values):
    publisher.publish_many(TOPIC, list(values))
    publisher.flush()


async def values_of(iterator, count):
    return [(await anext(iterator)).value for _ in range(count)]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kind", ["tcp", "ipc", "inproc", "udp"])
def test_all_ways_of_receiving_share_one_order(loop, kind, tmp_path):
    place = {
        "tcp": LOOPBACK,
        "ipc": f"ipc://{tmp_path}/feed",
        "inproc": f"inproc://{tmp_path}-{loop}",
        "udp": f"udp://239.255.10.1:{free_port()}?interface=127.0.0.1",
    }[kind]

    async def main():
        async with connected(place, topics=[TOPIC]) as (publisher, subscriber):
            assert subscriber.connected == 1
            waiting = asyncio.create_task(subscriber.receive())
            await asyncio.sleep(0.01)
            publish(publisher, *range(1000))
            assert (await waiting).value == 0
            while subscriber.stats().published < 1000:  # all are there
                await asyncio.sleep(0.01)
            iterator = aiter(subscriber)
            assert await values_of(iterator, 10) == [*range(1, 11)]
            assert (await subscriber.receive(timeout=60)).value == 11
            assert list((await subscriber.receive_many(5, timeout=60)).values) == [*range(12, 17)]
            async for batch in subscriber.batches(3):
                assert list(batch.values) == [17, 18, 19]
                break
            rest = []
            async for message in subscriber:
                rest.append(message.value)
                if len(rest) == 980:
                    break
            assert rest == [*range(20, 1000)]
            with pytest.raises(TimeoutError, match=r"within 0.01 s"):
                await subscriber.receive(timeout=0.01)
            with pytest.raises(TimeoutError):
                await subscriber.receive_many(timeout=0)
            stats = subscriber.stats()
            assert (stats.delivered, stats.lost, stats.outstanding) == (1000, 0, 0)

    run(main, loop, debug=True)


@pytest.mark.parametrize("how", ["receive", "receive_many", "iterate", "batches"])
def test_a_loss_is_raised_in_its_place_and_the_same_iterator_goes_on(how):
    async def main():
        publisher = p2pmsg.Publisher(LOOPBACK, replay_bytes=5_000)
        for number in range(50):
            publisher.publish(TOPIC, number, headers={"padding": bytes(1000)})
            publisher.flush()
        async with aio.Subscriber(publisher.endpoint, start=0, on_gap="raise") as subscriber:
            iterator = aiter(subscriber) if how == "iterate" else subscriber.batches()
            got, losses = [], []
            while not got or got[-1] < 49:
                try:
                    if how == "receive":
                        got.append((await subscriber.receive(60)).value)
                    elif how == "receive_many":
                        got += (await subscriber.receive_many(timeout=60)).values
                    elif how == "iterate":
                        got.append((await anext(iterator)).value)
                    else:
                        got += (await anext(iterator)).values
                except p2pmsg.MessagesLostError as error:
                    losses.append((error.report.start, error.report.stop))
            assert losses == [(0, got[0])]
            assert got == [*range(got[0], 50)]
        publisher.close(timeout=0.0)

    run(main)


def test_a_coroutine_function_gets_the_report_before_the_next_message():
    async def main():
        order = []

        async def on_gap(report):
            order.append("begun")
            await asyncio.sleep(0.01)
            order.append((report.start, report.reason.value))

        publisher = p2pmsg.Publisher(LOOPBACK, replay_bytes=5_000)
        for number in range(20):
            publisher.publish(TOPIC, number, headers={"padding": bytes(1000)})
            publisher.flush()
        async with aio.Subscriber(publisher.endpoint, start=0, on_gap=on_gap) as subscriber:

            async def receive():
                order.append((await subscriber.receive(60)).value)

            first = asyncio.create_task(receive())
            while not order:
                await asyncio.sleep(0)
            first.cancel()  # the report is awaited all the same, and by others
            await asyncio.gather(first, receive(), receive(), return_exceptions=True)
            assert order[:2] == ["begun", (0, "evicted")]
            assert order[3] == order[2] + 1
        publisher.close(timeout=0.0)

    run(main)


@pytest.mark.parametrize("how", ["iterate", "receive", "receive_many", "batches"])
def test_other_tasks_run_while_messages_are_always_there(how):
    count = 20_000

    async def main():
        rounds = 0

        async def other():
            nonlocal rounds
            while True:
                rounds += 1
                await asyncio.sleep(0)

        async with connected() as (publisher, subscriber):
            publish(publisher, *range(count))
            while subscriber.stats().published < count:  # they are there
                await asyncio.sleep(0.01)
            task = asyncio.create_task(other())
            await asyncio.sleep(0)
            before, got = rounds, 0
            iterator, batches = aiter(subscriber), subscriber.batches(100)
            while got < count:
                time.sleep(0.0005)  # the work, which never awaits
                if how == "iterate":
                    for _ in range(100):
                        await anext(iterator)
                    got += 100
                elif how == "receive":
                    for _ in range(100):
                        await subscriber.receive()
                    got += 100
                elif how == "receive_many":
                    got += len(await subscriber.receive_many(100))
                else:
                    got += len(await anext(batches))
            assert rounds - before > 30
            task.cancel()

    run(main)


def test_a_cursor_resumes_and_commits_in_an_executor(tmp_path):
    path = tmp_path / "a.cursor"

    async def read(endpoint, count, **options):
        got = []
        async with aio.Subscriber(
            endpoint, topics=[TOPIC], start="earliest", cursor=path, **options
        ) as subscriber:
            if not options:
                with pytest.raises(CursorError):
                    aio.Subscriber(endpoint, cursor=path)
            async for message in subscriber:
                got.append(message.value)
                if len(got) == count:
                    break
            if not options:
                await subscriber.commit(message)
                await subscriber.receive(60)  # comes again
                assert subscriber.stats().streams[0].committed == message.sequence + 1
        return got

    async def main():
        publisher = p2pmsg.Publisher(LOOPBACK)
        publish(publisher, *range(100))
        assert await read(publisher.endpoint, 10) == [*range(10)]
        assert await read(publisher.endpoint, 10, commit="message") == [*range(10, 20)]
        config = p2pmsg.CursorConfig(path, fsync="always")
        options = {"commit": "message"}
        async with aio.Subscriber(publisher.endpoint, cursor=config, **options) as subscriber:
            assert await values_of(aiter(subscriber), 10) == [*range(20, 30)]
        assert await read(publisher.endpoint, 5, commit_interval=0.001) == [*range(30, 35)]
        async with aio.Subscriber(publisher.endpoint, cursor=path) as subscriber:
            assert (await subscriber.receive(60)).value == 35
        publisher.close(timeout=0.0)

    run(main, debug=True)


def test_commits_of_tasks_that_are_cancelled_are_there_whole_or_not_at_all(tmp_path):
    async def main():
        publisher = p2pmsg.Publisher(LOOPBACK)
        publish(publisher, *range(200))
        options = {"topics": [TOPIC], "start": "earliest", "cursor": tmp_path / "a.cursor"}
        async with aio.Subscriber(publisher.endpoint, **options) as subscriber:
            for step in range(50):
                message = await subscriber.receive(60)
                commit = asyncio.create_task(subscriber.commit())
                for _ in range(step % 4):
                    await asyncio.sleep(0)
                commit.cancel()
                await asyncio.wait([commit])
                committed = subscriber.stats().streams[0].committed or 0
                assert committed <= message.sequence + 1
            await subscriber.commit()
        async with aio.Subscriber(publisher.endpoint, **options) as subscriber:
            assert (await subscriber.receive(60)).value == 50
            await asyncio.gather(subscriber.close(), subscriber.close())
            assert subscriber.wait_fds() == []
            aio.Subscriber(publisher.endpoint, **options).close_now()  # the file is free
        publisher.close(timeout=0.0)

    run(main)


def turns_by_poll(subscriber, count):
    """Drive a subscriber by `poll`, without an event loop."""
    got = []
    while len(got) < count:
        while subscriber.turn() <= 0:
            pass
        while (message := subscriber.receive_nowait()) is not None:
            got.append(message.value)
        if len(got) < count:
            poll = select.poll()
            for fd in subscriber.wait_fds():
                poll.register(fd, select.POLLIN)
            poll.poll(1000 * max(0.0, subscriber.next_deadline - time.monotonic()))
    return got


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_without_an_event_loop(kind):
    udp = f"udp://239.255.10.2:{free_port()}?interface=127.0.0.1"
    publisher = p2pmsg.Publisher(udp if kind == "udp" else LOOPBACK)
    subscriber = aio.Subscriber(publisher.endpoint, topics=[TOPIC], start="earliest")
    with contextlib.closing(publisher):
        publish(publisher, *range(3000))
        assert turns_by_poll(subscriber, 3000) == [*range(3000)]
        assert subscriber.receive_many_nowait() is None
        publish(publisher, "more")
        assert turns_by_poll(subscriber, 1) == ["more"]
        with pytest.raises(RuntimeError, match="made outside"):
            asyncio.run(subscriber.receive())
        subscriber.close_now()
        with pytest.raises(ClosedError):
            subscriber.receive_nowait()
