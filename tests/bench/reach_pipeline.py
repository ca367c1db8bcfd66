"""Jobs by the batch, 1 pusher and 2 pullers, against raw PUSH/PULL without confirmations."""

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
JOBS = Goal(AREA, "jobs/s by the batch, 1 pusher, 2 pullers, against raw PUSH/PULL", "jobs/s",
            1.5, 3)  # fmt: skip


class BatchSource(OursSource):
    def make(self) -> p2pmsg.Pusher:
        return p2pmsg.Pusher(LOOPBACK, acknowledge="batch")

    def count(self) -> int:
        return len(self.pusher.stats().workers)

    def stop(self, workers: int) -> None:
        self.pusher.join(timeout=30)
        for left in range(workers - 1, -1, -1):
            self.pusher.push(STOP)
            deadline = time.monotonic() + 10
            while self.count() > left:
                if time.monotonic() > deadline:
                    raise TrialError("a puller did not stop")
                time.sleep(0.0005)


class BatchSink:
    def __init__(self, endpoint: str) -> None:
        self.puller = p2pmsg.Puller(endpoint, acknowledge="batch")

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


BATCHES = replace(
    OURS_QUEUE, name="p2pmsg, by the batch", open_sender=BatchSource, open_receiver=BatchSink
)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the row."""
    yield JOBS.guarded(
        lambda: JOBS.compared(
            lambda: measure_jobs(BATCHES, plan), lambda: measure_jobs(RAW_QUEUE, plan),
            plan.run_count,
        )
    )  # fmt: skip
