"""Workers that die, hang, fall silent or lie; connections that are cut."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import zmq

import p2pmsg
from p2pmsg.queue.frames import Report
from p2pmsg.testing.proxy import TcpProxy
from p2pmsg.wire import Kind, control_frame
from tests.integration.commands import eventually
from tests.integration.inside import line_of
from tests.integration.peers import work_until

CHILD = """
import sys, time, p2pmsg
with p2pmsg.Puller(sys.argv[1]) as puller:
    for job in puller:
        print(job.value, flush=True)
        time.sleep(60)
"""


@pytest.fixture
def make_worker(opened):
    def make(endpoint):
        process = subprocess.Popen(
            [sys.executable, "-c", CHILD, endpoint], stdout=subprocess.PIPE, text=True
        )
        opened.callback(process.stdout.close)
        opened.callback(process.wait, 10)
        opened.callback(process.kill)
        return process

    return make


def test_a_killed_worker_gives_its_job_back_at_once(make_pusher, make_puller, make_worker):
    pusher = make_pusher()  # with the ack_timeout of 30 s
    worker = make_worker(pusher.endpoint)
    pusher.push("keyed", key="k")
    worker.stdout.readline()
    puller = make_puller(pusher.endpoint)
    worker.kill()

    job = puller.receive(timeout=10)
    assert (job.value, job.delivery_count) == ("keyed", 2)
    assert job.last_reason == "process ended"
    job.ack()


def test_a_silent_worker_gives_its_job_back_after_ack_timeout(
    make_pusher, make_puller, make_worker
):
    pusher = make_pusher(ack_timeout=0.5)
    worker = make_worker(pusher.endpoint)
    pusher.push("job", key="k")
    worker.stdout.readline()
    os.kill(worker.pid, signal.SIGSTOP)
    puller = make_puller(pusher.endpoint)

    job = puller.receive(timeout=10)
    assert job.last_reason == "silent for ack_timeout"
    job.ack()


def test_a_busy_worker_keeps_its_job_beyond_ack_timeout(make_pusher, make_puller):
    pusher = make_pusher(ack_timeout=0.3)
    puller = make_puller(pusher.endpoint)
    pusher.push(1)
    with puller.receive(timeout=5) as job:
        time.sleep(1.0)
    pusher.drain(timeout=5)

    assert job.state == "acked"
    assert pusher.stats().delivered == 1


def test_cut_connections_lose_nothing(make_pusher, opened):
    pusher = make_pusher(in_flight_max=100)
    proxy = opened.enter_context(TcpProxy(pusher.endpoint))
    done, stop = [], threading.Event()

    def work():
        with p2pmsg.Puller(proxy.endpoint) as puller:
            work_until(stop, puller, lambda job: done.append(job.value))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    proxy.cut_every(0.15)
    for number in range(1500):
        pusher.push(number, key=f"k{number % 7}" if number % 2 else None, timeout=20)
        time.sleep(0.0005)
    proxy.stop_cutting()
    pusher.drain(timeout=60)
    stop.set()
    for thread in threads:
        thread.join()

    assert set(done) == set(range(1500))
    assert proxy.cuts > 3
    for key in range(7):
        firsts = list(dict.fromkeys(n for n in done if n % 2 and n % 7 == key))
        assert firsts == sorted(firsts)


def test_garbage_and_lies_change_nothing(make_pusher, make_puller):
    pusher = make_pusher()
    puller = make_puller(pusher.endpoint)
    pusher.push(1)
    job = puller.receive(timeout=5)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 1000)
        stranger.connect(pusher.endpoint)
        claim = Report([(0, 2**62), (job.delivery, job.delivery + 1)])
        stranger.send(control_frame(Kind.QUEUE_REPORT, 1, claim, sequence=1))
        stranger.send(control_frame(Kind.QUEUE_REPORT, line_of(puller).id, claim, sequence=9))
        stranger.send(control_frame(Kind.QUEUE_HELLO, 1, [1, 2]))
        for size in range(200):
            stranger.send(os.urandom(size))
        stranger.send_multipart([b"a", b"b"])
        eventually(lambda: sum(pusher.stats().frames_invalid.values()) >= 202)

    assert pusher.stats().in_flight == 1
    job.ack()
    pusher.drain(timeout=5)


def test_a_worker_that_rejects_everything_is_stopped(make_pusher, make_puller, caplog):
    config = p2pmsg.PusherConfig(
        queue=p2pmsg.QueueConfig(
            retry_delay_ms=0, deliveries_max=1000,
            breaker=p2pmsg.BreakerConfig(failures_max=10, pause_ms=200),
        )
    )  # fmt: skip
    pusher = make_pusher(config=config)
    puller = make_puller(pusher.endpoint, prefetch=1)
    pusher.push(1)
    for _ in range(10):
        job = puller.receive(timeout=5)
        rejected = time.monotonic()
        job.reject("no")

    puller.receive(timeout=10).ack()
    assert time.monotonic() - rejected > 0.15
    assert pusher.stats().breaker_trips == 1
    assert "10 jobs in a row failed" in caplog.text
    eventually(lambda: pusher.stats().breaker == "closed")
