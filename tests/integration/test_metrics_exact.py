"""Exact metrics over real sockets: loss, cuts, restarts, kills, and what is undelivered."""

import contextlib
import errno
import json
import logging
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import p2pmsg
from p2pmsg import control, metrics, wire
from p2pmsg.errors import MessageTooLargeError
from p2pmsg.statsd.exact import StateFile
from p2pmsg.testing import TcpProxy
from p2pmsg.wire import Kind
from tests.endpoints import lasting_endpoint
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.statsd_tools import collecting

LOSS = 0.2
CHILDREN = (sys.executable, "-m", "tests.integration.statsd_children")


@contextlib.contextmanager
def child(role, *arguments):
    command, pipe = [*CHILDREN, role, *arguments], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def say_until(process, condition):
    """Read what a child says until it is so."""
    while True:
        line = process.stdout.readline()
        assert line, "the child has ended"
        said = json.loads(line)
        if condition(said):
            return said


def work(client, seed, calls):
    """Call the client at random; return what was counted."""
    rng = random.Random(seed)
    counted = {}
    for _ in range(calls):
        name, value = f"c{rng.randrange(5)}", rng.randrange(-3, 1000)
        client.increment(name, value, tags=[f"client:{seed}"])
        key = f"{name}|#client:{seed}"
        counted[key] = counted.get(key, 0) + value
        client.timing("t", rng.randrange(1000))
        if rng.random() < 0.01:
            time.sleep(0.001)
    return counted


def test_totals_are_exact_with_a_fifth_of_the_frames_lost_and_connections_cut(opened):
    calls = 600
    clients = [opened.enter_context(metrics.Client(LOOPBACK, interval=0.0)) for _ in range(3)]
    proxies = [
        opened.enter_context(TcpProxy(client.endpoint, frame_loss=LOSS, seed=seed))
        for seed, client in enumerate(clients)
    ]
    with collecting(exact=[proxy.endpoint for proxy in proxies]) as (collector, keep):
        for client in clients:
            client.wait_for_collectors(timeout=60)
        proxies[0].cut_every(0.05)
        with ThreadPoolExecutor(3) as pool:
            counted = list(pool.map(work, clients, range(3), [calls] * 3))
        eventually(lambda: proxies[0].cuts)
        proxies[0].stop_cutting()
        expected = {key: value for part in counted for key, value in part.items()}
        # The last of what each client sent is a time, after its last counter.
        eventually(lambda: collector.totals().statistics.get("ms t", [0])[0] == 3 * calls, 60)
        totals = collector.totals()
        collector.flush()
    assert totals.is_exact
    assert totals.counters == expected
    assert {key: keep.counts()[key] for key in expected} == expected
    assert all(keep.flushes[-1]["c", key]["total"] == value for key, value in expected.items())


@pytest.mark.rounds(1, 8)
def test_totals_go_on_exactly_after_the_collector_was_killed_again_and_again(tmp_path, rounds):
    state = str(tmp_path / "state")
    # In the end it would wait for the collector that was killed last.
    with metrics.Client(LOOPBACK, interval=0.0, close_timeout=0.1) as client:
        with TcpProxy(client.endpoint, frame_loss=LOSS, seed=3) as proxy:
            sent, stop = [0], threading.Event()

            def count():
                while not stop.is_set():
                    client.increment("hits")
                    client.increment("sum", sent[0])
                    sent[0] += 1
                    time.sleep(0.002)

            thread = threading.Thread(target=count)
            thread.start()
            reached = 0
            for _ in range(rounds):
                with child("collect", "0.05", state, proxy.endpoint) as process:
                    # It has to get further than the one before, and dies in the middle of it.
                    reached = say_until(
                        process,
                        lambda said, last=reached: said["counters"].get("hits", 0) > last + 100,
                    )["counters"]["hits"]
                    process.kill()
                    process.wait()
            stop.set()
            thread.join()
            with child("collect", "0.05", state, proxy.endpoint) as process:
                total = sum(range(sent[0]))  # its last part comes after the last hit
                said = say_until(process, lambda said: said["counters"].get("sum", 0) >= total)
    assert said["counters"] == {"hits": sent[0], "sum": total}
    assert said["lost"] == 0


