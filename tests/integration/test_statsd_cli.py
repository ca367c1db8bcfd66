"""`p2pmsg statsd` as a user runs it: wrong arguments, Ctrl-C, SIGTERM, SIGKILL."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

import p2pmsg
from tests.integration.commands import command, run_here
from tests.integration.peers import ROOT, eventually
from tests.integration.statsd_tools import address, collecting, open_client

ANYWHERE = ("--listen", "udp://127.0.0.1:0")


@pytest.fixture
def start(tmp_path, opened):
    def start(*arguments):
        started = opened.enter_context(command(tmp_path, "statsd", *arguments))
        line = eventually(lambda: next(iter(started.errors().splitlines()), None))
        return started, line.partition(": ")[2].split(", ")

    return start


def send(place, *packets):
    with open_client(place) as client:
        for packet in packets:
            client.send(packet)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)]
)
def test_what_was_gathered_is_flushed_when_it_is_asked_to_end(start, carbon, number):
    started, places = start(
        *ANYWHERE, "--interval", "3600", "--graphite", f"127.0.0.1:{carbon.port}", "--stats",
        "--dialect", "etsy",
    )  # fmt: skip
    send(places[0], *[b"a:1|c"] * 500, b"bad")
    started.process.send_signal(number)

    assert started.wait() == {signal.SIGTERM: 0, signal.SIGINT: 130}[number]
    eventually(lambda: carbon.paths().get("stats_counts.a") == 500)
    errors = started.errors()
    assert "501 packets, 501 metrics, 1 bad lines" in errors
    assert "Traceback" not in errors


def test_after_sigkill_the_next_one_takes_over(start, tmp_path):
    place = f"unixgram://{tmp_path}/s"
    first, _ = start("--listen", place, "--interval", "3600", "--publish", "tcp://127.0.0.1:0")
    first.process.kill()
    first.process.wait()
    second, places = start("--listen", place, "--interval", "0.1", "--publish", "tcp://127.0.0.1:0")
    with p2pmsg.Subscriber(places[1], start="earliest", topics=["metrics"]) as subscriber:
        send(place, b"a:7|c|#zone:b")
        while (message := subscriber.receive(60)).key != "a|#zone:b":
            pass
    value = json.loads(message.value)
    assert value == {
        "name": "a", "type": "counter", "tags": {"zone": "b"}, "count": 7.0, "rate": 70.0,
    }  # fmt: skip
    second.interrupt()
    assert second.wait() == 130


def test_the_live_table_and_the_management_port(start):
    started, places = start(
        *ANYWHERE, "--interval", "0.2", "--management", "tcp://127.0.0.1:0", "--console"
    )
    send(places[0], b"shown:3|c")
    eventually(lambda: b"shown" in started.output())
    with socket.create_connection(address(places[1])) as connection:
        connection.sendall(b"health\n")
        assert connection.recv(100) == b"health: up\n"


WRONG = {
    "--listen=127.0.0.1:8125": "udp://HOST:PORT",
    "--interval=never": "must be a number",
    "--interval=0": "interval must be a number of at least 0.01",
    "--dialect=esty": "invalid choice",
    "--percentiles=90,x": "numbers separated by commas",
    "--percentiles=101": "percentiles",
    "--graphite=carbon": "HOST:PORT",
    "--prometheus=h:99999": "HOST:PORT",
    "--publish=udp://h:1": "udp",
    "--exact=tcp://h": "tcp://h",
    "--state=/nowhere/x": "no directory",
    "--state=x --publish=tcp://127.0.0.1:0": "--state needs --exact",
    "--nonsense": "--nonsense",
}


@pytest.mark.parametrize("argument", WRONG)
def test_a_wrong_argument_is_refused_in_one_line(argument):
    done = run_here("statsd", *argument.split())

    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("p2pmsg statsd: ")
    assert WRONG[argument] in line


def test_a_place_that_is_taken_is_reported_in_one_line():
    with collecting() as (collector, _):
        done = run_here("statsd", "--listen", collector.endpoints[0])

    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert "Address already in use" in line


ENDED = """
import os, signal, threading, time
from p2pmsg.statsd import Collector
from p2pmsg.statsd.outputs.base import Output

class Slow(Output):
    name = "slow"
    def begin(self, snapshot):
        time.sleep(1.0)
        print("flushed", flush=True)
    def write(self, row):
        pass

with Collector("udp://127.0.0.1:0", exact=["ipc://{folder}/nobody"], outputs=[Slow()], interval=60):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
"""


@pytest.mark.long
def test_a_close_that_ctrl_c_ended_is_finished_when_the_program_ends(tmp_path):
    program = ENDED.replace("{folder}", str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert ended.stdout == "flushed\n"
    assert ended.stderr.endswith("KeyboardInterrupt\n"), ended.stderr
