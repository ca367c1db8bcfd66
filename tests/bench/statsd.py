"""StatsD: CPU time a metric against npm's statsd, memory, and the pause that a flush makes."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.bench.harness import Children, Plan, call_all, say
from tests.bench.loads import TrialError
from tests.bench.report import Goal, Row
from tests.bench.statsd_roles import (
    PACKED,
    Inspected,
    Sender,
    Server,
    start_npm,
    start_ours,
    why_no_npm,
)

AREA = "statsd"
SENDERS = 2
MANY_NAMES = 100_000
FLUSHES = 5
NS = 1e9
MEGABYTE = 1e6


def _goal(what: str, unit: str, bound: float, aim: float, *, against_peer: bool = False) -> Goal:
    return Goal(AREA, what, unit, bound, aim, lower_is_better=True, against_peer=against_peer)


PACKED_GOAL = _goal(
    f"{PACKED} metrics a datagram, 1,000 names, CPU time a metric, against npm's statsd",
    "ns", 1 / 4, 1 / 12, against_peer=True,
)  # fmt: skip
LONE_GOAL = _goal(
    "one metric a datagram, CPU time a metric, against npm's statsd",
    "ns", 3 / 4, 2 / 5, against_peer=True,
)  # fmt: skip
BRUBECK_GOAL = _goal(
    f"{PACKED} metrics a datagram, CPU time a metric (Brubeck: 120 ns here)", "ns", 120, 80
)
LONE_TIME_GOAL = _goal("one metric a datagram, CPU time a metric", "ns", 700, 400)
MEMORY_GOAL = _goal("memory of a collector with 100,000 names, all outputs", "MB", 90, 60)
PAUSE_GOAL = _goal("flush of 100,000 names: longest pause in reading", "ms", 20, 5)


def cost(start: Callable[[int], Server], packed: int, plan: Plan) -> float:
    """CPU time a metric in ns of a server that gets more than it can take."""
    cores = sorted(os.sched_getaffinity(0))
    server = start(cores[0])
    try:
        with Children() as children:
            senders = [
                children.start(Sender, server.port, packed, cores[1:] or cores)
                for _ in range(SENDERS)
            ]
            call_all(senders, "ready")
            call_all(senders, "blast", 0.5)  # names are known, and code is compiled
            _settle(server)
            before, began = server.received(), server.cpu_seconds()
            call_all(senders, "blast", plan.seconds)
            _settle(server)
            took = server.cpu_seconds() - began
            count = server.received() - before
    finally:
        server.close()
    if count < 10_000:
        raise TrialError(f"only {count} metrics were received")
    return took / count * NS


def _settle(server: Server) -> None:
    """Wait until what the kernel holds has been taken: received and paid for."""
    last = -1
    while (now := server.received()) != last:
        last = now
        time.sleep(0.1)


def run(plan: Plan) -> Iterator[Row]:
    """Measure every row."""
    reason = why_no_npm()
    packed: list[float] = []
    lone: list[float] = []

    def ours_packed() -> float:
        packed.append(cost(start_ours, PACKED, plan))
        return packed[-1]

    def ours_lone() -> float:
        lone.append(cost(start_ours, 1, plan))
        return lone[-1]

    if reason is None:
        yield PACKED_GOAL.compared(
            ours_packed, lambda: cost(start_npm, PACKED, plan), plan.run_count
        )
        yield LONE_GOAL.compared(ours_lone, lambda: cost(start_npm, 1, plan), plan.run_count)
    else:
        for _ in range(plan.run_count):
            ours_packed()
            ours_lone()
        yield replace(PACKED_GOAL.measured(packed), ok=None, note=reason)
        yield replace(LONE_GOAL.measured(lone), ok=None, note=reason)
    yield BRUBECK_GOAL.measured(packed)
    yield LONE_TIME_GOAL.measured(lone)
    yield from _many_names(plan)


def _many_names(plan: Plan) -> Iterator[Row]:
    used, pauses, worked, note = [], [], [], ""
    for number in range(plan.run_count):
        with Children() as children:
            inspected = children.start(Inspected)
            filled = inspected.call("fill", MANY_NAMES)
            used.append(filled["bytes"] / MEGABYTE)
            longest, busiest = [], []
            for _ in range(FLUSHES):
                inspected.call("fill", MANY_NAMES)
                figures = inspected.call("flush_pauses")
                longest.append(figures["pause_ms"])
                busiest.append(figures["cpu_ms"])
            pauses.append(statistics.median(longest))
            worked.append(max(busiest))
            say(
                f"100,000 names, run {number + 1}: {used[-1]:.0f} MB, longest pauses "
                f"{', '.join(f'{pause:.1f}' for pause in longest)} ms"
            )
            note = f"{filled['growth'] / MEGABYTE:.0f} MB more than before the first name"
    yield MEMORY_GOAL.measured(used, note)
    yield PAUSE_GOAL.measured(
        pauses,
        f"median of the longest pauses of {FLUSHES} flushes; of those, the collector's thread "
        f"computed for {statistics.median(worked):.1f} ms at most, and waited for a core else",
    )