def test_a_client_that_is_closed_and_one_that_comes_after_it_count_together(tmp_path):
    place = lasting_endpoint()
    with metrics.Client(place) as first:
        with collecting(exact=place, state=tmp_path / "s") as (collector, _):
            first.wait_for_collectors(timeout=60)
            first.increment("a", 3)
            first.close()
            with metrics.Client(place) as second:
                second.increment("a", 4)
                eventually(lambda: collector.totals().counters.get("a") == 7)
                eventually(lambda: collector.totals().is_exact)
    with metrics.Client(place) as third:
        third.increment("a", 5)
        with collecting(exact=place, state=tmp_path / "s") as (collector, _):
            eventually(lambda: collector.totals().counters.get("a") == 12)


class LoggedClient:
    """A client with a log in a process of its own, that is killed and started again."""

    def __init__(self, log):
        self.place, self.log = lasting_endpoint(), str(log)
        self.begun, self.done = set(), set()

    @contextlib.contextmanager
    def counting(self, count):
        """Count so many numbers more, then stay as long as the block takes, and be killed."""
        first = max(self.begun, default=-1) + 1
        span = (str(first), str(first + count))
        with child("count_with_log", self.place, self.log, *span) as process:
            say_until(process, lambda said: "endpoint" in said)
            yield process
            process.kill()
            for line in process.stdout:
                if line.endswith("}\n"):
                    self._note(json.loads(line))

    def follow(self, process, number):
        """Read what it says until it has counted so many in all."""
        while len(self.done) < number:
            self._note(say_until(process, bool))

    def _note(self, said):
        self.begun |= {said["begun"]} if "begun" in said else set()
        self.done |= {said["done"]} if "done" in said else set()

    def has_arrived(self, totals):
        """Whether all that was accepted is in the totals, and nothing twice."""
        assert set(totals.counters.values()) <= {1}
        numbers = {int(key[1:]) for key in totals.counters}
        assert numbers <= self.begun
        return self.done <= numbers


def wait_for_more(collector):
    taken = len(collector.totals().counters)
    eventually(lambda: len(collector.totals().counters) > taken)


@pytest.mark.long
@pytest.mark.parametrize("collector_is", ["there", pytest.param("late", marks=pytest.mark.long)])
@pytest.mark.rounds(2, 10)
def test_what_a_client_with_a_log_accepted_arrives_once_however_often_it_is_killed(
    tmp_path, opened, collector_is, rounds
):
    client = LoggedClient(tmp_path / "log")
    with client.counting(10_000) as process:
        client.follow(process, 50)
    proxy = opened.enter_context(TcpProxy(client.place, frame_loss=LOSS, seed=5))
    with contextlib.ExitStack() as stack:
        for number in range(rounds):
            if number == (0 if collector_is == "there" else rounds - 1):
                collector, _ = stack.enter_context(collecting(exact=proxy.endpoint))
            with client.counting(10_000) as process:
                client.follow(process, len(client.done) + 50)
                if collector_is == "there" and number % 2:
                    # An incarnation that is shorter than joining it takes repairs nothing, and
                    # what was missing for ten seconds is given up.
                    wait_for_more(collector)
        with client.counting(0):
            eventually(lambda: client.has_arrived(collector.totals()))
            eventually(lambda: collector.totals().is_exact)  # it has joined the client again
    assert len(client.done) >= 50 * (rounds + 1)


def test_gauges_and_totals_stand_as_they_were_after_a_restart(tmp_path):
    with metrics.Client(LOOPBACK, interval=0.0) as client:
        client.gauge("g", 5)
        client.increment("c", 2)
        with collecting(exact=client.endpoint, state=tmp_path / "s") as (collector, _):
            eventually(lambda: collector.totals().counters.get("c") == 2)
        with collecting(exact=client.endpoint, state=tmp_path / "s") as (collector, keep):
            collector.flush()
            client.gauge("g", -2, delta=True)
            client.increment("c")
            eventually(lambda: collector.totals().counters.get("c") == 3)
            collector.flush()
    first, second = keep.flushes[:2]
    assert (first["g", "g"]["value"], second["g", "g"]["value"]) == (5, 3)
    assert (first["c", "c"]["total"], second["c", "c"]["total"]) == (2, 3)
    assert (first["c", "c"]["count"], second["c", "c"]["count"]) == (0, 1)


