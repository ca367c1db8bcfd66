"""Programs that end without closing their peers: everything is sent, and nothing aborts."""

import os
import subprocess
import sys

import pytest

import p2pmsg
from p2pmsg.statsd.totals import ExactTotals
from recovery.log import LogWriter
from tests.integration.peers import LOOPBACK, ROOT, eventually, take
from tests.integration.statsd_tools import collecting
from tests.places import free_port
from tests.unit.transports.sockets import socket_opener
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
CLOSED = PUBLISH + "publisher.close(timeout=1)\n"
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


LATE = """
client = p2pmsg.metrics.Client("udp://127.0.0.1:9")
atexit.register(client.increment, "late", 5)
"""


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
def test_a_client_that_is_first_used_at_exit_needs_no_thread(run, python):
    finish(run(python, "import p2pmsg.metrics\n" + LATE))


COLLECT = """
import time
from p2pmsg.statsd import Collector
collector = Collector("udp://127.0.0.1:0", exact=sys.argv[1], state=sys.argv[2], interval=1000.0)
while not collector.totals().counters:
    time.sleep(0.01)
print("counted", flush=True)
sys.stdin.readline()
raise SystemExit(0)
"""


@pytest.mark.long
def test_a_collector_that_is_not_closed_ends_silently_and_keeps_its_state(run, tmp_path):
    with p2pmsg.metrics.Client(LOOPBACK, interval=0.0) as client:
        client.increment("orders", 7)
        child = run(sys.executable, COLLECT, client.endpoint, str(tmp_path / "state"))
        assert child.stdout.readline() == "counted\n"
        finish(child)
    assert ExactTotals.decode((tmp_path / "state").read_bytes(), 10).counters == {"orders": 7}


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


LOOPS = """
import asyncio, threading
from p2pmsg import aio
from p2pmsg.aio import metrics
publisher = p2pmsg.Publisher("tcp://127.0.0.1:0")
app = p2pmsg.App()
@app.subscriber(publisher.endpoint)
async def on_message(value): pass
@app.worker("tcp://127.0.0.1:9")
async def on_job(value): pass
@app.responder("tcp://127.0.0.1:0", "t")
async def on_request(value): pass
ready = threading.Event()
async def main():
    peers = [
        aio.Publisher("tcp://127.0.0.1:0"),
        aio.Subscriber(publisher.endpoint),
        aio.Subscriber(publisher.endpoint),
        aio.Pusher("tcp://127.0.0.1:0"),
        aio.Puller("tcp://127.0.0.1:9"),
        aio.Pusher("tcp://127.0.0.1:0", mode="pipeline"),
        aio.Puller("tcp://127.0.0.1:9", mode="pipeline"),
        aio.Requester("tcp://127.0.0.1:9"),
        aio.Responder("tcp://127.0.0.1:0", {"t": abs}),
        aio.Relay("tcp://127.0.0.1:9", "tcp://127.0.0.1:0"),
        metrics.Client("tcp://127.0.0.1:0"),
    ]
    waits = [peers[1].receive(), peers[4].receive(), peers[7].request("t", timeout=600.0)]
    asyncio.get_running_loop().call_soon(ready.set)
    await asyncio.gather(*waits)
responder = p2pmsg.Responder("tcp://127.0.0.1:0", {"t": abs})
one, two = p2pmsg.Requester("tcp://127.0.0.1:9"), p2pmsg.Requester(["tcp://127.0.0.1:9"] * 2)
for work, *arguments in (
    [app.run], [asyncio.run, main()], [responder.serve], [one.request, "t"],
    [one.request_all, "t"], [two.request, "t"], [two.request_all, "t"],
):
    threading.Thread(target=work, args=arguments, daemon=True).start()
ready.wait(60)
publisher.wait_for_subscribers(3, 60)
"""


@pytest.mark.long
def test_loops_and_requests_in_daemon_threads_are_not_complained_of(run):
    finish(run(sys.executable, LOOPS))


LEFT = """
peers = [p2pmsg.Publisher("tcp://127.0.0.1:0"), p2pmsg.Subscriber("tcp://127.0.0.1:9")]
p2pmsg.Publisher("tcp://127.0.0.1:0").close()
del peers
"""


