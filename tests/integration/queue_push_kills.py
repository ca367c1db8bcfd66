"""Kills pushers at full rate: `python -m …queue_push_kills FOLDER FSYNC THREADS ROUNDS SEED`.

Each round a process opens the log and pushes from several threads as fast as it can, and writes to
a pipe what `push` returned, after it returned. It is killed at a random moment. Then each job that
`push` returned for must be in the log with its value, and no sequence may have been given twice.
It prints what it saw as JSON.
"""

import fcntl
import json
import os
import select
import signal
import struct
import sys
import threading
import time
from random import Random

import p2pmsg
from p2pmsg.queue import QueueLogConfig
from p2pmsg.queue.journal.file import read_log
from tests.queues import segments, small_segments

_RETURNED = struct.Struct("!QIQ")  # sequence, thread, number
_CONFIG = p2pmsg.queue.PusherConfig(in_flight_max=10**9, in_flight_bytes_max=2**40)


def push(folder, fsync, threads, report):
    """Push until killed."""
    log = QueueLogConfig(directory=folder, fsync=fsync)
    with small_segments(2**20):
        pusher = p2pmsg.Pusher("tcp://127.0.0.1:0", log=log, config=_CONFIG)
    first = time.monotonic_ns()

    def run(thread):
        number = first
        while True:
            number += 1
            key = f"k{number % 7}" if number % 5 == 0 else None
            sequence = pusher.push([thread, number], key=key)
            os.write(report, _RETURNED.pack(sequence, thread, number))

    others = [threading.Thread(target=run, args=(n,)) for n in range(1, threads)]
    for other in others:
        other.start()
    run(0)


def kill_one(folder, fsync, threads, rng):
    """Let a process push, and kill it; return (sequence, thread, number) of what was returned."""
    said, report = os.pipe()
    fcntl.fcntl(report, fcntl.F_SETPIPE_SZ, 2**20)
    process = os.fork()
    if not process:
        try:
            os.close(said)
            push(folder, fsync, threads, report)
        finally:
            os._exit(1)
    os.close(report)
    if rng.random() < 0.9:
        select.select([said], [], [], 10)
    time.sleep(rng.uniform(0, 0.05))
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "the pusher failed by itself"
    with open(said, "rb") as pipe:
        said = pipe.read()
    return list(_RETURNED.iter_unpack(said[: len(said) // _RETURNED.size * _RETURNED.size]))


def check(folder, returned):
    """Return how many jobs are in the log beyond those that were returned."""
    state = read_log(folder)
    gone = [sequence for sequence in returned if sequence not in state.open]
    assert not gone, f"{len(gone)} of {len(returned)} jobs are gone: {gone[:5]}…"
    for sequence, value in returned.items():
        found = p2pmsg.queue.dead_letters._decode(state.open[sequence].payload)
        assert tuple(found) == value, f"sequence {sequence} is {found}, and was {value}"
    assert state.next_sequence > max(returned, default=-1)
    return len(state.open) - len(returned)


def main(folder, fsync, threads, rounds, seed):
    rng, returned = Random(int(seed)), {}
    more = 0
    for _ in range(int(rounds)):
        for sequence, thread, number in kill_one(folder, fsync, int(threads), rng):
            assert sequence not in returned, f"sequence {sequence} was given twice"
            returned[sequence] = (thread, number)
        if segments(folder):
            more = check(folder, returned)
    print(json.dumps({"returned": len(returned), "more": more}))


if __name__ == "__main__":
    main(*sys.argv[1:])
