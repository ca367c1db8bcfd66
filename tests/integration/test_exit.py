"""Programs that end without closing their peers: everything is sent, and nothing aborts."""

import os
import subprocess
import sys

import pytest

import p2pmsg
from tests.integration.peers import LOOPBACK, ROOT, eventually, take
from tests.integration.statsd_tools import collecting
from tests.unit.transports.sockets import socket_opener, taken
from transports import ZmqReceiver
from transports.zmq_frame import SHARED_BYTES

PYTHONS = [sys.executable, *os.environ.get("P2PMSG_PYTHONS", "").split()]
REFUSE = """
import atexit, threading
def refuse():
    def start(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    threading.Thread.start = start
"""


@pytest.fixture(
    params=[pytest.param(False, marks=pytest.mark.long), True], ids=["", "no threads at exit"]
)
def run(request, opened):
    """Start a program that prints its endpoint; returns the process."""

    def start(python, program, *arguments):
        code = REFUSE + "import sys, p2pmsg\n" + program
        if request.param:
            code += "\natexit.register(refuse)\n"
        child = subprocess.Popen(
            [python, "-c", code, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        opened.callback(child.communicate)
        opened.callback(child.kill)
        return child

    return start


def finish(child, errors=""):
    """Let a program end; check that it did, silently."""
    output, complaints = child.communicate("go\n", timeout=60)
    assert (child.returncode, complaints) == (0, errors), complaints
    return output


PUBLISH = """
publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", config=p2pmsg.PublisherConfig(linger=5.0))
print(publisher.endpoint, flush=True)
publisher.wait_for_subscribers(1, 60)
for number in range(20_000):
    publisher.publish("t", b"%0100d" % number)
"""
CLOSED = PUBLISH + "publisher.close(timeout=60)\n"
FORGOTTEN = (
    """
def main():
    global print
"""
    + "".join(f"    {line}\n" for line in PUBLISH.splitlines())
    + "main()\n"
)


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("program", [PUBLISH, CLOSED, FORGOTTEN], ids=["open", "closed", "local"])
def test_what_a_program_published_before_it_ended_arrives(run, make_subscriber, python, program):
    child = run(python, program)
    subscriber = make_subscriber(child.stdout.readline().strip(), start="earliest")
    got = take(subscriber, 20_000)
    assert [message.value for message in got] == [b"%0100d" % n for n in range(20_000)]
    finish(child)


PUSH = """
pusher = p2pmsg.Pusher("tcp://127.0.0.1:0")
print(pusher.endpoint, flush=True)
sys.stdin.readline()
for number in range(100):
    pusher.push(number)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_jobs_of_a_program_that_ends_are_done(run, opened, python):
    child = run(python, PUSH)
    puller = opened.enter_context(p2pmsg.Puller(child.stdout.readline().strip()))
    child.stdin.write("go\n")
    child.stdin.flush()
    done = []
    while len(done) < 100:
        with puller.receive(timeout=60) as job:
            done.append(job.value)
    assert done == list(range(100))
    finish(child)


PULL = """
puller = p2pmsg.Puller(sys.argv[1])
for number in range(10):
    puller.receive(timeout=60).ack()
print("done", flush=True)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_what_a_worker_acknowledged_before_it_ended_is_acknowledged(run, opened, python):
    pusher = opened.enter_context(p2pmsg.Pusher(LOOPBACK))
    for number in range(20):
        pusher.push(number)
    child = run(python, PULL, pusher.endpoint)
    assert child.stdout.readline() == "done\n"
    finish(child)
    eventually(lambda: pusher.stats().done == 10)
    with p2pmsg.Puller(pusher.endpoint) as other:
        for _ in range(10):
            other.receive(timeout=60).ack()
        eventually(lambda: pusher.stats().done == 20)


SUBSCRIBE = """
where, cursor = sys.argv[1:]
subscriber = p2pmsg.Subscriber(where, cursor=cursor, commit_interval=60.0, start="earliest")
for number in range(10):
    subscriber.receive(60)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_a_subscriber_that_is_not_closed_commits_and_says_that_it_leaves(
    run, make_publisher, cursor_path, python
):
    publisher = make_publisher()
    publisher.publish_many("t", list(range(100)))
    finish(run(python, SUBSCRIBE, publisher.endpoint, str(cursor_path)))
    eventually(lambda: publisher.stats().subscribers == 0)
    with p2pmsg.Subscriber(publisher.endpoint, cursor=cursor_path) as subscriber:
        assert subscriber.receive(60).value == 9  # what was in hand comes again


COUNT = """
import p2pmsg.metrics
client = p2pmsg.metrics.Client("tcp://127.0.0.1:0", interval=60.0)
print(client.endpoint, flush=True)
sys.stdin.readline()
client.increment("orders", 7)
atexit.register(client.increment, "late", 5)
"""


@pytest.mark.parametrize("python", PYTHONS)
def test_what_a_program_counted_before_it_ended_arrives(run, python):
    child = run(python, COUNT)
    with collecting(exact=child.stdout.readline().strip()) as (collector, _):
        eventually(lambda: collector.totals().clients)
        finish(child)
        eventually(lambda: collector.totals().counters == {"orders": 7, "late": 5})


DAEMON = """
import threading
publisher = p2pmsg.Publisher("tcp://127.0.0.1:0")
subscriber = p2pmsg.Subscriber(publisher.endpoint)
puller = p2pmsg.Puller("tcp://127.0.0.1:9")
def publish():
    while True:
        publisher.publish("t", 1)
threading.Thread(target=publish, daemon=True).start()
threading.Thread(target=subscriber.receive, daemon=True).start()
threading.Thread(target=puller.receive, daemon=True).start()
"""


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
def test_daemon_threads_at_work_are_not_complained_of(run, python):
    finish(run(python, DAEMON))


SENT = 200
FRAME_BYTES = 8 * SHARED_BYTES
LEAVES = f"""
import transports
sender = transports.ZmqSender("tcp://127.0.0.1:0", context=transports.context())
print(sender.endpoint, flush=True)
while not sender.take_subscriptions():
    pass
for number in range({SENT}):
    frame = b"%08d" % number + bytes([number]) * {FRAME_BYTES - 8}
    assert sender.send(transports.make_zmq_frame(frame) if number % 2 else frame)
sender.close(linger_ms=60_000)
print("leaving", flush=True)
"""


@pytest.fixture
def open_socket():
    with socket_opener() as opener:
        yield opener


@pytest.mark.long
def test_large_frames_leave_unharmed_after_the_program_has_ended(open_socket):
    # glibc overwrites with this what is freed, so that a frame freed too early shows.
    environment = {**os.environ, "MALLOC_PERTURB_": "165"}
    command = [sys.executable, "-c", LEAVES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        try:
            endpoint = child.stdout.readline().strip()
            receiver = open_socket(ZmqReceiver, endpoint, queue_frames=1)
            receiver.subscribe(b"")
            receiver.connect()
            assert child.stdout.readline() == "leaving\n"
            for number in range(SENT):
                frame = taken(receiver)
                assert frame == b"%08d" % number + bytes([number]) * (FRAME_BYTES - 8), number
            assert child.wait(60) == 0
        finally:
            child.kill()
