"""Exact metrics over real sockets: loss, cuts, restarts, SIGKILL; and the same calls by StatsD."""

import contextlib
import errno
import json
import random
import signal
import subprocess
import sys
import threading
import time

import pytest

import p2pmsg
from p2pmsg import metrics
from p2pmsg.statsd.aggregate import Aggregator
from p2pmsg.statsd.config import AggregateConfig
from p2pmsg.statsd.exact import ExactReceiver, StateFile
from p2pmsg.statsd.totals import ExactTotals
from p2pmsg.testing import TcpProxy
from tests.integration.inside import exact_of
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.statsd_tools import collecting
from tests.places import lasting_place

LOSS = 0.2


@contextlib.contextmanager
def child(role, *arguments):
    command = [sys.executable, "-m", "tests.integration.statsd_children", role, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def say_until(process, condition):
    """Read what a child says until it is so."""
    while True:
        line = process.stdout.readline()
        assert line, "the child has ended"
        told = json.loads(line)
        if condition(told):
            return told


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
    clients = [opened.enter_context(metrics.Client(LOOPBACK, interval_ms=0)) for _ in range(3)]
    proxies = [
        opened.enter_context(TcpProxy(client.endpoint, frame_loss=LOSS, seed=seed))
        for seed, client in enumerate(clients)
    ]
    with collecting(exact=[proxy.endpoint for proxy in proxies]) as (collector, keep):
        for client in clients:
            client.wait_for_collectors(timeout=10)
        proxies[0].cut_every(0.2)
        counted = [None] * 3

        def run(number):
            counted[number] = work(clients[number], number, 1500)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        proxies[0].stop_cutting()
        expected = {key: value for part in counted for key, value in part.items()}
        eventually(lambda: collector.totals().counters == expected, 30)
        totals = collector.totals()
        collector.flush()
    assert totals.is_exact
    assert totals.statistics["ms t"][0] == 4500
    assert {key: keep.counts()[key] for key in expected} == expected
    assert all(keep.flushes[-1]["c", key]["total"] == value for key, value in expected.items())


@pytest.mark.rounds(2, 8)
def test_totals_go_on_exactly_after_the_collector_was_killed_again_and_again(tmp_path, rounds):
    state = str(tmp_path / "state")
    # In the end it would wait for the collector that was killed last.
    with metrics.Client(LOOPBACK, interval_ms=0, close_timeout=0.1) as client:
        with TcpProxy(client.endpoint, frame_loss=LOSS, seed=3) as proxy:
            sent, stop = [0], threading.Event()

            def count():
                while not stop.is_set():
                    client.increment("hits")
                    client.increment("sum", sent[0])
                    sent[0] += 1
                    time.sleep(0.0005)

            thread = threading.Thread(target=count)
            thread.start()
            reached = 0
            for _ in range(rounds):
                with child("collect", "0.05", state, proxy.endpoint) as process:
                    # It has to get further than the one before, and dies in the middle of it.
                    reached = say_until(
                        process,
                        lambda told, last=reached: told["counters"].get("hits", 0) > last + 100,
                    )["counters"]["hits"]
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            stop.set()
            thread.join()
            with child("collect", "0.05", state, proxy.endpoint) as process:
                told = say_until(process, lambda told: told["counters"].get("hits") == sent[0])
    assert told["counters"] == {"hits": sent[0], "sum": sum(range(sent[0]))}
    assert told["lost"] == 0


def test_totals_hold_what_was_sent_before_the_collector_was_there():
    with metrics.Client(LOOPBACK, interval_ms=0) as client:
        for _ in range(500):
            client.increment("early")
        with collecting(exact=client.endpoint) as (collector, _):
            eventually(lambda: collector.totals().counters.get("early") == 500)


def test_a_client_that_is_closed_and_one_that_comes_after_it_count_together(tmp_path):
    place = lasting_place()
    with metrics.Client(place) as first:
        with collecting(exact=place, state=tmp_path / "s") as (collector, _):
            first.wait_for_collectors(timeout=10)
            first.increment("a", 3)
            first.close()
            with metrics.Client(place) as second:
                second.increment("a", 4)
                eventually(lambda: collector.totals().counters.get("a") == 7)
                assert collector.totals().is_exact
    with metrics.Client(place) as third:
        third.increment("a", 5)
        with collecting(exact=place, state=tmp_path / "s") as (collector, _):
            eventually(lambda: collector.totals().counters.get("a") == 12)


def test_a_client_that_was_killed_is_counted_as_far_as_it_came(tmp_path):
    with child("count", LOOPBACK, "1000000") as process:
        place = say_until(process, lambda told: "endpoint" in told)["endpoint"]
        with collecting(exact=place) as (collector, _):
            eventually(lambda: collector.totals().counters.get("child.hits", 0) > 500)
            process.send_signal(signal.SIGKILL)
            process.wait()
            time.sleep(0.3)
            counters = collector.totals().counters
    hits = counters["child.hits"]
    # Each message has both calls' kind, one call a message: all or nothing, in order.
    assert sum(range(hits - 1)) <= counters["child.sum"] <= sum(range(hits))


class LoggedClient:
    """A client with a log in a process of its own, that is killed and started again."""

    def __init__(self, log):
        self.place, self.log = lasting_place(), str(log)
        self.begun, self.done = set(), set()

    @contextlib.contextmanager
    def counting(self, count):
        """Count so many numbers more, then stay as long as the block takes, and be killed."""
        first = max(self.begun, default=-1) + 1
        span = (str(first), str(first + count))
        with child("count_with_log", self.place, self.log, *span) as process:
            say_until(process, lambda told: "endpoint" in told)
            yield process
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                if line.endswith("}\n"):
                    self._note(json.loads(line))

    def follow(self, process, number):
        """Read what it says until it has counted so many in all."""
        while len(self.done) < number:
            self._note(say_until(process, bool))

    def _note(self, told):
        self.begun |= {told["begun"]} if "begun" in told else set()
        self.done |= {told["done"]} if "done" in told else set()

    def has_arrived(self, totals):
        """Whether all that was accepted is in the totals, and nothing twice."""
        assert set(totals.counters.values()) <= {1}
        numbers = {int(key[1:]) for key in totals.counters}
        assert numbers <= self.begun
        return self.done <= numbers


@pytest.mark.parametrize("collector_is", ["there", "late"])
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
        with client.counting(0):
            eventually(lambda: client.has_arrived(collector.totals()), 30)
            eventually(lambda: collector.totals().is_exact, 30)  # it has joined the client again
    assert len(client.done) >= 50 * (rounds + 1)


def test_gauges_and_totals_stand_as_they_were_after_a_restart(tmp_path):
    with metrics.Client(LOOPBACK, interval_ms=0) as client:
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


def test_what_was_kept_last_is_written_however_late_it_was_kept(tmp_path):
    path, aggregator = tmp_path / "s", Aggregator(AggregateConfig())
    receiver = ExactReceiver(["tcp://127.0.0.1:1"], aggregator, threading.Lock(), StateFile(path))
    receiver.stop()
    receiver.keep()
    eventually(path.exists)
    receiver._writer.join(0.2)  # who writes has nothing to do: it must not end for that
    path.unlink()
    receiver.keep()  # as the last flush does
    receiver.close()
    assert path.exists()


def test_what_cannot_be_repeated_is_told_with_its_range():
    config = p2pmsg.PublisherConfig(replay=p2pmsg.ReplayConfig(bytes_max=4096))
    with metrics.Client(LOOPBACK, interval_ms=0, config=config) as client:
        for _ in range(1000):
            client.increment("a")
        with collecting(exact=client.endpoint) as (collector, _):
            eventually(lambda: collector.totals().counters.get("a"))
            eventually(lambda: collector.totals().lost + collector.totals().counters["a"] == 1000)
            totals = collector.totals()
    assert not totals.is_exact
    (loss,) = totals.losses
    assert (loss.start, loss.stop - loss.start, loss.reason) == (0, totals.lost, "evicted")


def test_all_calls_arrive_over_both_channels():
    for exact in (True, False):
        with contextlib.ExitStack() as stack:
            if exact:
                client = stack.enter_context(metrics.Client(LOOPBACK, prefix="app", tags=["x:y"]))
                collector, keep = stack.enter_context(collecting(exact=client.endpoint))
            else:
                collector, keep = stack.enter_context(collecting())
                client = stack.enter_context(
                    metrics.Client(collector.endpoints[0], prefix="app", tags=["x:y"])
                )
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
            eventually(lambda told=collector.stats: told().names >= 3 + 9)
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


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("role", "expected"),
    [("end_without_closing", {"child.hits": 1}), ("fork", {"child.hits": 1, "parent.hits": 2})],
)
def test_ends_and_forks_cost_nothing_and_double_nothing(tmp_path, exact, role, expected):
    place = f"ipc://{tmp_path}/client"
    with collecting(exact=[place]) as (collector, keep):
        with child(role, place if exact else collector.endpoints[0]) as process:
            said = process.stdout.read()
            assert process.wait(20) == 0
        if exact and role == "fork":
            assert "belongs to the parent process" in json.loads(said)["error"]
            expected = {"parent.hits": 2}
        if exact:
            eventually(lambda: collector.totals().counters == expected)
        else:
            eventually(lambda: collector.stats().metrics >= len(expected))
        time.sleep(0.1)
        collector.flush()
        assert {key: count for key, count in keep.counts().items() if ".hits" in key} == expected


