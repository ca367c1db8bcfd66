"""Many subscribers of all topics that join one publisher at once: how long, and what it costs whom.

::

    a process with the publisher      idle, or publishing all the while in a thread of its own
    processes of subscribers' cores   over real sockets, some hundreds in one thread each

By itself: `python -m tests.bench.joining [--count 1000] [--rate 20] [--json]`.
"""

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import p2pmsg
from tests.bench.harness import Children, call_all, gather
from tests.bench.loads import TrialError
from tests.integration.joiners import can_open, join_all, turn_until

COUNT = 1000
PROCESSES = 4
DEADLINE_SECONDS = 60.0
RATE = 20.0
"""Messages a second of a busy publisher. Each is a frame, with a heartbeat after it, so a thousand
subscribers read 40,000 frames a second: half a core and more of theirs, which is not measured."""
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def thread_seconds(thread: int) -> float:
    """Return the processor time that a thread of this process has taken."""
    fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


class Feed:
    """The publisher, and a thread that publishes."""

    def __init__(self, topic_count: int, rate: float) -> None:
        if not can_open(COUNT):
            raise TrialError("the system allows too few open files")
        self._publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", name="feed")
        for number in range(topic_count):
            self._publisher.publish(f"t{number}", b"first")
        self._stop = threading.Event()
        self._published, self._worst_s, self._worst_cpu_s = 0, 0.0, 0.0
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._pause_s = 1 / rate if rate else 0.0
        if rate:
            self._thread.start()
        self._before: dict[str, float] = {}

    def endpoint(self) -> str:
        return self._publisher.endpoint

    def begin(self) -> None:
        """Count from now on."""
        self._worst_s = self._worst_cpu_s = 0.0
        self._before = self._times()

    def end(self) -> dict[str, float]:
        """Return what it cost since `begin`."""
        found = {what: at - self._before[what] for what, at in self._times().items()}
        stats = self._publisher.stats()
        return {
            **found,
            "subscribers": stats.subscribers,
            "worst_publish_ms": self._worst_s * 1e3,
            "worst_publish_cpu_ms": self._worst_cpu_s * 1e3,
            "control_dropped": stats.control_dropped,
            "frames_shed": stats.frames_shed,
        }

    def close(self) -> None:
        self._stop.set()
        self._publisher.close(timeout=0)

    def _publish(self) -> None:
        while not self._stop.wait(self._pause_s):
            begun, cpu = time.monotonic(), time.thread_time()
            self._publisher.publish("t0", b"x" * 100)
            self._worst_s = max(self._worst_s, time.monotonic() - begun)
            self._worst_cpu_s = max(self._worst_cpu_s, time.thread_time() - cpu)
            self._published += 1

    def _times(self) -> dict[str, float]:
        driver = self._publisher._driver.thread.native_id
        own = {driver: "driver_s", self._thread.native_id: "publishing_s"}
        found = {"driver_s": 0.0, "publishing_s": 0.0, "others_s": 0.0}
        for task in Path("/proc/self/task").iterdir():
            found[own.get(int(task.name), "others_s")] += thread_seconds(int(task.name))
        return {
            **found,
            "published": self._published,
            "control_sent": self._publisher._core.control.sent,
        }


class Joining:
    """Some hundreds of subscribers in one thread."""

    def __init__(self) -> None:
        self._joiners: list[Any] = []

    def join(self, endpoint: str, count: int, first: int) -> dict[str, float]:
        """Let all of them join; return how long it took, and what they sent and got."""
        if not can_open(count):
            raise TrialError("the system allows too few open files")
        cpu = time.process_time()
        self._joiners, seconds = join_all(endpoint, count, DEADLINE_SECONDS, first=first)
        return {
            "seconds": seconds,
            "joined": sum(joiner.joined for joiner in self._joiners),
            "probes": sum(joiner.probes for joiner in self._joiners),
            "echoes": sum(joiner.echoes for joiner in self._joiners),
            "cpu_s": time.process_time() - cpu,
        }

    def linger(self) -> None:
        """Go on for a while, so that they are counted."""
        turn_until(self._joiners, lambda: False, 1.0)

    def close(self) -> None:
        os._exit(0)  # closing a thousand sockets is not what is measured


def measure(count: int = COUNT, *, rate: float = 0.0, topic_count: int = 1) -> dict[str, float]:
    """Let `count` subscribers join at once; return the seconds until the last one has.

    Args:
        count: how many; in four processes.
        rate: messages a second that the publisher publishes meanwhile. Default 0: it is idle.
        topic_count: topics of the publisher.

    """
    with Children() as children:
        feed = children.start(Feed, topic_count, rate)
        crowds = [children.start(Joining) for _ in range(PROCESSES)]
        call_all(crowds, "ready")
        endpoint, each = feed.call("endpoint"), count // PROCESSES
        feed.call("begin")
        for at, crowd in enumerate(crowds):
            crowd.begin("join", endpoint, each, 1 + at * each)
        parts = gather(crowds, DEADLINE_SECONDS + 20)
        cost = feed.call("end")
        call_all(crowds, "linger")
        there = feed.call("end")["subscribers"]
    joined = sum(part["joined"] for part in parts)
    if joined != each * PROCESSES:
        raise TrialError(f"{joined} of {each * PROCESSES} joined in {DEADLINE_SECONDS:.0f} s")
    if there != joined:
        raise TrialError(f"{joined} joined, and the publisher counts {there}")
    return {
        **cost,
        "seconds": max(part["seconds"] for part in parts),
        "subscribers_cpu_s": sum(part["cpu_s"] for part in parts),
        "probes": sum(part["probes"] for part in parts),
        "echoes": sum(part["echoes"] for part in parts),
    }


def main() -> None:
    """Measure once, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0, help="messages a second (default: none)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.count, rate=options.rate, topic_count=options.topics)
    if options.json:
        print(json.dumps(found))
        return
    for what, figure in found.items():
        print(f"{what:>20}  {figure:,.3f}")


if __name__ == "__main__":
    main()
