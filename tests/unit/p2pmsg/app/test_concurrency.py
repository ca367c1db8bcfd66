"""How much an app and a puller may do at once."""

import asyncio

import pytest

import p2pmsg
from p2pmsg.errors import ConfigError


@pytest.mark.parametrize("kind", ["subscriber", "worker", "responder"])
def test_concurrency_has_a_limit(kind):
    def decorator(concurrency):
        topic = ["t"] if kind == "responder" else []
        return getattr(p2pmsg.App(), kind)("tcp://127.0.0.1:1", *topic, concurrency=concurrency)

    decorator(10_000)
    with pytest.raises(ConfigError, match=r"^concurrency .*at most 10000.*10001"):
        decorator(10_001)


def test_so_have_the_threads_and_tasks_of_a_puller():
    with p2pmsg.Puller("tcp://127.0.0.1:1") as puller:
        with pytest.raises(ConfigError, match=r"^threads .*at most 10000.*10001"):
            puller.run(print, threads=10_001)

    async def main():
        async with p2pmsg.aio.Puller("tcp://127.0.0.1:1") as puller:
            with pytest.raises(ConfigError, match=r"^tasks .*at most 10000.*10001"):
                await puller.run(print, tasks=10_001)

    asyncio.run(main())
