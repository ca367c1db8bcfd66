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
from p2pmsg.peers.network import here
from p2pmsg.queue import PusherConfig, QueueLogConfig
from p2pmsg.testing import VirtualNetwork
from tests.integration.inside import core_of, hold_for_ever
from tests.queues import with_limits

ENDPOINT = "tcp://jobs:5600"
JOBS, KEYS, WORKERS = 40, 3, 3
JOB_TIMEOUT_S = 0.5
SYNCED_S = 0.3
"""What was pushed longer ago is on the disk: a sync each 0.1 s of the network's time."""
STRANGERS = ("holder", "rejecter", "extender", "flapper", "hoarder")
FAULTS = {
    "clean": {},
    "connections end": {"lossy": 0.02},
    "slow": {"delay": (0.02, 0.3)},
    "rejects": {"rejects": 0.3},
    "discards": {"discards": 0.2},
    "handlers hang": {"hangs": 0.1},
    "jobs kill": {"poison": 0.08},
    "workers die": {"worker_kills": 8.0},
    "workers leave": {"leaves": 8.0, "hangs": 0.05},
    "partitions": {"partitions": 3.0},
    "strangers": {"strangers": STRANGERS, "lossy": 0.01},
    "the pusher dies": {"pusher_kills": 5.0, "fsync": "interval"},
    "the system crashes": {"crashes": 4.0, "fsync": "interval"},
    "the system crashes, synced": {"crashes": 4.0, "fsync": "always"},
    "everything": {
        "lossy": 0.01, "delay": (0.001, 0.05), "worker_kills": 3.0, "pusher_kills": 2.0,
        "leaves": 1.0, "crashes": 1.0, "rejects": 0.1, "hangs": 0.02, "fsync": "interval",
    },
    "by the batch": {"by_batch": True},
    "by the batch, connections end": {"by_batch": True, "lossy": 0.02},
    "by the batch, workers die": {"by_batch": True, "worker_kills": 8.0},
    "by the batch, everything": {
        "by_batch": True, "lossy": 0.01, "delay": (0.001, 0.1), "worker_kills": 3.0,
        "leaves": 2.0,
    },
}  # fmt: skip
"""Kills, crashes and the like happen so often a second, on average; the others to some jobs."""


@dataclass(eq=False)
class Hold:
    """A worker that has a job, and until when."""

    worker: object
    begin: float
    end: float | None = None

    def stop(self, now):
        """Note its end: after `JOB_TIMEOUT_S` it is another's, whatever its worker does."""
        self.end = min(now, self.begin + JOB_TIMEOUT_S)


