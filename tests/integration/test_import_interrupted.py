"""A signal handler that raises while the package is imported."""

import os
import random
import subprocess
import sys

import pytest

FORKS = 20
PROGRAM = """
import os, random, signal, sys

def interrupt(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
rng, counts = random.Random(int(sys.argv[1])), {}
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 0.05))
            try:
                from p2pmsg.codec import chosen
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            chosen.make_decoder(list[list[int] | None])
        except KeyboardInterrupt:
            try:  # once more, as a program may that has caught it
                from p2pmsg.codec import chosen
                chosen.make_decoder(list[list[int] | None])
            finally:
                os._exit(2)
        os._exit(0)
    rng.random()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    counts[status] = counts.get(status, 0) + 1
print(counts)
"""


@pytest.mark.long
def test_an_interrupted_import_of_the_codec_does_not_end_the_process_by_a_fault():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(random.randrange(2**32)), str(FORKS)],
        capture_output=True, text=True, timeout=90, check=True,
        env=os.environ | {"P2PMSG_CODEC": ""},
    )  # fmt: skip
    counts = eval(run.stdout)  # a dict that the program above has printed
    assert not [status for status in counts if status < 0], counts
    assert counts.get(2, 0) > FORKS // 10  # the quicker the machine, the fewer
