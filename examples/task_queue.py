"""A work queue whose workers are killed while it runs: no job is lost.

    python examples/task_queue.py [ENDPOINT]

Three workers square numbers; every 0.3 s one of them is killed with SIGKILL, and another started.
"""

import ctrl_c

import multiprocessing
import random
import time

from arguments import optional

import p2pmsg

JOBS = 600
KILLS = 6
WORKERS = 3


def work(place: str) -> None:
    """Do jobs until somebody ends this process."""
    with p2pmsg.Puller(place) as puller:
        for job in puller:
            with job:  # acknowledged at the end of the block, rejected if it raises
                time.sleep(random.uniform(0.0, 0.01))  # … the work


def start_worker(place: str) -> multiprocessing.Process:
    """Start a worker in a process of its own."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=[place], daemon=True)
    with ctrl_c.held():
        process.start()
    return process


def main(place: str) -> None:
    """Push, kill, wait."""
    with p2pmsg.Pusher(place) as pusher:
        workers = [start_worker(pusher.endpoint) for _ in range(WORKERS)]
        while len(pusher.stats().workers) < WORKERS:
            time.sleep(0.05)
        for number in range(JOBS):
            pusher.push(number)
        for _ in range(KILLS):
            time.sleep(0.3)
            victim = workers.pop(0)
            victim.kill()
            victim.join()
            workers.append(start_worker(pusher.endpoint))
            stats = pusher.stats()
            print(f"killed a worker: {stats.done} done, {stats.in_flight} to do, "
                  f"{stats.taken_back} taken back so far")  # fmt: skip
        pusher.join(timeout=60)
        stats = pusher.stats()
        print(f"{stats.done} of {JOBS} done, {stats.delivered} deliveries, {stats.dead} dead")
        for worker in workers:
            worker.terminate()
            worker.join()


if __name__ == "__main__":
    ctrl_c.run(main, optional(__doc__, "ENDPOINT", "tcp://127.0.0.1:5557"))
