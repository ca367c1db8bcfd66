"""Each request is answered once, or ends with a named error, also where processes die meanwhile.

A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as many.
"""

import asyncio
from collections import Counter
from random import Random

import pytest

from p2pmsg import aio
from p2pmsg.errors import ClosedError
from p2pmsg.testing import VirtualNetwork

ENDPOINTS = ["tcp://a:5560", "tcp://b:5560"]
REQUESTS = 15
FAULTS = {
    "clean": {},
    "connections end": {"lossy": 0.1},
    "slow": {"delay": (0.05, 0.5)},
    "responders die": {"responder_kills": 3.0},
    "requesters die": {"requester_kills": 3.0},
    "partitions": {"partitions": 3.0},
    "everything": {
        "lossy": 0.05, "delay": (0.001, 0.1), "responder_kills": 1.0, "requester_kills": 1.0,
        "partitions": 1.0,
    },
}  # fmt: skip
"""Kills and partitions happen so often a second, on average."""


class World:
    """One run: two responders, three processes that ask them, and what becomes of each request."""

    def __init__(
        self, seed, *, responder_kills=0.0, requester_kills=0.0, partitions=0.0, **options
    ):
        self.network = VirtualNetwork(seed=seed, **options)
        self.is_clean = not (options or responder_kills or requester_kills or partitions)
        self.rng = Random(seed)
        self.calls = Counter()
        self.answered = 0
        self.errors = Counter()
        self.is_healed = False
        self.rates = {
            self.kill_responder: responder_kills,
            self.kill_requester: requester_kills,
            self.part: partitions,
        }
        self.responders = [self.network.process(f"responder{n}") for n in range(2)]
        self.asking = [self.network.process(f"requester{n}") for n in range(3)]
        self.starts = Counter()
        self.requesters = {}

    async def run(self):
        for one in self.responders:
            self.respond(one)
        for one in self.asking:
            self.start(one)
        faults = [asyncio.create_task(self.happen(*one)) for one in self.rates.items() if one[1]]
        await asyncio.gather(*(self.ask_all(one) for one in self.asking for _ in range(2)))
        self.is_healed = True
        await asyncio.gather(*faults)
        self.network.heal()
        await self.network.sleep(5.0)
        for number, requester in enumerate(self.requesters.values()):
            assert await requester.request("square", (number, 5), timeout=20.0) == 25
        await self.network.sleep(1.0)
        before = self.network.frames.sent
        await self.network.sleep(10.0)
        assert self.network.frames.sent == before, "not quiet"

    def respond(self, process):
        """Start a responder, as a new incarnation of its process."""
        self.starts[process] += 1
        me = self.responders.index(process), self.starts[process]

        async def square(value):
            asked, number = value
            self.calls[me, asked] += 1
            await self.network.sleep(self.rng.uniform(0.0, 0.3))
            return number**2

        with process:
            aio.Responder(ENDPOINTS[me[0]], {"square": square}).start()

    def start(self, process):
        with process:
            self.requesters[process] = aio.Requester(ENDPOINTS)

    async def ask_all(self, process):
        rng = self.rng
        for number in range(REQUESTS):
            asked = rng.getrandbits(60)
            begun, timeout = self.network.now, rng.uniform(0.5, 5.0)
            attempts = rng.randrange(1, 10)
            asking = self.requesters[process].request(
                "square", (asked, number), timeout=timeout, attempts_max=attempts
            )
            try:
                assert await asking == number**2
                self.answered += 1
            except (TimeoutError, ClosedError) as error:
                self.errors[type(error).__name__] += 1
            assert self.network.now <= begun + timeout + 0.001
            await self.network.sleep(rng.expovariate(10.0))

    async def happen(self, fault, rate):
        while not self.is_healed:
            await fault()
            await self.network.sleep(self.rng.expovariate(rate))

    async def kill_responder(self):
        one = self.rng.choice(self.responders)
        one.kill()
        await self.network.sleep(self.rng.uniform(0.0, 1.0))
        self.respond(one)

    async def kill_requester(self):
        one = self.rng.choice(self.asking)
        one.kill()
        self.start(one)

    async def part(self):
        ends = self.rng.choice(self.responders), self.rng.choice(self.asking)
        self.network.partition(*ends, self.rng.uniform(0.1, 2.0))

    def check(self):
        twice = {one: count for one, count in self.calls.items() if count > 1}
        assert not twice, f"done twice by one incarnation: {twice}"
        if self.is_clean:
            assert self.answered == 6 * REQUESTS, self.errors
        if not self.rates[self.kill_requester]:
            assert not self.errors["ClosedError"]


@pytest.mark.rounds(2, 200)
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_each_request_is_answered_once_or_ends_with_a_named_error(faults, rounds):
    answered = 0
    for seed in range(rounds):
        world = World(seed, **faults)
        try:
            asyncio.run(world.run())
            world.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        answered += world.answered
    assert answered > rounds * 30
