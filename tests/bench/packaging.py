"""What a program pays before its first message: imports, memory, and `p2pmsg --help`."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median

from tests.bench.harness import Plan, compare
from tests.bench.report import Goal, Row

AREA = "packaging"
IMPORTED = """
import sys, time
had, began = len(sys.modules), time.process_time()
{statement}
print((time.process_time() - began) * 1e3, len(sys.modules) - had)
"""
PEERS = "import p2pmsg; p2pmsg.Publisher; p2pmsg.Subscriber"
IDLE_PEERS = """
import time
import p2pmsg
publisher = p2pmsg.Publisher("tcp://127.0.0.1:0")
subscriber = p2pmsg.Subscriber(publisher.endpoint)
publisher.wait_for_subscribers(1, timeout=60)
time.sleep(1)
"""
IDLE_SOCKETS = """
import time
import zmq
context = zmq.Context()
publisher = context.socket(zmq.PUB)
publisher.bind("tcp://127.0.0.1:*")
subscriber = context.socket(zmq.SUB)
subscriber.subscribe("")
subscriber.connect(publisher.last_endpoint)
time.sleep(1)
"""
RESIDENT = """
from os import _exit
for line in open("/proc/self/smaps_rollup"):
    if line.startswith("Rss:"):
        print(line.split()[1], flush=True)
_exit(0)
"""
_lower = {"lower_is_better": True}
IMPORT = Goal(AREA, "`import p2pmsg`, against `import zmq`", "ms", 2.5, 1.5, **_lower)
PEERS_NAMED = Goal(
    AREA, "the same, and `p2pmsg.Publisher`, `p2pmsg.Subscriber`", "ms", 67, 67,
    against_peer=False, **_lower,
)  # fmt: skip
MEMORY = Goal(
    AREA, "memory of an idle publisher and its subscriber, in one process, beyond pyzmq's", "MB",
    10, 6, against_peer=False, **_lower,
)  # fmt: skip
HELP = Goal(AREA, "`p2pmsg --help`", "s", 0.25, 0.12, against_peer=False, **_lower)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows; each figure is of a process of its own, with its bytecode written before."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)

        def output_of(*arguments: str) -> str:
            command = [sys.executable, *arguments]
            return subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            ).stdout

        def imported(statement: str) -> tuple[float, int]:
            took_ms, modules = output_of("-c", IMPORTED.format(statement=statement)).split()
            return float(took_ms), int(modules)

        def help_s() -> float:
            began = time.perf_counter()
            output_of("-m", "p2pmsg", "--help")
            return time.perf_counter() - began

        counts = {one: imported(one)[1] for one in ("import p2pmsg", "import zmq", PEERS)}
        help_s()
        named: list[float] = []

        def ours() -> float:
            named.append(imported(PEERS)[0])
            return imported("import p2pmsg")[0]

        comparison = compare(IMPORT.what, ours, lambda: imported("import zmq")[0], plan.run_count)
        theirs = counts["import zmq"]
        yield IMPORT.between(
            comparison.ours, comparison.peers, f"{counts['import p2pmsg']} and {theirs} modules"
        )
        note = f"{counts[PEERS]} modules, pyzmq's {theirs} included; the bound is a third of what"
        yield PEERS_NAMED.measured(named, f"{note} it took before imports were lazy")

        def resident_mb(program: str) -> float:
            return int(output_of("-c", program + RESIDENT)) * 1024 / 1e6

        resident_mb(IDLE_PEERS)  # writes the bytecode of what is imported when it is first used
        theirs_mb = [resident_mb(IDLE_SOCKETS) for _ in range(plan.run_count)]
        ours_mb = [resident_mb(IDLE_PEERS) for _ in range(plan.run_count)]
        both = f"resident {median(ours_mb):.1f} MB, a PUB and a SUB socket {median(theirs_mb):.1f}"
        yield MEMORY.measured([mine - median(theirs_mb) for mine in ours_mb], both)
        yield HELP.measured([help_s() for _ in range(plan.run_count)])
