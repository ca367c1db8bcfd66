"""Exceptions at any line of a responder: it goes on, and answers what it has received."""

import asyncio
import contextlib
from pathlib import Path
from random import Random

import pytest

import p2pmsg
import p2pmsg.requests
import transports
from p2pmsg import aio
from p2pmsg.driver import section
from p2pmsg.peers import responder as peer
from tests.integration.peers import LOOPBACK
from tests.integration.strikes import AtLine, StruckError

PACKAGES = (p2pmsg.requests, transports)
FILES = {
    peer.__file__, section.__file__,
    *(str(path) for each in PACKAGES for path in Path(each.__path__[0]).glob("*.py")),
}  # fmt: skip
SKIPPED = {"__init__", "close", "shut"}


@pytest.mark.timeout(900)
@pytest.mark.rounds(60, 900)
def test_an_exception_at_any_line_leaves_no_request_without_an_answer(rounds):
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
                    at = AtLine(FILES, rng.randint(1, rng.choice((30, 100, 1000))), SKIPPED)
                    with at, contextlib.suppress(StruckError):
                        while not (at.struck or asked.done()):
                            await asyncio.sleep(0.005)
                    assert await asked == parts
                    struck += at.struck

    asyncio.run(main())
    assert struck > rounds / 2
