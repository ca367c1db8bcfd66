"""Pipelines of asyncio over real sockets: threaded ends opposite, kills, cancellations, bounds."""

import asyncio
import contextlib
import socket
import threading

import pytest

import p2pmsg
from p2pmsg import aio
from p2pmsg.errors import ClosedError, ConfigError, SendQueueFullError
from p2pmsg.queue import PipelineConfig
from tests.integration.aio import LOOPS, Strike, run
from tests.integration.aio_peers import eventually
from tests.integration.peers import DEADLINE_S, LOOPBACK
from tests.integration.test_aio_turns import ByPoll
from tests.integration.test_pipeline import Child

VALUE = b"x" * 128
SMALL = {"buffer_bytes_max": 256 * 1024, "message_bytes_max": 1024}


def pusher(endpoint=LOOPBACK, **options):
    return aio.Pusher(endpoint, mode="pipeline", config=PipelineConfig(**options))


def puller(endpoint):
    return aio.Puller(endpoint, mode="pipeline")


@contextlib.asynccontextmanager
async def a_pipeline(endpoint=LOOPBACK, **options):
    async with pusher(endpoint, **options) as source:
        async with puller(source.endpoint) as sink:
            yield source, sink
        await source.close(timeout=0.0)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("scheme", ["tcp", "ipc", "inproc"])
def test_jobs_are_done_once_each_and_in_order(loop, scheme, tmp_path):
    places = {"tcp": LOOPBACK, "ipc": f"ipc://{tmp_path}/p", "inproc": f"inproc://{tmp_path}"}

    async def main():
        done = []
        async with a_pipeline(places[scheme], **SMALL) as (source, sink):

            async def work():
                async for job in sink:
                    done.append(job.sequence)
                    if job.sequence % 700 == 0:
                        await asyncio.sleep(0)

            worker = asyncio.create_task(work())
            for number in range(5000):  # several times the buffer
                await source.drain(timeout=DEADLINE_S)
                assert source.push(VALUE) == number
            await eventually(lambda: len(done) == 5000)
            sink.commit()  # the last one, for which no other is taken
            await source.join(timeout=DEADLINE_S)
            assert done == list(range(5000))
            stats = source.stats()
            assert (stats.pushed, stats.done, stats.in_flight) == (5000, 5000, 0)
            assert (stats.redealt, stats.refused, stats.frames_invalid) == (0, 0, 0)
        await worker  # it ends with the puller

    run(main, loop, debug=True)


def test_a_threaded_puller_opposite_and_a_threaded_pusher():
    async def push(count):
        async with pusher() as source:
            with p2pmsg.Puller(source.endpoint, mode="pipeline") as sink:
                thread = threading.Thread(target=take, args=(sink, count))
                thread.start()
                source.push_many(range(count))
                await source.join(timeout=DEADLINE_S)
                await asyncio.to_thread(thread.join)

    def take(sink, count):
        assert [sink.receive(DEADLINE_S).value for _ in range(count)] == list(range(count))
        sink.commit()

    async def pull(source):
        async with puller(source.endpoint) as sink:
            values = []
            while len(values) < 3000:
                values += [job.value for job in await sink.receive_many(1000, timeout=DEADLINE_S)]
            sink.commit()
            await asyncio.to_thread(source.drain, DEADLINE_S)
            assert values == list(range(3000))

    run(lambda: push(3000))
    with p2pmsg.Pusher(LOOPBACK, mode="pipeline") as source:
        source.push_many(range(3000))
        run(lambda: pull(source))


def test_a_job_counts_as_done_when_the_next_is_asked_for():
    async def main():
        async with a_pipeline() as (source, sink):
            source.push_many(["a", "b"])
            assert (await sink.receive(DEADLINE_S)).value == "a"
            assert (await sink.receive(DEADLINE_S)).value == "b"
            await sink.close()  # and "b" is not done
            await eventually(lambda: source.stats().in_flight == 1)
            async with puller(source.endpoint) as other:
                assert await other.receive(DEADLINE_S) == ("b", 1)
                with pytest.raises(TimeoutError):
                    await other.receive(timeout=0)
                await source.join(DEADLINE_S)

    run(main)