def test_what_cannot_be_repeated_is_reported_with_its_range():
    config = p2pmsg.PublisherConfig(replay_bytes=4096)
    with metrics.Client(LOOPBACK, interval=0.0, config=config) as client:
        for _ in range(1000):
            client.increment("a")
        with collecting(exact=client.endpoint) as (collector, _):
            eventually(lambda: collector.totals().counters.get("a"))
            eventually(lambda: collector.totals().lost + collector.totals().counters["a"] == 1000)
            totals = collector.totals()
    assert not totals.is_exact
    (loss,) = totals.losses
    assert (loss.start, loss.stop - loss.start, loss.reason) == (0, totals.lost, "evicted")


@pytest.mark.parametrize("exact", [True, False])
def test_all_calls_arrive_over_both_channels(opened, exact):
    client_of = partial(metrics.Client, prefix="app", tags=["x:y"])
    if exact:
        client = opened.enter_context(client_of(LOOPBACK))
        collector, keep = opened.enter_context(collecting(exact=client.endpoint))
    else:
        collector, keep = opened.enter_context(collecting())
        client = opened.enter_context(client_of(collector.endpoints[0]))
    client.increment("c", 3)
    client.gauge("g", 5)
    client.gauge("g", -2, delta=True)
    client.gauge("n", -7)
    client.timing("t", 12.5)
    client.histogram("h", 3)
    client.distribution("d", 4)
    client.set_add("s", "ann")
    client.set_add("s", 7)
    with client.timed("block"):
        pass
    timed = client.timed("function")(lambda: 42)
    assert timed() == 42
    client.flush()
    eventually(lambda said=collector.stats: said().names >= 3 + 9)
    collector.flush()
    flushed = keep.flushes[0]
    assert flushed["c", "app.c|#x:y"]["count"] == 3
    assert flushed["g", "app.g|#x:y"]["value"] == 3
    assert flushed["g", "app.n|#x:y"]["value"] == -7
    assert flushed["ms", "app.t|#x:y"]["upper"] == 12.5
    assert flushed["h", "app.h|#x:y"]["sum"] == 3
    assert flushed["d", "app.d|#x:y"]["sum"] == 4
    assert flushed["s", "app.s|#x:y"]["count"] == 2
    assert flushed["ms", "app.block|#x:y"]["count"] == 1
    assert flushed["ms", "app.function|#x:y"]["count"] == 1


def test_a_statsd_server_that_is_away_fails_no_program():
    with metrics.Client("udp://127.0.0.1:9") as client:
        for _ in range(10):
            client.increment("a")
            client.flush()


@pytest.mark.parametrize("limit", [1024, 2**20])
def test_what_no_message_can_hold_is_refused_and_costs_nothing_else(limit):
    """With the publisher's limit, up to a byte more than it may have."""
    config = p2pmsg.PublisherConfig(message_bytes_max=limit)
    with metrics.Client(LOOPBACK, interval=60.0, config=config) as client:
        with collecting(exact=client.endpoint) as (collector, keep):
            client.increment("orders", 7)
            with pytest.raises(MessageTooLargeError, match=f"'urls' takes .* is {limit}"):
                for size in range(limit - 100, limit + 1):
                    client.set_add("urls", "x" * size)
            with pytest.raises(MessageTooLargeError, match="the metric 'calls"):
                client.increment("calls", tags=["x" * limit])
            client.increment("orders", 7)
            client.flush()
            eventually(lambda: collector.totals().counters == {"orders": 14})
            collector.flush()
    assert keep.flushes[0]["s", "urls"]["count"] == size - (limit - 100) > 0
    assert client.undelivered == 0


def test_a_state_that_is_none_is_refused(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"something else")
    with pytest.raises(p2pmsg.ConfigError, match="state must be a state file"):
        with collecting(exact=LOOPBACK.replace(":0", ":1"), state=path):
            pass
    with pytest.raises(p2pmsg.ConfigError, match="a folder that is there"):
        with collecting(exact=LOOPBACK.replace(":0", ":1"), state=tmp_path / "no" / "state"):
            pass


def test_a_state_has_one_collector_at_a_time(tmp_path):
    options = {"exact": LOOPBACK.replace(":0", ":1"), "state": tmp_path / "state"}
    with collecting(**options):
        with pytest.raises(p2pmsg.ConfigError, match="a file that no other collector has"):
            with collecting(**options):
                pass
    with collecting(**options):
        pass
    assert not (tmp_path / "state.tmp").exists()