@pytest.mark.long
def test_what_was_left_open_is_named_where_resource_warnings_are_shown():
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", f"import p2pmsg\n{LEFT}"],
        capture_output=True, text=True, timeout=60, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0
    assert "ResourceWarning: 2 not closed when the program ended: <" in done.stderr
    assert "<Publisher " in done.stderr
    assert "Traceback" not in done.stderr


RELAY = """
import time
from p2pmsg import LogConfig
relay = p2pmsg.Relay(sys.argv[1], "tcp://127.0.0.1:0", log=LogConfig(sys.argv[2]))
print(relay.endpoint, flush=True)
relay.wait_for_subscribers(1, 60)
print("joined", flush=True)
while relay.stats().received < 20_000:
    time.sleep(0.01)
"""


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
def test_what_a_relay_received_before_its_program_ended_is_served_and_logged(
    run, make_publisher, make_subscriber, tmp_path, python
):
    publisher = make_publisher()
    child = run(python, RELAY, publisher.endpoint, str(tmp_path))
    subscriber = make_subscriber(child.stdout.readline().strip(), start="earliest")
    assert child.stdout.readline() == "joined\n"
    publisher.wait_for_subscribers(1, 60)
    publisher.publish_many("t", [b"%0100d" % n for n in range(20_000)])
    got = take(subscriber, 20_000)
    assert [message.value for message in got] == [b"%0100d" % n for n in range(20_000)]
    finish(child)
    assert_ended_cleanly(tmp_path)


def assert_ended_cleanly(path):
    writer = LogWriter(p2pmsg.LogConfig(path), session=1, now_ns=0)
    assert writer.opened.clean
    writer.release()


MOLD = """
feed = p2pmsg.moldudp64.MoldPublisher(sys.argv[1], session="S1", **eval(sys.argv[2]))
sys.stdin.readline()
for number in range(100):
    feed.publish(b"%d" % number)
"""


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
def test_a_mold_session_ends_with_its_program(run, make_subscriber, tmp_path, python):
    place = f"mold://239.255.11.7:{free_port()}?interface=127.0.0.1"
    log = f"{{'log': p2pmsg.LogConfig({str(tmp_path)!r})}}"
    child = run(python, MOLD, place, log)
    subscriber = make_subscriber(place, start="earliest", on_end="stop")
    finish(child)
    assert [m.value for m in take(subscriber, 100)] == [b"%d" % n for n in range(100)]
    with pytest.raises(p2pmsg.errors.SessionEndedError):
        subscriber.receive(60)
    assert_ended_cleanly(tmp_path)


SENT = 200
FRAME_BYTES = 8 * SHARED_BYTES
LEAVES = f"""
import transports
sender = transports.ZmqSender("tcp://127.0.0.1:0", context=transports.context())
print(sender.endpoint, flush=True)
while not sender.receive_subscriptions():
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
                frame = receiver.receive_wait(60_000)
                assert frame == b"%08d" % number + bytes([number]) * (FRAME_BYTES - 8), number
            assert child.wait(60) == 0
        finally:
            child.kill()


PROGRAM = """
import time
from transports import ZmqReceiver, ZmqSender, context
from p2pmsg.testing import TcpProxy

sender = ZmqSender("tcp://127.0.0.1:0", context=context(), queue_frames=64)
proxy = TcpProxy(sender.endpoint)
receiver = ZmqReceiver(proxy.endpoint, context=context(), queue_frames=64)
receiver.subscribe(b"")
receiver.connect()
while not sender.receive_subscriptions():
    time.sleep(0.01)
while sender.send(b"x" * 1000, wait_ms=50):
    pass
proxy.cut()
time.sleep(1.5)
received = 0
while receiver.receive_wait(300) is not None:
    received += 1
print("alive", received)
receiver.close()
sender.close()
proxy.close()
"""


@pytest.mark.long
def test_a_connection_reset_while_the_queue_is_full_does_not_abort_the_process():
    # libzmq issues 3937, 4364, 4767: with ZMTP heartbeats it does, hence transports has none.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["alive"]), done.stderr