def test_a_full_buffer_refuses_and_a_push_after_drain_always_fits():
    async def main():
        config = {"buffer_bytes_max": 64 * 1024, "message_bytes_max": 20_000}
        async with pusher(**config) as source:
            with pytest.raises(SendQueueFullError, match="buffer_bytes_max"):
                for _ in range(1000):
                    source.push(VALUE)
            with pytest.raises(TimeoutError, match="buffer_bytes_max"):
                await source.drain(timeout=0.01)
            pushed = source.stats().pushed
            assert source.stats().buffered_bytes <= 64 * 1024

            async def push():
                for _ in range(20):
                    await source.drain()
                    source.push(bytes(19_000))

            tasks = [asyncio.create_task(push()) for _ in range(3)]
            async with puller(source.endpoint) as sink:
                count = 0
                while count < pushed + 60:
                    count += len(await sink.receive_many(1000, timeout=DEADLINE_S))
                await asyncio.gather(*tasks)
                sink.commit()
                await source.join(DEADLINE_S)

    run(main)


def test_a_killed_pullers_share_goes_to_a_puller_of_the_loop(tmp_path):
    async def main():
        async with pusher() as source:
            victim = Child(source.endpoint, tmp_path / "book")
            try:
                source.push_many([VALUE] * 3000)
                await eventually(lambda: len(victim.done()) > 100)
            finally:
                victim.end()
            async with puller(source.endpoint) as sink:
                done = set(victim.done())
                confirmed = asyncio.create_task(source.join(DEADLINE_S))
                while not confirmed.done():  # what the dead one had done may come again at the end
                    with contextlib.suppress(TimeoutError):
                        done.update(job.sequence for job in await sink.receive_many(1000, 0.1))
                        sink.commit()
                await confirmed
                assert done == set(range(3000))

    run(main)


async def by_receive(sink, done):
    done.append((await sink.receive()).sequence)


async def by_iteration(sink, done):
    async for job in sink:
        done.append(job.sequence)


async def by_timeout(sink, done):
    done.append((await sink.receive(timeout=0.0002)).sequence)


@pytest.mark.parametrize("how", [by_receive, by_iteration, by_timeout], ids=lambda h: h.__name__)
def test_a_cancellation_at_every_step_loses_no_job_and_gives_none_twice(how):
    async def main():
        async with a_pipeline("inproc://strikes") as (source, sink):
            await eventually(lambda: source.stats().pullers)
            done, strikes, rounds = [], 0, 0
            while rounds < 15 or strikes <= 2:  # on a busy machine few steps are made in 1 ms
                step, rounds = 1 + rounds % 15, rounds + 1
                for before, after in ((0, 1), (2, 0), (1, 2)):
                    source.push_many([0] * before)
                    task = asyncio.create_task(how(sink, done))
                    with Strike(task, step) as strike:
                        asyncio.get_running_loop().call_later(0.0001, source.push_many, [0] * after)
                        await asyncio.wait([task], timeout=0.001)
                    task.cancel()
                    await asyncio.wait([task])
                    strikes += strike.struck
            await eventually(lambda: source.stats().pushed == rounds * 6)
            while len(done) < rounds * 6:
                done.append((await sink.receive(DEADLINE_S)).sequence)
            assert done == list(range(rounds * 6))

    run(main)


def test_closing_wakes_all_who_wait():
    async def main():
        source = pusher(buffer_bytes_max=64 * 1024)
        sink = puller(source.endpoint)
        waits = [asyncio.create_task(sink.receive()), asyncio.create_task(sink.receive())]
        await asyncio.sleep(0.01)
        await sink.close()
        accepted = fill(source)
        waits += [asyncio.create_task(source.drain()), asyncio.create_task(source.join())]
        await asyncio.sleep(0.01)
        await source.close(timeout=0.0)
        ended = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in ended] == [ClosedError] * 4
        for call in (sink.receive, source.drain, source.join):
            with pytest.raises(ClosedError):
                await call()
        for call in (sink.commit, source.flush, lambda: source.push(1)):
            with pytest.raises(ClosedError):
                call()
        assert [job async for job in sink] == []
        assert source.stats().in_flight == accepted

    run(main)


def fill(source):
    """Push until there is no more space; returns how many jobs were accepted."""
    accepted = 0
    with pytest.raises(SendQueueFullError):
        while True:
            source.push(b"x" * 1000)
            accepted += 1
    return accepted


