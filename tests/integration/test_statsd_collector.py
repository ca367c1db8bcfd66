"""The StatsD server over real sockets, with real clients, and as a user runs it."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys

import pytest

import p2pmsg
from p2pmsg.statsd import AggregateConfig, Event, GraphiteOutput, ServiceCheck, sockets
from p2pmsg.statsd.sockets import BulkReader
from tests.descriptors import no_descriptor_left
from tests.integration.commands import command, run_here
from tests.integration.inside import held
from tests.integration.peers import LOOPBACK, ROOT, eventually
from tests.integration.statsd_tools import (
    LONG_S,
    UDP,
    Keep,
    address,
    collecting,
    feed,
    feed_and_flush,
    open_client,
)
from tests.unit.p2pmsg.statsd.cases import as_bytes, load_cases


@pytest.mark.parametrize("scheme", ["udp", "udp6", "tcp", "unixgram", "unix"])
def test_what_is_sent_is_flushed(scheme, tmp_path):
    listen = {
        "udp": UDP, "tcp": LOOPBACK, "udp6": "udp://[::1]:0",
        "unixgram": f"unixgram://{tmp_path}/s", "unix": f"unix://{tmp_path}/s",
    }[scheme]  # fmt: skip
    with collecting(listen) as (collector, keep):
        with open_client(collector.endpoints[0]) as client:
            client.send(b"a:1|c\nb:2")
            client.send(b"|g\nt:5|ms\n" if scheme in ("tcp", "unix") else b"b:2|g\nt:5|ms\n")
            eventually(lambda: collector.stats().metrics >= 3)
        collector.flush()
    assert keep.flushes[0]["c", "a"] == {"rate": 1 / LONG_S, "count": 1.0}
    assert keep.flushes[0]["g", "b"] == {"value": 2.0}
    assert keep.flushes[0]["ms", "t"]["median"] == 5.0


def test_datagrams_are_read_whole_and_in_order():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source:
        source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        source.bind(("127.0.0.1", 0))
        source.setblocking(False)
        reader = BulkReader(source)
        assert reader.read() == (b"", 0, False)
        sent = [b"%d" % number * (number * 3) for number in range(1, 100)]
        sent[50] = b"x" * 65_000
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            for packet in sent:
                client.sendto(packet, source.getsockname())
        parts, counts = [], []
        while (read := reader.read())[1]:
            parts.append(read[0])
            counts.append(read[1:])
    assert b"\n".join(parts).split(b"\n") == sent
    assert counts == [(64, True), (35, False)]


def test_the_client_of_pypi_statsd():
    import statsd

    with collecting() as (collector, keep):
        host, port = address(collector.endpoints[0])
        client = statsd.StatsClient(host, port, prefix="app")
        client.incr("hits")
        client.incr("hits", 4)
        client.decr("hits")
        client.gauge("depth", 7)
        client.gauge("depth", -2, delta=True)
        client.timing("took", 320)
        client.set("users", "ann")
        client.set("users", "bob")
        with client.pipeline() as pipe:
            pipe.incr("piped")
            pipe.gauge("level", -3)
        eventually(lambda: collector.stats().metrics >= 11)
        collector.flush()
        client.close()
    flushed = keep.flushes[0]
    assert flushed["c", "app.hits"]["count"] == 4
    assert flushed["g", "app.depth"]["value"] == 5
    assert flushed["ms", "app.took"]["upper"] == 320
    assert flushed["s", "app.users"]["count"] == 2
    assert flushed["c", "app.piped"]["count"] == 1
    assert flushed["g", "app.level"]["value"] == -3
    assert collector.stats().bad_lines == 0


@pytest.mark.parametrize(("listen", "buffered"), [("unix", True), ("unixstream", False)])
def test_the_client_of_pypi_datadog_over_a_stream_socket(tmp_path, listen, buffered):
    """Each frame has its length before it; a `unix` place finds that out by itself."""
    from datadog.dogstatsd import DogStatsd

    count = 500 if buffered else 30  # the client drops what the kernel's buffer does not hold
    with collecting(f"{listen}://{tmp_path}/s") as (collector, keep):
        client = DogStatsd(
            socket_path=f"unixstream://{tmp_path}/s", disable_buffering=not buffered,
            disable_telemetry=True, disable_background_sender=True, container_id="ci-7",
            cardinality="low",
        )  # fmt: skip
        for number in range(count):
            client.increment("first", tags=["a:1"])
            client.gauge("last", number)
        client.flush()
        client.close_socket()
        eventually(lambda: collector.stats().metrics >= 2 * count)
        eventually(lambda: not collector.stats().connections)
        collector.flush()
        stats = collector.stats()
    assert keep.counts()["first|#a:1"] == count
    assert keep.flushes[0]["g", "last"]["value"] == count - 1
    assert (stats.bad_reasons, stats.lines_unfinished, stats.lines_overlong) == ({}, 0, 0)


@pytest.mark.parametrize("dialect", ["strict", "etsy"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_last_line_without_a_line_feed_is_taken_or_counted(dialect, cut):
    with collecting(LOOPBACK, dialect=dialect) as (collector, keep):
        with open_client(collector.endpoints[0]) as client:
            client.sendall(b"a:1|c\nlast:2|c")
            eventually(lambda: collector.stats().metrics)
            if cut:  # a reset, as of a sender that was lost
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: not collector.stats().connections)
        collector.flush()
        taken = dialect != "etsy" and not cut
        assert keep.counts().get("last", 0) == 2 * taken
        assert collector.stats().lines_unfinished == (not taken)


def test_what_is_no_frame_ends_its_connection_and_is_counted(tmp_path):
    with collecting(f"unixstream://{tmp_path}/s") as (collector, keep):
        with open_client(f"unixstream://{tmp_path}/s") as client:
            client.sendall(b"\x05\0\0\0a:1|c" + b"b:1|c\n")
            assert client.recv(1) == b""
        with open_client(f"unixstream://{tmp_path}/s") as client:
            client.sendall(b"\x05\0\0\0a:1")
        eventually(lambda: collector.stats().lines_unfinished)
        collector.flush()
        assert collector.stats().lines_overlong == 1
    assert keep.counts()["a"] == 1


def test_the_client_of_pypi_datadog():
    from datadog.dogstatsd import DogStatsd

    with collecting() as (collector, keep):
        host, port = address(collector.endpoints[0])
        client = DogStatsd(
            host, port, disable_buffering=True, disable_telemetry=True,
            disable_background_sender=True, constant_tags=["env:test"],
        )  # fmt: skip
        client.increment("page.views", tags=["b", "a:1"])
        client.increment("page.views", 2, tags=["a:1", "b"])
        client.gauge("temp", 21.5)
        client.histogram("h", 0.5)
        client.distribution("dist", 1.25, tags=["x:y"])
        client.timing("t", 100)
        client.set("users", "alice")
        client.event("title | pipe", "text\nline2", alert_type="warning", tags=["t:1"])
        client.service_check("svc", 1, message="m: msg")
        client.gauge_with_timestamp("ts", 5, 1656581400)
        eventually(lambda: collector.stats().metrics >= 10)
        collector.flush()
        client.close_socket()
    flushed = keep.flushes[0]
    assert flushed["c", "page.views|#a:1,b,env:test"]["count"] == 3
    assert flushed["g", "temp|#env:test"]["value"] == 21.5
    assert flushed["h", "h|#env:test"]["median"] == 0.5
    assert flushed["d", "dist|#env:test,x:y"]["sum"] == 1.25
    assert flushed["s", "users|#env:test"]["count"] == 1
    assert flushed["g", "ts|#env:test"]["value"] == 5
    event, check = keep.events
    assert isinstance(event, Event)
    assert (event.title, event.text, event.alert_type) == (
        "title | pipe", "text\nline2", "warning",
    )  # fmt: skip
    assert isinstance(check, ServiceCheck)
    assert (check.name, check.status, check.message) == ("svc", 1, "m: msg")
    assert collector.stats().bad_lines == 0


def test_a_flood_of_names_is_cut_off_counted_and_named():
    config = AggregateConfig(names_max=100)
    with collecting(config=config) as (collector, keep):
        feed(collector, *(b"n%d:1|c\nknown:1|c" % number for number in range(1000)))
        stats = collector.stats()
        collector.flush()
    assert stats.names == 100 + 3
    assert stats.names_cut == 1001 - 100
    assert len(stats.names_cut_sample) == 10
    assert keep.counts()["known"] == 1000


def test_connections_wait_where_no_descriptor_is_left_and_that_is_said(caplog):
    with collecting(LOOPBACK) as (collector, keep), socket.socket() as client:
        with no_descriptor_left():
            client.connect(address(collector.endpoints[0]))
            client.sendall(b"a:1|c\n")
            eventually(lambda: "accepting connections: Too many open files" in caplog.text)
        eventually(lambda: collector.stats().metrics >= 1)
        collector.flush()
    assert keep.counts()["a"] == 1
    assert "accepting connections: it works again" in caplog.text


def test_two_collectors_share_a_port_and_together_count_everything():
    with collecting(reuse_port=True) as (one, first):
        place = one.endpoints[0]
        with collecting(place, reuse_port=True) as (two, second):
            clients = [open_client(place) for _ in range(64)]
            for client in clients:
                client.send(b"a:1|c")
            eventually(lambda: one.stats().metrics + two.stats().metrics == 64)
            assert one.stats().metrics
            assert two.stats().metrics
            for client in clients:
                client.close()
    assert first.counts()["a"] + second.counts()["a"] == 64


@pytest.mark.internal
def test_what_the_kernel_drops_is_counted(monkeypatch):
    monkeypatch.setattr(sockets, "RECEIVE_BYTES", 4096)
    with collecting() as (collector, _):
        with open_client(collector.endpoints[0]) as client:
            with held(collector):  # nothing is read meanwhile
                for _ in range(500):
                    client.send(b"a:1|c" * 100)
            eventually(lambda: (stats := collector.stats()).packets + stats.kernel_drops == 500)
        stats = collector.stats()
    assert stats.packets > 0
    assert stats.kernel_drops > 0


def test_an_output_that_fails_is_counted_and_stops_nothing():
    class Broken(Keep):
        name = "broken"

        def write(self, row):
            if row.key == "bad":
                raise ValueError("on purpose")
            super().write(row)

    broken = Broken()
    with collecting(outputs=[broken]) as (collector, keep):
        feed_and_flush(collector, b"a:1|c\nbad:1|c\nb:1|c")
        assert collector.stats().output_failures["broken"] == 1
    assert keep.counts().keys() > broken.counts().keys() >= {"a", "b"}


def test_flushes_come_by_themselves():
    with collecting(interval=0.05) as (_, keep):
        eventually(lambda: len(keep.flushes) >= 5)


def test_the_management_port_answers_as_statsd_does(carbon):
    session = load_cases()["mgmt_session"]
    if not session:
        pytest.skip("the cases are not there")
    with collecting(
        dialect="etsy", management=LOOPBACK, outputs=[GraphiteOutput("127.0.0.1", carbon.port)]
    ) as (collector, _):
        feed(collector, *map(as_bytes, session["packets"]))
        port = address(collector.management_endpoint)
        with socket.create_connection(port) as connection:
            connection.settimeout(60)
            for command, expected in session["session"][:-1]:
                connection.sendall(command.encode())
                if expected == "<EOF>":
                    assert connection.recv(100) == b""
                    continue
                if command == "stats\n":
                    answer = read_until(connection, "END\n\n")
                    assert [n for n in names(answer) if "keep." not in n] == names(expected)
                    continue
                assert read_until(connection, expected[-5:], len(expected)) == expected
        with socket.create_connection(port) as connection:
            connection.settimeout(60)
            command, expected = session["session"][-1]
            connection.sendall(command.encode())
            assert connection.recv(100).decode() == expected


def read_until(connection, end, length=0):
    text = ""
    while not text.endswith(end) or len(text) < length:
        data = connection.recv(65536).decode()
        assert data, f"ended after {text!r}"
        text += data
    return text


def names(answer):
    return [line.partition(":")[0] for line in answer.splitlines() if line]


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
