"""Threads for plain handlers: bounded, and no obstacle to the end of the process."""

import asyncio
import threading

import pytest

from p2pmsg.app.threads import HandlerThreads


@pytest.fixture
def threads():
    made = HandlerThreads(2)
    yield made
    made.close()


def test_no_more_run_at_once_than_there_are_threads(threads):
    both, names = threading.Barrier(2), []

    def call(number):
        names.append(threading.current_thread().name)
        both.wait(60)
        return number

    async def main():
        return await asyncio.gather(*(threads.run(lambda n=n: call(n)) for n in range(6)))

    assert asyncio.run(main()) == [*range(6)]
    assert len(set(names)) == 2
    assert all(thread.daemon for thread in threading.enumerate() if thread.name in names)
