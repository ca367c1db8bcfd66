"""Exceptions at any line of a relay: it goes on, and its subscribers get all that was published."""

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest

import p2pmsg
import p2pmsg.publisher
import p2pmsg.relay
import p2pmsg.subscriber
import recovery
import recovery.log
import transports
from p2pmsg import aio
from p2pmsg.driver import section
from p2pmsg.peers import network, receiving, sending, serving
from p2pmsg.peers import relay as peer
from tests.integration.peers import LOOPBACK, check_ledger
from tests.integration.strikes import AtLine, StruckError

PACKAGES = (p2pmsg.publisher, p2pmsg.relay, p2pmsg.subscriber, recovery, recovery.log, transports)
FILES = {
    *(each.__file__ for each in (network, peer, receiving, section, sending, serving)),
    *(str(path) for each in PACKAGES for path in Path(each.__path__[0]).glob("*.py")),
}


@pytest.mark.parametrize("kind", ["memory", "log"])
@pytest.mark.timeout(900)
@pytest.mark.rounds(60, 900)
def test_an_exception_at_any_line_loses_and_repeats_nothing(memory_path, kind, rounds, caplog):
    rng, number, struck = Random(12), 0, 0
    options = {"log": p2pmsg.LogConfig(memory_path)} if kind == "log" else {}

    async def main():
        nonlocal number, struck
        with p2pmsg.Publisher(LOOPBACK) as publisher:
            async with aio.Relay([publisher.endpoint], LOOPBACK, **options) as relay:
                with p2pmsg.Subscriber(relay.endpoint) as subscriber:
                    await relay.wait_for_subscribers(1, 60)
                    for _ in range(rounds):
                        at = AtLine(FILES, rng.randint(1, rng.choice((100, 1000, 5000))))
                        for _ in range(5):
                            count = rng.randint(1, 50)
                            publisher.publish_many("t", [*range(number, number + count)])
                            number += count
                            with at, contextlib.suppress(StruckError):
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
