"""Each job that a real pusher accepted is done, and counted, also where processes die meanwhile.

Jobs of one key neither overlap nor overtake. A failing run is named by its seed. `P2PMSG_SEEDS=10`
runs ten times as many.
"""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest

from p2pmsg import aio
from p2pmsg.errors import ClosedError
from p2pmsg.queue import PusherConfig
from p2pmsg.testing import VirtualNetwork

ENDPOINT = "tcp://jobs:5600"
JOBS, KEYS, WORKERS = 40, 3, 3
CONFIG = PusherConfig(ack_timeout=1.0, retry_delay=0.01, deliveries_max=100)
FAULTS = {
    "clean": {},
    "connections end": {"lossy": 0.02},
    "slow": {"delay": (0.02, 0.3)},
    "rejects": {"rejects": 0.3},
    "workers die": {"worker_kills": 8.0},
    "the pusher dies": {"pusher_kills": 5.0, "log": True},
    "everything": {
        "lossy": 0.01, "delay": (0.001, 0.05), "worker_kills": 3.0, "pusher_kills": 2.0,
        "rejects": 0.1, "log": True,
    },
    "by the batch": {"by_batch": True},
    "by the batch, connections end": {"by_batch": True, "lossy": 0.02},
    "by the batch, workers die": {"by_batch": True, "worker_kills": 8.0},
    "by the batch, everything": {
        "by_batch": True, "lossy": 0.01, "delay": (0.001, 0.1), "worker_kills": 3.0,
    },
}  # fmt: skip
"""Kills happen so often a second, on average."""


@dataclass(eq=False)
class Hold:
    """A worker that has a job, and until when."""

    worker: object
    begin: float
    end: float | None = None


class World:
    """One run: a pusher, its workers, and what becomes of each job."""

    def __init__(
        self, seed, folder, worker_kills=0.0, pusher_kills=0.0, rejects=0.0, log=False,
        by_batch=False, **options,
    ):  # fmt: skip
        self.network = VirtualNetwork(seed=seed, **options)
        self.rng = Random(seed)
        self.log = {"log": folder} if log else {}
        self.how = "batch" if by_batch else "each"
        self.rejects, self.rates = rejects, {self.kill_worker: worker_kills}
        self.rates[self.kill_pusher] = pusher_kills
        self.home = self.network.process("jobs")
        self.workers = [self.network.process(f"worker{number}") for number in range(WORKERS)]
        self.holds = defaultdict(list)
        self.accepted, self.done = {}, Counter()
        self.is_pushed = False
        self.tasks = {}

    async def run(self):
        await self.open_pusher()
        for one in self.workers:
            self.start(one)
        faults = [asyncio.create_task(self.happen(*one)) for one in self.rates.items() if one[1]]
        await self.push_all()
        self.is_pushed = True
        await asyncio.gather(*faults)
        self.network.heal()
        await self.pusher.join(timeout=60.0)
        assert self.pusher.stats().in_flight == 0
        if not self.rates[self.kill_pusher]:
            assert self.pusher.stats().done == len(self.accepted)
        for one in self.workers:
            one.kill()
        await asyncio.gather(*self.tasks.values())

    async def open_pusher(self):
        with self.home:
            self.pusher = aio.Pusher(
                ENDPOINT, acknowledge=self.how, **self.log,
                config=CONFIG if self.how == "each" else None,
            )  # fmt: skip
        await self.pusher.open()

    async def push_all(self):
        """Push the jobs; one whose push was cut off may be accepted or not, and is not counted."""
        for number in range(JOBS):
            key = f"k{number % KEYS}" if self.how == "each" and number % 4 else None
            try:
                self.pusher.push(number, key)
                self.accepted[number] = key
            except ClosedError:
                pass
            await self.network.sleep(self.rng.expovariate(50.0))

    def start(self, process):
        with process:
            puller = aio.Puller(ENDPOINT, acknowledge=self.how, prefetch=None)
        self.tasks[process] = asyncio.create_task(self.work(process, puller))

    async def work(self, process, puller):
        hold = None
        try:
            while True:
                job = await puller.receive()
                hold = Hold(process, self.network.now)
                self.holds[job.value].append(hold)
                await self.network.sleep(self.rng.expovariate(100.0))
                if self.how == "batch":
                    puller.commit()
                elif self.rng.random() < self.rejects:
                    job.reject("no", 0.0)
                else:
                    job.ack()
                    self.done[job.value] += 1
                hold.end = self.network.now
        except ClosedError:
            if hold is not None and hold.end is None:
                hold.end = self.network.now

    async def happen(self, fault, rate):
        while not self.is_pushed:
            await self.network.sleep(self.rng.expovariate(rate))
            await fault()

    async def kill_worker(self):
        one = self.rng.choice(self.workers)
        for holds in self.holds.values():
            for hold in holds:
                if hold.worker is one and hold.end is None:
                    hold.end = self.network.now
        one.kill()
        await self.tasks[one]
        self.start(one)

    async def kill_pusher(self):
        self.home.kill()
        await self.network.sleep(self.rng.uniform(0.0, 0.3))
        await self.open_pusher()

    def check(self):
        forgotten = self.accepted.keys() - self.holds.keys()
        assert not forgotten, f"forgotten: {forgotten}"
        if self.how == "each":
            forgotten = self.accepted.keys() - self.done.keys()
            assert not forgotten, f"never acknowledged: {forgotten}"
        begun = [self.holds[number][0].begin for number in self.accepted]
        for key in {*self.accepted.values()} - {None}:
            begun = [self.holds[n][0].begin for n, each in self.accepted.items() if each == key]
            assert begun == sorted(begun), f"{key} out of order"
            holds = [hold for n, each in self.accepted.items() if each == key
                     for hold in self.holds[n]]  # fmt: skip
            holds.sort(key=lambda hold: hold.begin)
            if not (self.network.frames.lost or self.rates[self.kill_pusher]):
                for before, after in pairwise(holds):
                    assert before.end <= after.begin, f"{key} with two workers"


@pytest.mark.rounds(2, 200)
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_each_job_is_done_and_keys_keep_their_order(faults, rounds, tmp_path):
    for seed in range(rounds):
        world = World(seed, tmp_path / str(seed), **faults)
        try:
            asyncio.run(world.run())
            world.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        assert world.accepted, seed