def test_a_state_that_cannot_be_written_for_a_while_is_written_later(tmp_path, monkeypatch, caplog):
    state = tmp_path / "s"
    full = OSError(errno.ENOSPC, "No space left on device")
    with metrics.Client(LOOPBACK, interval=0.0) as client:
        with collecting(exact=client.endpoint, state=state, interval=0.05) as (collector, _):
            with monkeypatch.context() as patch:
                patch.setattr(StateFile, "save", lambda *_: (_ for _ in ()).throw(full))
                client.increment("a", 3)
                eventually(lambda: collector.totals().counters.get("a") == 3)
                eventually(lambda: "state cannot be written" in caplog.text)
        with contextlib.closing(StateFile(state)) as file:
            assert file.load(1).counters == {"a": 3}
    said = [record.message for record in caplog.records if "state" in record.message]
    assert len(said) == 2
    assert "No space left" in said[0]
    assert "again" in said[1]


CALLS = 100


def run_short(place, ending):
    """Run a program that counts to a hundred and ends; return what it said."""
    command = [*CHILDREN, "short", place, ending]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
@pytest.mark.rounds(1, 4)
def test_short_programs_lose_nothing_though_collectors_are_killed_in_between(tmp_path, rounds):
    """A program that learned that its deltas arrived is gone: the disk has to have them."""
    place, state = lasting_endpoint(), str(tmp_path / "state")
    for turn in range(rounds):
        with child("collect", "3600", state, place) as process:
            say_until(process, lambda said: "counters" in said)
            assert run_short(place, "close").stderr == ""
            process.kill()
            process.wait()
        with collecting(exact=place, state=state) as (collector, _):
            assert collector.totals().counters == {"short.hits": CALLS * (turn + 1)}
            eventually(lambda totals=collector.totals: totals().is_exact)


@pytest.mark.long
@pytest.mark.parametrize("ending", ["close", "exit", "interrupt"])
def test_a_program_whose_collector_is_away_says_how_much_went_nowhere(ending):
    code = f"""
import inspect, logging, sys
logging.basicConfig(format="%(name)s %(message)s")
from tests.integration import statsd_children
from p2pmsg import control, metrics, wire
inspect.unwrap(metrics.Client.__init__).__kwdefaults__["close_timeout"] = 0.3
statsd_children.short({LOOPBACK!r}, {ending!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    (line,) = [line for line in done.stderr.splitlines() if line.startswith("p2pmsg ")]
    assert "1 of 1 messages of deltas" in line
    assert "no collector" in line
    assert ('"undelivered": 1' in done.stdout) is (ending == "close")


@pytest.mark.long
@pytest.mark.parametrize("delays", [(0, 0.01), pytest.param(
    [number / 500 for number in range(40)], marks=pytest.mark.long
)])  # fmt: skip
def test_programs_that_are_killed_while_they_close_are_counted_or_named(tmp_path, delays):
    place, state = lasting_endpoint(), tmp_path / "state"
    with collecting(exact=place, state=state) as (collector, _):
        for delay in delays:
            run_short(place, f"killed_after_{max(delay, 1e-6)}")
        with metrics.Client(place) as last:
            last.increment("last")
        eventually(lambda: collector.totals().counters.get("last") == 1)
        totals = collector.totals()
    hits = totals.counters.get("short.hits", 0)
    assert hits % CALLS == 0
    assert len(delays) - hits // CALLS <= len(totals.unfinished)
    assert totals.is_exact is (not totals.unfinished)
    with collecting(exact=place, state=state) as (collector, _):
        assert collector.totals().unfinished == totals.unfinished
        assert collector.totals().counters == totals.counters


def test_a_client_that_announced_itself_and_went_is_named(raw_publisher):
    """All that came of it is its greeting."""
    place, greet = raw_publisher
    with collecting(exact=place) as (collector, _):
        greet(1)
        eventually(lambda: [c.reason for c in collector.totals().unfinished] == ["not_joined"])
        greet(2)  # another one at its place: it is gone permanently
        eventually(lambda: len(collector.totals().unfinished) == 2)
        assert not collector.totals().is_exact


@pytest.fixture
def raw_publisher():
    import zmq

    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")

        def greet(session):
            while socket.poll(60_000 if session == 1 else 0):
                if b"p2" in socket.recv():
                    break
            body = control.Welcome(f"client {session}", "tcp://127.0.0.1:9", 0.0)
            socket.send(wire.control_frame(Kind.WELCOME, session, body))

        yield f"tcp://127.0.0.1:{port}", greet


def test_closing_does_not_wait_once_the_collector_has_everything(caplog):
    """A collector that was there, has it all and has gone is no reason to wait or to warn."""
    client = metrics.Client(LOOPBACK, close_timeout=3600.0)
    with collecting(exact=client.endpoint) as (collector, _):
        client.increment("a", 3)
        eventually(lambda: collector.totals().counters == {"a": 3})
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        client.close()
    assert client.undelivered == 0
    assert not caplog.records


def test_what_is_sent_after_the_collector_went_is_counted_apart(caplog):
    client = metrics.Client(LOOPBACK, interval=0.0, close_timeout=0.1)
    with collecting(exact=client.endpoint) as (collector, _):
        client.increment("a", 3)
        eventually(lambda: collector.totals().counters == {"a": 3})
    for _ in range(5):
        client.increment("late")
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        client.close()
    assert client.undelivered == 5
    assert any("5 of 6 messages of deltas" in record.message for record in caplog.records)


def test_who_only_reads_the_deltas_is_no_collector(caplog):
    client = metrics.Client(LOOPBACK, interval=0.01, close_timeout=0.3)
    with p2pmsg.Subscriber(client.endpoint, start="earliest") as reader:
        client.increment("hits")
        reader.receive(timeout=60)
        client.increment("hits")
        closing = threading.Thread(target=client.close)
        closing.start()
        reader.receive(timeout=60)
        with contextlib.suppress(TimeoutError):
            reader.receive(timeout=0.7)  # so that it says that it has everything
        closing.join()
    assert client.undelivered == 2
    assert "2 of 2 messages of deltas went nowhere: confirmed by no collector" in caplog.text


def test_a_relay_keeps_the_deltas_for_collectors(tmp_path):
    client = metrics.Client(LOOPBACK, interval=0.01, close_timeout=20)
    with p2pmsg.Relay(client.endpoint, f"ipc://{tmp_path}/relay"):
        for _ in range(10):
            client.increment("hits")
        client.close()
        assert client.undelivered == 0
        with collecting(exact=f"ipc://{tmp_path}/relay") as (collector, _):
            eventually(lambda: collector.totals().counters == {"hits": 10})


SMALL = p2pmsg.PublisherConfig(replay_bytes=16 * 1024)
PATIENT = p2pmsg.PublisherConfig(subscriber_timeout=3600)
COLLECTS = """
import sys
from p2pmsg.statsd import Collector
collector = Collector("udp://127.0.0.1:0", exact=sys.argv[1])
while collector.totals().counters.get("a") != 1:
    pass
