"""A pipeline, 1 pusher and 2 pullers, against raw PUSH/PULL without confirmations."""

import time
from collections.abc import Iterator
from dataclasses import replace

import p2pmsg
from tests.bench.harness import Plan
from tests.bench.loads import TrialError
from tests.bench.queue import measure_jobs
from tests.bench.queue_peers import LOOPBACK, OURS_QUEUE, RAW_QUEUE, STOP, OursSource
from tests.bench.report import Goal, Row

AREA = "reach"
JOBS = Goal(AREA, "jobs/s of a pipeline, 1 pusher, 2 pullers, against raw PUSH/PULL", "jobs/s",
            1.5, 3)  # fmt: skip


class PipelineSource(OursSource):
    def make(self) -> p2pmsg.queue.PipelinePusher:
        return p2pmsg.queue.PipelinePusher(LOOPBACK)

    def count(self) -> int:
        return len(self.pusher.stats().pullers)

    def stop(self, workers: int) -> None:
        self.pusher.drain(timeout=30)
        for left in range(workers - 1, -1, -1):
            self.pusher.push(STOP)
            deadline = time.monotonic() + 10
            while self.count() > left:
                if time.monotonic() > deadline:
                    raise TrialError("a puller did not stop")
                time.sleep(0.0005)


class PipelineSink:
    def __init__(self, endpoint: str) -> None:
        self.puller = p2pmsg.queue.PipelinePuller(endpoint)

    def work(self) -> tuple[int, int]:
        """Do jobs until asked to stop: how many, and the sum of their sizes."""
        count = total = 0
        for job in self.puller:
            value = job.value
            if value == STOP:
                break
            count += 1
            total += len(value)
        self.puller.commit()
        self.puller.close()
        return count, total

    def close(self) -> None:
        self.puller.close()


PIPELINE = replace(
    OURS_QUEUE, name="p2pmsg, a pipeline", open_sender=PipelineSource, open_receiver=PipelineSink
)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the row."""
    yield JOBS.guarded(
        lambda: JOBS.compared(
            lambda: measure_jobs(PIPELINE, plan), lambda: measure_jobs(RAW_QUEUE, plan),
            plan.run_count,
        )
    )  # fmt: skip