def test_one_job_that_a_puller_keeps_does_not_hold_up_who_waits_for_space():
    """The buffer is smaller than the largest job, so that none of any size fits with another."""

    async def main():
        async with pusher(buffer_bytes_max=256 * 1024) as source, puller(source.endpoint) as slow:
            source.push("slow")
            assert (await slow.receive(timeout=DEADLINE_S)).value == "slow"
            await source.drain(timeout=DEADLINE_S)
            fill(source)
            with pytest.raises(TimeoutError):
                await source.drain(timeout=0.01)

    run(main)


def test_after_a_large_job_was_refused_drain_waits_for_as_much_space():
    async def main():
        async with pusher(buffer_bytes_max=256 * 1024) as source, puller(source.endpoint) as slow:
            source.push("slow")
            assert (await slow.receive(timeout=DEADLINE_S)).value == "slow"
            large = bytes(256 * 1024 - 100)
            with pytest.raises(SendQueueFullError):
                source.push(large)
            with pytest.raises(TimeoutError):
                await source.drain(timeout=0.01)
            waiting = asyncio.create_task(slow.receive(timeout=DEADLINE_S))  # "slow" is done
            await source.drain(timeout=DEADLINE_S)
            source.push(large)
            assert (await waiting).value == large

    run(main)


def test_other_loops_are_refused_and_a_loop_that_ends_closes(caplog):
    kept = []

    async def main():
        source = pusher()
        sink = puller(source.endpoint)
        source.push(1)
        await sink.receive(timeout=DEADLINE_S)
        kept.extend((source, sink))

        async def use():
            for call in (source.drain, source.join, source.open, sink.receive):
                with pytest.raises(RuntimeError, match="in another event loop"):
                    await call()
            with pytest.raises(RuntimeError, match="the pusher"):
                source.push(1)

        await asyncio.to_thread(asyncio.run, use())

    run(main)
    assert caplog.text.count("was not closed before its event loop ended") == 2
    assert all("closed" in repr(each) for each in kept)


def test_an_endpoint_with_a_name_is_bound_when_it_is_opened(monkeypatch):
    threads = []

    def look_up(name):
        if name == "jobs.example":
            threads.append(threading.get_ident())
        return "127.0.0.1"

    monkeypatch.setattr(socket, "gethostbyname", look_up)

    async def main():
        source = pusher("tcp://jobs.example:0")
        with pytest.raises(ClosedError, match="not open yet"):
            source.push(1)
        with pytest.raises(ClosedError, match="not open yet"):
            source.stats()
        async with source:
            port = source.endpoint.rpartition(":")[2]
            async with puller(f"tcp://127.0.0.1:{port}") as sink:
                source.push("job")
                assert (await sink.receive(DEADLINE_S)).value == "job"
                sink.commit()  # else closing would wait for it
        assert threads
        assert threading.get_ident() not in threads
        unused = pusher("tcp://jobs.example:0")
        await unused.close()
        with pytest.raises(ClosedError):
            await unused.open()

    run(main)


def test_what_a_pipeline_does_not_have_is_refused_by_name():
    async def main():
        with pytest.raises(ConfigError, match="log"):
            aio.Pusher(LOOPBACK, mode="pipeline", log="x")
        with pytest.raises(ConfigError, match="prefetch"):
            aio.Puller("tcp://127.0.0.1:5555", mode="pipeline", prefetch=3)
        with pytest.raises(ConfigError, match="mode"):
            aio.Puller("tcp://127.0.0.1:5555", mode="pipe")
        async with pusher() as source:
            with pytest.raises(p2pmsg.errors.MessageError, match="value"):
                source.push(object())
            with pytest.raises(p2pmsg.errors.MessageTooLargeError):
                source.push(b"x" * (2**20 + 1))
            assert source.stats().pushed == 0

    run(main)


def test_without_asyncio():
    driver = ByPoll()
    source = pusher()
    sink = puller(source.endpoint)
    driver.peers += [source, sink]
    try:
        source.push_many(["a", "b"])
        assert driver.run(sink, sink.receive(DEADLINE_S)).value == "a"
        assert driver.run(sink, sink.receive(DEADLINE_S)).value == "b"
        sink.commit()
        driver.run(source, source.join(DEADLINE_S))
    finally:
        source.close_now()
        sink.close_now()