print("counted", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def collector_that_falls_silent(endpoint, number):
    command, pipe = [sys.executable, "-c", COLLECTS, endpoint], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout.readline() == b"counted\n"
            process.send_signal(number)
            yield
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_closing_waits_for_no_collector_that_was_killed_or_hangs_if_another_has_all(number):
    with metrics.Client(LOOPBACK, config=PATIENT, close_timeout=3600) as client:
        client.increment("a")
        with collector_that_falls_silent(client.endpoint, number):
            with collecting(exact=client.endpoint) as (collector, _):
                client.increment("a")
                client.close()
                assert client.undelivered == 0
                assert collector.totals().counters == {"a": 2}


@pytest.mark.parametrize("has_state", [False, True])
def test_what_was_evicted_before_a_collector_had_it_is_undelivered(caplog, tmp_path, has_state):
    client = metrics.Client(LOOPBACK, interval=0, config=SMALL)
    for _ in range(2000):
        client.increment("a")
    state = tmp_path / "state" if has_state else None
    with collecting(exact=client.endpoint, state=state) as (collector, _):
        client.wait_for_collectors(timeout=60)
        client.close(60)
        totals = collector.totals()
    assert client.sent == 2000
    assert totals.lost > 0
    assert client.undelivered == totals.lost == 2000 - totals.counters["a"]
    assert f"{totals.lost} of 2000 messages of deltas went nowhere: evicted" in caplog.text


def test_what_one_collector_came_too_late_for_is_delivered_where_another_has_it():
    client = metrics.Client(LOOPBACK, interval=0, config=SMALL)
    with collecting(exact=client.endpoint) as (early, _):
        client.wait_for_collectors(timeout=60)
        for _ in range(1500):
            client.increment("a")
        eventually(lambda: early.totals().counters.get("a") == 1500)
        with collecting(exact=client.endpoint) as (late, _):
            client.wait_for_collectors(2, timeout=60)
            client.close(60)
            assert late.totals().lost > 0
            assert early.totals().is_exact
    assert client.undelivered == 0