def test_a_statsd_server_that_is_away_fails_no_program():
    with metrics.Client("udp://127.0.0.1:9") as client:
        for _ in range(10):
            client.increment("a")
            client.flush()


def test_sums_beyond_64_bits_stay_exact():
    with metrics.Client(LOOPBACK) as client:
        for _ in range(5):
            client.increment("huge", 2**63 - 1)
        with collecting(exact=client.endpoint) as (collector, _):
            eventually(lambda: collector.totals().counters.get("huge") == 5 * (2**63 - 1))


def test_a_state_that_is_none_is_refused(tmp_path):
    path = tmp_path / "state"
    path.write_bytes(b"something else")
    with pytest.raises(p2pmsg.ConfigError, match="state must be a state file"):
        with collecting(exact=LOOPBACK.replace(":0", ":1"), state=path):
            pass
    with pytest.raises(p2pmsg.ConfigError, match="a folder that is there"):
        with collecting(exact=LOOPBACK.replace(":0", ":1"), state=tmp_path / "no" / "state"):
            pass


def test_a_state_that_cannot_be_written_for_a_while_is_written_later(tmp_path, monkeypatch, caplog):
    state = tmp_path / "s"
    full = OSError(errno.ENOSPC, "No space left on device")
    with metrics.Client(LOOPBACK, interval_ms=0) as client:
        with collecting(exact=client.endpoint, state=state, interval_s=0.05) as (collector, _):
            with monkeypatch.context() as patch:
                patch.setattr(StateFile, "save", lambda *_: (_ for _ in ()).throw(full))
                client.increment("a", 3)
                eventually(lambda: collector.totals().counters.get("a") == 3)
                eventually(lambda: collector.totals().state_errors > 1)
        assert ExactTotals.decode(state.read_bytes()).counters == {"a": 3}
    said = [record.message for record in caplog.records if "state" in record.message]
    assert len(said) == 2
    assert "No space left" in said[0]
    assert "again" in said[1]


def test_what_is_counted_last_is_in_the_state_though_one_was_just_being_written(
    tmp_path, monkeypatch
):
    state, save = tmp_path / "s", StateFile.save
    begun, go_on = threading.Event(), threading.Event()

    def wait(file, data):
        begun.set()
        go_on.wait(20)
        save(file, data)

    with metrics.Client(LOOPBACK, interval_ms=0) as client:
        with collecting(exact=client.endpoint, state=state, interval_s=0.05) as (collector, _):
            monkeypatch.setattr(StateFile, "save", wait)
            begun.wait(20)
            client.increment("a", 3)
            eventually(lambda: collector.totals().counters.get("a") == 3)
            exact = exact_of(collector)
            stop = exact.stop

            def stop_late():
                stop()
                go_on.set()
                eventually(lambda: exact._unsaved is None)
                time.sleep(0.1)  # for its thread to look whether it may end
                exact.totals.counters["a"] = 4  # what came after the last flush

            monkeypatch.setattr(exact, "stop", stop_late)
        assert ExactTotals.decode(state.read_bytes()).counters == {"a": 4}
