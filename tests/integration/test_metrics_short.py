"""Exact metrics of programs that live for a moment, and of those that are killed."""

import contextlib
import logging
import signal
import subprocess
import sys
import threading
import time

import pytest

import p2pmsg
from p2pmsg import control, metrics, wire
from p2pmsg.wire import Kind
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.statsd_tools import collecting
from tests.integration.test_metrics_exact import child, say_until
from tests.places import lasting_place

CALLS = 100


def run_short(place, ending):
    """Run a program that counts to a hundred and ends; return what it said."""
    command = [sys.executable, "-m", "tests.integration.statsd_children", "short", place, ending]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("ending", ["close", "exit", "no_threads", "fork"])
@pytest.mark.rounds(2, 10)
def test_short_programs_in_turn_lose_nothing(ending, rounds):
    place, count = lasting_place(), rounds
    with collecting(exact=place) as (collector, _):
        for _ in range(count):
            done = run_short(place, ending)
            assert done.stderr == ""
        totals = collector.totals()
    assert totals.counters == {"short.hits": CALLS * count}
    assert totals.is_exact, totals.unfinished


def test_short_programs_lose_nothing_though_collectors_are_killed_in_between(tmp_path):
    """A program that was told that its deltas arrived is gone: the disk has to have them."""
    place, state = lasting_place(), str(tmp_path / "state")
    for turn in range(2):
        with child("collect", "3600", state, place) as process:
            say_until(process, lambda told: "counters" in told)
            assert run_short(place, "close").stderr == ""
            process.send_signal(signal.SIGKILL)
            process.wait()
        with collecting(exact=place, state=state) as (collector, _):
            assert collector.totals().counters == {"short.hits": CALLS * (turn + 1)}
            eventually(lambda totals=collector.totals: totals().is_exact)


@pytest.mark.parametrize("ending", ["close", "exit", "interrupt"])
def test_a_program_whose_collector_is_away_says_how_much_went_nowhere(ending):
    code = f"""
import logging, sys
logging.basicConfig(format="%(name)s %(message)s")
from tests.integration import statsd_children
from p2pmsg import metrics
metrics.Client.__init__.__kwdefaults__["close_timeout"] = 0.3
statsd_children.short({LOOPBACK!r}, {ending!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    (line,) = [line for line in done.stderr.splitlines() if line.startswith("p2pmsg ")]
    assert "1 of 1 messages of deltas" in line
    assert "no collector" in line
    assert ('"undelivered": 1' in done.stdout) is (ending == "close")


def test_the_collector_names_a_program_that_was_killed():
    place = lasting_place()
    with collecting(exact=place) as (collector, _):
        assert [each.reason for each in collector.totals().unfinished] == ["unreached"]
        assert not collector.totals().is_exact
        run_short(place, "killed_when_seen")
        run_short(place, "close")
        eventually(lambda: collector.totals().unfinished)
        totals = collector.totals()
    assert totals.counters == {"short.hits": CALLS}
    assert [each.reason for each in totals.unfinished] == ["vanished"]
    assert not totals.is_exact


@pytest.mark.parametrize("delays", [(0, 0.002, 0.02), pytest.param(
    [number / 500 for number in range(40)], marks=pytest.mark.long
)])  # fmt: skip
def test_programs_that_are_killed_while_they_close_are_counted_or_named(tmp_path, delays):
    place, state = lasting_place(), tmp_path / "state"
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
        greet(2)  # another one at its place: it is gone for good
        eventually(lambda: len(collector.totals().unfinished) == 2)
        assert not collector.totals().is_exact


@pytest.fixture
def raw_publisher():
    import zmq

    with zmq.Context() as context, context.socket(zmq.XPUB) as socket:
        socket.linger = 0
        port = socket.bind_to_random_port("tcp://127.0.0.1")

        def greet(session):
            while socket.poll(10_000 if session == 1 else 0):
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
    client = metrics.Client(LOOPBACK, interval_ms=0, close_timeout=0.1)
    with collecting(exact=client.endpoint) as (collector, _):
        client.increment("a", 3)
        eventually(lambda: collector.totals().counters == {"a": 3})
    for _ in range(5):
        client.increment("late")
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        client.close()
    assert client.undelivered == 5
    assert any("5 of 6 messages of deltas" in record.message for record in caplog.records)


def test_a_client_that_sent_nothing_waits_for_nobody():
    began = time.monotonic()
    client = metrics.Client(LOOPBACK, close_timeout=3600.0)
    client.close()
    assert client.undelivered == 0
    assert time.monotonic() - began < 600


def test_who_only_reads_the_deltas_is_no_collector(caplog):
    client = metrics.Client(LOOPBACK, interval_ms=10, close_timeout=0.3)
    with p2pmsg.Subscriber(client.endpoint, start="earliest") as reader:
        client.increment("hits")
        reader.receive(timeout=20)
        client.increment("hits")
        closing = threading.Thread(target=client.close)
        closing.start()
        reader.receive(timeout=20)
        with contextlib.suppress(TimeoutError):
            reader.receive(timeout=2)  # so that it says that it has everything
        closing.join()
    assert client.undelivered == 2
    assert "2 of 2 messages of deltas went nowhere: confirmed by no collector" in caplog.text


def test_a_relay_keeps_the_deltas_for_collectors(tmp_path):
    client = metrics.Client(LOOPBACK, interval_ms=10, close_timeout=20)
    with p2pmsg.Relay(client.endpoint, f"ipc://{tmp_path}/relay"):
        for _ in range(10):
            client.increment("hits")
        client.close()
        assert client.undelivered == 0
        with collecting(exact=f"ipc://{tmp_path}/relay") as (collector, _):
            eventually(lambda: collector.totals().counters == {"hits": 10})
