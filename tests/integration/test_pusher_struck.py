"""Exceptions at any line of a pusher: it goes on, loses no job that it accepted, and balances."""

import asyncio
import contextlib
import threading
from pathlib import Path
from random import Random

import pytest

import p2pmsg
import p2pmsg.queue.journal
import p2pmsg.queue.rules
from p2pmsg import aio
from p2pmsg.errors import LogFailedError, SendQueueFullError
from p2pmsg.peers import push_sockets, pushing
from p2pmsg.peers import pusher as peer
from tests.integration.peers import LOOPBACK, work_until
from tests.integration.strikes import AtLine, StruckError

PACKAGES = (p2pmsg.queue, p2pmsg.queue.journal, p2pmsg.queue.rules)
FILES = {
    peer.__file__,
    push_sockets.__file__,
    pushing.__file__,
    *(str(path) for each in PACKAGES for path in Path(each.__path__[0]).glob("*.py")),
}
OPENING = {"__init__", "open", "_take", "_made", "_open", "run", "shut", "close", "stats"}
"""Not struck: a peer that could not be opened is no peer, and one that ends has nothing to keep."""


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
    if kind == "batch":
        return {"acknowledge": "batch"}
    if kind == "memory":
        return {}
    log = p2pmsg.queue.QueueLogConfig(directory=folder, fsync=kind, segment_bytes=16384)
    return {"log": log}


@pytest.mark.parametrize("kind", ["memory", "never", "always", "batch"])
@pytest.mark.timeout(900)
@pytest.mark.rounds(40, 800)
def test_an_exception_at_any_line_loses_no_job_that_was_accepted(memory_path, kind, rounds, caplog):
    rng = Random(11)
    ways = {"acknowledge": "batch"} if kind == "batch" else {}
    accepted, number = set(), 0

    async def strike(pusher):
        nonlocal number
        before = pusher.stats()
        with AtLine(FILES, rng.randint(1, rng.choice((50, 500, 3000))), OPENING) as at:
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
        return stats

    asyncio.run(main())
