"""`Puller.run`: a function for each job; failures end nothing, signals let a job finish."""

import logging
import signal
import subprocess
import sys
import threading

import pytest

import p2pmsg
from tests.integration.peers import eventually

FAST = p2pmsg.queue.PusherConfig(retry_delay=0.001, ack_timeout=5.0)


@pytest.fixture
def queue(make_pusher, make_puller):
    pusher = make_pusher(config=FAST)
    return pusher, make_puller(pusher.endpoint)


def test_a_failing_job_is_tried_again_and_others_go_on(queue, caplog):
    pusher, puller = queue
    for number in range(3):
        pusher.push(number)
    attempts = []

    def work(job):
        attempts.append((job.value, job.delivery_count))
        if job.value == 1 and job.delivery_count < 3:
            raise ValueError("not yet")

    puller.run(work, count=5)

    assert sorted(attempts) == [(0, 1), (1, 1), (1, 2), (1, 3), (2, 1)]
    pusher.join(timeout=60)
    assert pusher.stats().done == 3
    assert len([record for record in caplog.records if "job 1 failed" in record.message]) == 2
    assert caplog.records[0].exc_info[0] is ValueError


def test_a_callable_decides_and_what_it_leaves_is_rejected(queue):
    pusher, puller = queue
    pusher.push("never")
    pusher.push("later")
    asked = []

    def decide(job, error):
        asked.append((job.value, type(error)))
        if job.value == "never":
            job.discard("no use")

    def work(job):
        if job.delivery_count == 1:
            raise OSError("away")

    puller.run(work, on_error=decide, count=3)

    assert asked == [("never", OSError), ("later", OSError)]
    pusher.join(timeout=60)
    assert (pusher.stats().done, pusher.stats().dead) == (1, 1)


def test_stop_raises_what_the_handler_raised_and_the_job_is_rejected(queue):
    pusher, puller = queue
    pusher.push(0)

    with pytest.raises(ZeroDivisionError):
        puller.run(lambda job: 1 / job.value, on_error="stop")

    job = puller.receive(timeout=60)
    assert (job.delivery_count, job.last_reason) == (2, "ZeroDivisionError: division by zero")
    job.ack()


def test_several_threads_work_at_once(queue):
    pusher, puller = queue
    for number in range(4):
        pusher.push(number)
    all_here = threading.Barrier(4)

    puller.run(lambda job: all_here.wait(60), threads=4, count=4)

    pusher.join(timeout=60)
    assert pusher.stats().done == 4


def test_a_handler_may_close_its_puller(queue):
    pusher, puller = queue
    pusher.push(1)

    puller.run(lambda job: (job.ack(), puller.close()))

    eventually(lambda: pusher.stats().done == 1)


def test_only_one_run_at_a_time(queue):
    pusher, puller = queue
    pusher.push(1)

    def work(job):
        with pytest.raises(p2pmsg.ClosedError, match="another call of run"):
            puller.run(print)

    puller.run(work, count=1)


async def nothing(job):
    """An async handler, which is for `p2pmsg.App`."""


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"handler": None}, "handler"),
        ({"handler": nothing}, "handler"),
        ({"on_error": "ignore"}, "on_error"),
        ({"threads": 0}, "threads"),
        ({"count": 0}, "count"),
    ],
)
def test_a_wrong_argument_is_named(queue, arguments, field):
    with pytest.raises(p2pmsg.ConfigError) as refused:
        queue[1].run(**{"handler": print, **arguments})

    assert refused.value.field == field


def test_a_job_that_took_too_long_is_reported(make_pusher, make_puller, caplog):
    config = p2pmsg.PusherConfig(job_timeout=0.05, retry_delay=30.0)
    pusher = make_pusher(config=config)
    puller = make_puller(pusher.endpoint)
    pusher.push(1)

    with caplog.at_level(logging.WARNING, "p2pmsg"):
        puller.run(lambda job: eventually(lambda: job.state == "gone"), count=1)

    assert "job 0 is done, but is this worker's no more" in caplog.text


WORKER = """
import sys, time, p2pmsg
def work(job):
    print("begun", flush=True)
    time.sleep(0.3)
    print("done", flush=True)
with p2pmsg.Puller(sys.argv[1]) as puller:
    puller.run(work, threads=int(sys.argv[2]))
print("left", flush=True)
"""


@pytest.mark.parametrize(("number", "threads"), [(signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_signal_lets_the_job_in_hand_finish(make_pusher, number, threads):
    pusher = make_pusher(config=FAST)
    pusher.push(1)
    command = [sys.executable, "-c", WORKER, pusher.endpoint, str(threads)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout.readline() == "begun\n"
            child.send_signal(number)
            assert child.stdout.read() == "done\nleft\n"
            assert child.wait(60) == 0
        finally:
            child.kill()

    eventually(lambda: pusher.stats().done == 1)
