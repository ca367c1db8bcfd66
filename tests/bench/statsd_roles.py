"""What the StatsD benchmark's processes do: servers, senders, a collector that is looked into."""

import itertools
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.duty import read_memory
from tests.bench.harness import die_with_parent
from tests.bench.loads import TrialError

NPM_ENV = "P2PMSG_NPM_FOLDER"
NAMES = 1_000
RING = 2_000
PACKED = 40
READY_SECONDS = 15.0
LONG_MS = 3_600_000


def make_lines(count: int, names: int, seed: int = 7) -> list[bytes]:
    """Return lines of counters, timers and gauges in turn, with values as programs send them."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        number = rng.randrange(names)
        name = b"app.host%d.service.metric%d" % (number % 17, number)
        kind = number % 3
        if kind == 0:
            lines.append(name + b":%d|c" % rng.choice((1, 1, 1, 1, 2, 5)))
        elif kind == 1:
            lines.append(name + b":%.3f|ms" % rng.expovariate(0.02))
        else:
            lines.append(name + b":%d|g" % rng.randrange(1000))
    return lines


def make_packets(packed: int, names: int = NAMES) -> list[bytes]:
    """Return a ring of datagrams."""
    lines = make_lines(RING * packed, names)
    return [b"\n".join(lines[at : at + packed]) for at in range(0, len(lines), packed)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Sender:
    """Sends the ring over and over, from a core of its own."""

    def __init__(self, port: int, packed: int, cores: list[int]) -> None:
        os.sched_setaffinity(0, cores)
        self._packets = make_packets(packed)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))

    def blast(self, seconds: float) -> int:
        """Send as fast as it goes; what the server does not take, the kernel drops."""
        send, sent = self._socket.send, 0
        end = time.monotonic() + seconds
        for packet in itertools.cycle(self._packets):
            try:
                send(packet)
            except OSError:
                pass
            sent += 1
            if sent % 100 == 0 and time.monotonic() > end:
                return sent
        return sent

    def close(self) -> None:
        self._socket.close()


class Server:
    """A StatsD server in a process of its own on one core, looked at from outside."""

    def __init__(self, command: list[str], port: int, management: int, core: int) -> None:
        self.port = port
        self._management = management
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            preexec_fn=die_with_parent,
        )  # fmt: skip
        os.sched_setaffinity(self._process.pid, {core})
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.received()
                return
            except OSError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise TrialError(f"{command[0]} does not serve") from None
                time.sleep(0.05)

    def received(self) -> int:
        """Metrics received, as its own management port reports it."""
        with socket.create_connection(("127.0.0.1", self._management), timeout=10) as connection:
            connection.sendall(b"counters\n")
            text = b""
            while not text.endswith(b"END\n\n"):
                data = connection.recv(1 << 20)
                if not data:
                    raise TrialError("the management port has ended")
                text += data
        for line in text.decode().replace("}", "\n").split("\n"):
            for part in line.split(", "):
                if "statsd.metrics_received" in part:
                    return int(part.rpartition(":")[2].strip(" ,"))
        raise TrialError("no metrics_received among the counters")

    def cpu_seconds(self) -> float:
        """CPU time of the process, kernel included, and of threads that have ended."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def start_ours(core: int) -> Server:
    """Start `p2pmsg statsd`, with a stream as its output."""
    port, management = free_port(), free_port()
    command = [
        sys.executable, "-m", "p2pmsg", "statsd", "--listen", f"udp://127.0.0.1:{port}",
        "--management", f"tcp://127.0.0.1:{management}", "--publish", "tcp://127.0.0.1:0",
        "--interval", str(LONG_MS // 1000), "--dialect", "etsy",
    ]  # fmt: skip
    return Server(command, port, management, core)


def why_no_npm() -> str | None:
    """Return why npm's statsd cannot be measured, or None."""
    if not shutil.which("node"):
        return "node is not there"
    folder = os.environ.get(NPM_ENV)
    if not folder or not (Path(folder) / "node_modules" / "statsd" / "stats.js").is_file():
        return f"{NPM_ENV} names no folder in which `npm install statsd` was run"
    return None


def start_npm(core: int) -> Server:
    """Start npm's statsd; its Graphite output computes everything and discards it."""
    port, management = free_port(), free_port()
    script = Path(os.environ[NPM_ENV]) / "node_modules" / "statsd" / "stats.js"
    config = {
        "port": port, "address": "127.0.0.1", "mgmt_port": management,
        "mgmt_address": "127.0.0.1", "flushInterval": LONG_MS, "automaticConfigReload": False,
    }  # fmt: skip
    with tempfile.NamedTemporaryFile("w", suffix=".js", delete=False) as file:
        json.dump(config, file)
    try:
        return Server(["node", str(script), file.name], port, management, core)
    finally:
        os.unlink(file.name)


class Inspected:
    """A collector within this process: its memory, and the pauses in its reading."""

    def __init__(self) -> None:
        from p2pmsg.statsd import Collector, GraphiteOutput, PrometheusOutput

        self._sink = socket.create_server(("127.0.0.1", 0))
        outputs = [
            PrometheusOutput(port=0), GraphiteOutput("127.0.0.1", self._sink.getsockname()[1]),
        ]  # fmt: skip
        self._empty = read_memory("VmRSS")
        self._collector: Any = Collector(
            "udp://127.0.0.1:0", publish="tcp://127.0.0.1:0", outputs=outputs, interval=3600
        )
        self._client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        host, port = self._collector.endpoints[0][6:].split(":")
        self._client.connect((host, int(port)))

    def fill(self, names: int) -> dict[str, float]:
        """Send each name once; return bytes in use, and by how much they grew."""
        sent = self._collector.stats().metrics
        wanted = sent + names
        for start in range(0, names, PACKED):
            lines = []
            for number in range(start, min(start + PACKED, names)):
                kind = (b"1|c", b"%d.5|ms" % number, b"7|g")[number % 3]
                lines.append(b"app.host%d.service.metric%d:%s" % (number % 17, number, kind))
            self._client.send(b"\n".join(lines))
            sent += len(lines)
            while sent - self._collector.stats().metrics > 20_000:
                time.sleep(0.001)
        deadline = time.monotonic() + 10
        while self._collector.stats().metrics < wanted:
            if time.monotonic() > deadline:
                raise TrialError("not all names arrived")
            time.sleep(0.01)
        used = read_memory("VmRSS")
        return {"bytes": used, "growth": used - self._empty}

    def flush_pauses(self) -> dict[str, float]:
        """Flush to all outputs; return the longest pause in reading, and the longest work in it."""
        sockets = self._collector._sockets
        turn = sockets.turn
        pauses: list[float] = []
        work: list[float] = []
        left: list[tuple[float, float]] = []

        def timed_turn(*arguments: Any) -> bool:
            if left:
                pauses.append(time.monotonic() - left[0][0])
                work.append(time.thread_time() - left[0][1])
            result = turn(*arguments)
            left[:] = [(time.monotonic(), time.thread_time())]
            return result

        sockets.turn = timed_turn
        self._collector.flush(timeout=60)
        time.sleep(0.3)
        sockets.turn = turn
        return {"pause_ms": 1e3 * max(pauses), "cpu_ms": 1e3 * max(work)}

    def close(self) -> None:
        self._client.close()
        self._collector.close(timeout=0.2)
        self._sink.close()
