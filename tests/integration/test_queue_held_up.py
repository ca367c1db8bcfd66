"""Workers in which nothing can run for longer than `ack_timeout`, and what they do late."""

import signal
import subprocess
import sys

import pytest

from tests.integration.peers import eventually

CHILD = """
import ctypes, sys, p2pmsg
with p2pmsg.Puller(sys.argv[1], prefetch=1) as puller:
    for job in puller:
        print("begun", flush=True)
        if job.value:
            ctypes.PyDLL(None).sleep(job.value)  # holds the interpreter, as a long `re` does
        else:
            sys.stdin.readline()
        print(job.ack(), flush=True)
"""


@pytest.fixture
def make_worker(opened):
    def make(endpoint):
        process = opened.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", CHILD, endpoint], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
        opened.callback(process.kill)
        return process

    return make


def test_a_handler_that_lets_nothing_else_run_keeps_its_job(make_pusher, make_puller, make_worker):
    pusher = make_pusher(ack_timeout=0.5)
    worker = make_worker(pusher.endpoint)
    make_puller(pusher.endpoint)  # it would get what is taken from the other one

    def keeps():
        before = pusher.stats().delivered
        pusher.push(2)
        assert worker.stdout.readline() == "begun\n"
        worker.stdout.readline()
        pusher.join(timeout=60)
        return pusher.stats().delivered == before + 1

    # Where the machine holds all of that process up for so long, it was silent.
    assert any(keeps() for _ in range(10))


@pytest.mark.parametrize("deliveries_max", [1, 2])
def test_what_a_stopped_worker_did_is_no_dead_letter(make_pusher, make_worker, deliveries_max):
    pusher = make_pusher(ack_timeout=0.5, deliveries_max=deliveries_max)
    worker = make_worker(pusher.endpoint)
    pusher.push(None)
    assert worker.stdout.readline() == "begun\n"
    worker.send_signal(signal.SIGSTOP)
    eventually(lambda: pusher.stats().failed == 1)
    assert len(pusher.dead_letters()) == (deliveries_max == 1)

    worker.send_signal(signal.SIGCONT)
    print(file=worker.stdin, flush=True)
    eventually(lambda: pusher.stats().done == 1)
    assert len(pusher.dead_letters()) == 0
    pusher.join(timeout=60)
