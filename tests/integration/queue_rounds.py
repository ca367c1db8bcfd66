"""Rounds of SIGKILL under load: `python -m tests.integration.queue_rounds FOLDER ROUNDS SEED`.

Forks a pusher with a log, and workers; kills one of them each round and starts another; then reads
what each of them wrote down, and checks it. The processes share CLOCK_MONOTONIC.
"""

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import p2pmsg
from p2pmsg.queue.journal.file import read_log

WORKERS = 3
KEYS = 12
SETTLE_S = 60.0


def pusher(folder, stop):
    """Push until `stop` exists, then wait until all is done."""
    book = os.open(folder / f"pushed-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = int(time.monotonic_ns())
    with p2pmsg.Pusher(
        f"ipc://{folder}/queue", log=folder / "log", in_flight_max=200, ack_timeout=10.0
    ) as made:
        while not stop.exists():
            key = random.choice((None, *(f"k{n}" for n in range(KEYS))))
            number += 1
            try:
                sequence = made.push([number, key], key=key, timeout=0.2)
            except TimeoutError:
                continue
            write(book, [sequence, key])
        made.join(timeout=SETTLE_S)
        stats = made.stats()
        assert stats.balanced, stats
        (folder / "stats").write_text(repr(stats))


def worker(folder):
    """Do jobs, and write down when each was begun and ended."""
    book = os.open(folder / f"worker-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rng = random.Random(os.getpid())
    with p2pmsg.Puller(f"ipc://{folder}/queue", prefetch=rng.choice((1, 4, 32))) as puller:
        for job in puller:
            with job:
                assert job.value[1] == job.key
                write(book, ["begin", job.sequence, job.key, time.monotonic_ns()])
                time.sleep(rng.expovariate(1 / 0.001))
                write(book, ["end", job.sequence, job.key, time.monotonic_ns()])


def write(book, entry):
    os.write(book, json.dumps(entry).encode() + b"\n")


def read(path):
    # One that was killed may have left half a line.
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def fork(role, *arguments):
    process = os.fork()
    if process == 0:
        status = 1
        try:
            role(*arguments)
            status = 0
        finally:
            os._exit(status)
    return process


def main(folder, rounds, seed):
    folder, rng = Path(folder), random.Random(seed)
    stop = folder / "stop"
    deaths = {}
    pushing = fork(pusher, folder, stop)
    workers = [fork(worker, folder) for _ in range(WORKERS)]
    time.sleep(0.3)
    for number in range(rounds):
        time.sleep(rng.uniform(0.0, 0.08))
        if number % 8 == 7:
            kill(pushing, deaths)
            pushing = fork(pusher, folder, stop)
        else:
            at = rng.randrange(WORKERS)
            kill(workers[at], deaths)
            workers[at] = fork(worker, folder)
    until = time.monotonic() + SETTLE_S
    while pushed_count(folder) <= rounds and time.monotonic() < until:
        time.sleep(0.1)  # a machine may be too slow to push between two kills
    stop.touch()
    status = os.waitstatus_to_exitcode(os.waitpid(pushing, 0)[1])
    for process in workers:
        kill(process, deaths)
    assert status == 0, f"the pusher ended with {status}"
    return check(folder, deaths)


def pushed_count(folder):
    return sum(len(read(path)) for path in folder.glob("pushed-*"))


def kill(process, deaths):
    deaths[process] = time.monotonic_ns()
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def check(folder, deaths):
    """Raise where a job was forgotten or a key's order was broken; return what there was."""
    pushed = {}
    for path in folder.glob("pushed-*"):
        for sequence, key in read(path):
            assert sequence not in pushed, f"sequence {sequence} was used twice"
            pushed[sequence] = key
    state = read_log(folder / "log")
    done, holds = Counter(), defaultdict(list)
    for path in folder.glob("worker-*"):
        begun = {}
        for what, sequence, key, at_ns in read(path):
            if what == "begin":
                begun[sequence] = at_ns
            else:
                done[sequence] += 1
                holds[key].append((begun.pop(sequence), at_ns, sequence))
        for sequence, at_ns in begun.items():
            died_ns = deaths[int(path.name.partition("-")[2])]
            holds[pushed.get(sequence)].append((at_ns, died_ns, sequence))
    assert not state.open, f"still open: {sorted(state.open)}"
    forgotten = pushed.keys() - done.keys() - state.dead.keys()
    assert not forgotten, f"forgotten: {sorted(forgotten)}"
    for key, entries in holds.items():
        if key is not None:
            check_key(key, sorted(entries))
    return {
        "pushed": len(pushed), "done": len(done), "twice": sum(n > 1 for n in done.values()),
        "dead": len(state.dead),
    }  # fmt: skip


def check_key(key, entries):
    for before, after in itertools.pairwise(entries):
        assert before[2] <= after[2], f"{key} out of order: {before} and {after}"
        assert before[1] <= after[0], f"{key} in two hands: {before} and {after}"


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