class World:
    """One run: a pusher, its workers, and what becomes of each job."""

    def __init__(
        self, seed, *, fsync=None, by_batch=False, rejects=0.0, discards=0.0, hangs=0.0, poison=0.0,
        strangers=(), worker_kills=0.0, leaves=0.0, pusher_kills=0.0, crashes=0.0, partitions=0.0,
        **options,
    ):  # fmt: skip
        self.network = VirtualNetwork(seed=seed, **options)
        self.network.advance(86_400.0)  # a machine's clock does not begin at 0 with its peers
        self.rng = Random(seed)
        self.fsync, self.how = fsync, "batch" if by_batch else "each"
        self.rejects, self.discards, self.hangs = rejects, discards, hangs
        self.strangers = strangers
        self.rates = {
            self.kill_worker: worker_kills, self.leave: leaves, self.part: partitions,
            self.kill_pusher: pusher_kills, self.crash: crashes,
        }  # fmt: skip
        self.pusher_ends = bool(pusher_kills or crashes)
        self.home = self.network.process("jobs")
        self.workers = [self.network.process(f"worker{number}") for number in range(WORKERS)]
        self.holds = defaultdict(list)
        self.accepted, self.pushed, self.done, self.discarded = {}, {}, Counter(), set()
        self.poison = {number for number in range(JOBS) if self.rng.random() < poison}
        self.is_pushed, self.taken_by_strangers = False, 0
        self.pullers, self.tasks, self.ending, self.ends = {}, {}, set(), []
        self.is_home_free = asyncio.Lock()

    async def run(self):
        await self.open_pusher()
        for one in self.workers:
            self.start(one, self.work)
        for kind in self.strangers:
            self.start(self.network.process(kind), self.do_nothing)
        faults = [asyncio.create_task(self.happen(*one)) for one in self.rates.items() if one[1]]
        await self.push_all()
        self.is_pushed = True
        await asyncio.gather(*faults)
        self.network.heal()
        await self.pusher.join(timeout=120.0)
        await asyncio.gather(*self.ends)
        stats = self.pusher.stats()
        assert (stats.in_flight, stats.balanced) == (0, True)
        if not self.pusher_ends:
            assert stats.done + stats.dead == len(self.accepted)
        self.dead = {letter.value for letter in self.pusher.dead_letters()}
        for one in self.tasks:
            one.kill()
        await asyncio.gather(*self.tasks.values())

    async def open_pusher(self):
        log = {} if self.fsync is None else {"log": QueueLogConfig("jobs", fsync=self.fsync)}
        config = PusherConfig(
            ack_timeout=1.0, retry_delay=0.01, deliveries_max=4 if self.poison else 100,
            job_timeout=JOB_TIMEOUT_S,
        )  # fmt: skip
        with self.home:
            self.pusher = aio.Pusher(
                ENDPOINT, acknowledge=self.how, config=config if self.how == "each" else None, **log
            )
        if self.strangers:
            limits = {"hold_timeout": 0.6, "extend_max": 0.5, "reject_delay_max": 0.1, "pause": 0.1}
            with_limits(core_of(self.pusher).queue, **limits)

    async def push_all(self):
        """Push the jobs; one whose push was cut off may be accepted or not, and is not counted."""
        for number in range(JOBS):
            key = f"k{number % KEYS}" if self.how == "each" and number % 4 else None
            try:
                sequence = self.pusher.push(number, key)
                if self.fsync == "always":
                    await self.pusher.drain()
                self.accepted[number] = key
                self.pushed[number] = sequence, self.network.now
            except ClosedError:
                pass
            await self.network.sleep(self.rng.expovariate(50.0))

    def start(self, process, work):
        prefetch = 65_536 if process.process_name == "hoarder" else None
        with process:
            puller = aio.Puller(ENDPOINT, acknowledge=self.how, prefetch=prefetch)
        self.pullers[process] = puller
        self.tasks[process] = asyncio.create_task(work(process, puller))

    async def work(self, process, puller):
        try:
            while True:
                job = await puller.receive()
                hold = Hold(process, self.network.now)
                self.holds[job.value].append(hold)
                if job.value in self.poison:
                    self.ends.append(asyncio.create_task(self.end(process)))
                    await self.network.sleep(0.1)
                slow = 1.0 if self.rng.random() < self.hangs else 0.01
                await self.network.sleep(self.rng.expovariate(1.0 / slow))
                if hold.end is None:
                    self.answer(puller, job)
                    hold.stop(self.network.now)
        except ClosedError:
            pass

    def answer(self, puller, job):
        if self.how == "batch":
            puller.commit()
        elif self.rng.random() < self.rejects:
            job.reject("no", 0.0)
        elif self.rng.random() < self.discards:
            if job.discard("never"):
                self.discarded.add(job.value)
        else:
            job.ack()
            self.done[job.value] += 1

    async def do_nothing(self, process, puller):
        """Take jobs, and never do one."""
        hold_for_ever(puller)
        try:
            while True:
                job = await puller.receive()
                self.taken_by_strangers += 1
                if process.process_name == "rejecter":
                    job.reject("x" * 4096, 1e6)
                elif process.process_name == "extender":
                    job.extend(1e6)
                elif process.process_name == "flapper":
                    self.ends.append(asyncio.create_task(self.end(process, self.do_nothing)))
        except ClosedError:
            pass

    async def happen(self, fault, rate):
        while not self.is_pushed:
            await self.network.sleep(self.rng.expovariate(rate))
            await fault()

    async def kill_worker(self):
        await self.end(self.rng.choice(self.workers))

    async def end(self, process, work=None, *, leaves=False):
        """End a worker's process, or have it close its puller, and start it again."""
        if process in self.ending:
            return
        self.ending.add(process)
        await self.network.sleep(self.rng.uniform(0.0, 0.01))
        for hold in [hold for holds in self.holds.values() for hold in holds]:
            if hold.worker is process and hold.end is None:
                hold.stop(self.network.now)
        if leaves:
            await self.pullers[process].close()
        else:
            process.kill()
        await self.tasks[process]
        self.ending.remove(process)
        self.start(process, work or self.work)

    async def leave(self):
        """Have a worker close its puller, and start again."""
        await self.end(self.rng.choice(self.workers), leaves=True)

    async def part(self):
        self.network.partition(self.home, self.rng.choice(self.workers), self.rng.uniform(0.1, 3.0))

    async def kill_pusher(self):
        async with self.is_home_free:
            self.home.kill()
            await self.network.sleep(self.rng.uniform(0.0, 0.3))
            await self.open_pusher()

    async def crash(self):
        """End the pusher's machine: what was not synced is gone, or the end of it."""
        async with self.is_home_free:
            self.home.kill()
            crashed = self.network.now
            with self.home:
                here().queue_disks["jobs"].crash(self.rng)
            await self.network.sleep(self.rng.uniform(0.0, 0.3))
            await self.open_pusher()
        known = core_of(self.pusher).queue.store.find
        for number in self.accepted.keys() - self.done.keys():
            sequence, pushed = self.pushed[number]
            if known(sequence) is None:
                assert self.fsync != "always", f"job {number} was on the disk"
                assert pushed > crashed - SYNCED_S, f"job {number} was to be on the disk"
                del self.accepted[number]

    def check(self):
        forgotten = self.accepted.keys() - self.holds.keys()
        assert not forgotten, f"forgotten: {forgotten}"
        if self.how == "each":
            assert self.dead == self.discarded | (self.poison & self.accepted.keys())
            forgotten = self.accepted.keys() - self.done.keys() - self.dead
            assert not forgotten, f"never acknowledged: {forgotten}"
        for key in {*self.accepted.values()} - {None}:
            numbers = [number for number, each in self.accepted.items() if each == key]
            begun = [self.holds[number][0].begin for number in numbers]
            assert begun == sorted(begun), f"{key} out of order"
            holds = sorted((h for n in numbers for h in self.holds[n]), key=lambda hold: hold.begin)
            if not (self.network.frames.lost or self.pusher_ends):
                for before, after in pairwise(holds):
                    assert before.end <= after.begin, f"{key} with two workers"


@pytest.mark.rounds(2, 200)
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_each_job_is_done_and_keys_keep_their_order(faults, rounds):
    taken_by_strangers = accepted = 0
    for seed in range(rounds):
        world = World(seed, **faults)
        try:
            asyncio.run(world.run())
            world.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        accepted += bool(world.accepted)  # rarely all is refused, or its pusher is down
        taken_by_strangers += world.taken_by_strangers
    assert accepted > rounds // 2
    assert bool(taken_by_strangers) == ("strangers" in faults)
