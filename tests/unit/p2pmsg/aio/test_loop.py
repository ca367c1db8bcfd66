"""LoopDriver: rounds in an event loop."""

import asyncio
import socket
import threading

import pytest

from p2pmsg.aio.loop import LoopDriver


def test_another_loop_is_refused() -> None:
    async def make() -> LoopDriver:
        driver = LoopDriver("the peer", lambda: 1.0)
        driver.check_loop()
        caught: list[RuntimeError] = []

        def other() -> None:
            async def use() -> None:
                try:
                    driver.check_loop()
                except RuntimeError as error:
                    caught.append(error)

            asyncio.run(use())

        thread = threading.Thread(target=other)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert "in another event loop" in str(caught[0])
        return driver

    driver = asyncio.run(make())
    with pytest.raises(RuntimeError, match="outside"):
        driver.check_loop()


def test_a_readable_descriptor_and_a_deadline_make_a_turn() -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        came: list[bytes] = []
        turns = 0

        def turn() -> float:
            nonlocal turns
            turns += 1
            try:
                came.append(there.recv(10, socket.MSG_DONTWAIT))
            except BlockingIOError:
                pass
            return 0.01

        with here, there:
            driver = LoopDriver("the peer", turn, [there.fileno()])
            driver.start()
            assert not await driver.wait_for(lambda: bool(came), 0.01)
            assert await driver.wait_for(lambda: turns >= 3, 30.0)  # by the deadline
            assert not came
            here.send(b"x")
            assert await driver.wait_for(lambda: bool(came), 5.0)
            driver.stop()
            before = turns
            await asyncio.sleep(0.03)
            assert turns == before

    asyncio.run(run())


def test_a_descriptor_that_stays_readable_does_not_hurry_turns_that_fail() -> None:
    async def run() -> None:
        here, there = socket.socketpair()
        turns = rounds = 0

        def turn() -> float:
            nonlocal turns
            turns += 1
            if turns < 4:
                raise ValueError("again")
            there.recv(10, socket.MSG_DONTWAIT)
            return 1.0

        with here, there:
            driver = LoopDriver("the peer", turn, [there.fileno()])
            driver.start()
            here.send(b"x")
            while turns < 3:
                rounds += 1
                await asyncio.sleep(0)
            assert turns == 3
            assert rounds > 20  # it has rested in between
            driver.watch([there.fileno()])
            assert await driver.wait_for(lambda: turns == 4, 5.0)
            driver.stop()

    asyncio.run(run())


def test_who_waits_is_woken_by_stop_and_may_be_cancelled() -> None:
    async def run() -> None:
        driver = LoopDriver("the peer", lambda: 1.0)
        driver.start()
        one = asyncio.create_task(driver.wait_for(lambda: False, None))
        two = asyncio.create_task(driver.wait_for(lambda: False, None))
        await asyncio.sleep(0)
        one.cancel()
        await asyncio.sleep(0)
        driver.stop()
        assert one.cancelled() or one.cancelling()
        assert await two is False

    asyncio.run(run())


def test_a_loop_that_ends_stops_it_and_names_the_owner(caplog: pytest.LogCaptureFixture) -> None:
    closed: list[str] = []
    driver: LoopDriver | None = None

    async def forget() -> None:
        nonlocal driver
        driver = LoopDriver("the peer", lambda: 1.0, at_loop_end=lambda: closed.append("peer"))
        driver.start()
        await asyncio.sleep(0)

    asyncio.run(forget(), debug=True)
    assert driver is not None
    assert driver.stopping
    assert closed == ["peer"]
    assert "the peer was not closed before its event loop ended" in caplog.text
