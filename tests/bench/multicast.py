"""UDP multicast: rates against raw sockets, LCM and Cyclone DDS; repairs; latency."""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from tests.bench.dds import Dds
from tests.bench.group_duty import measure_latency, measure_repair_traffic, measure_repairs
from tests.bench.groups import Lcm, Namespaces, OursGroup, RawUdp, Wire, pick_port, why_not
from tests.bench.harness import Plan, compare, measure_throughput, say
from tests.bench.loads import TrialError
from tests.bench.report import Goal, Row
from tests.simulation.crowd import lose_one

AREA = "multicast"
LOSS = 0.01
REPAIR_LOSS = 0.05
CROWD = 10_000
CROWD_SEEDS = 20


def _rate(what: str, bound: float, aim: float) -> Goal:
    return Goal(AREA, what, "msg/s", bound, aim)


def _duty(what: str, bound: float, aim: float, unit: str) -> Goal:
    return Goal(AREA, what, unit, bound, aim, lower_is_better=True, against_peer=False)


RACES: tuple[tuple[Goal, type, str], ...] = (
    (_rate("publish_many + receive_many, against raw UDP multicast", 10, 25), RawUdp, "socket"),
    (_rate("the same against LCM", 10, 25), Lcm, "lcm"),
    (_rate("the same against Cyclone DDS, reliable and keep-all", 25, 60), Dds, "cyclonedds"),
)
LOSSY = _rate("the same at 1 % loss, against no loss", 0.7, 0.9)
REPAIRS = {
    1: _duty("gap to repair, 99th percentile, 5 % loss, one receiver", 15, 5, "ms"),
    4: _duty("gap to repair, 99th percentile, 5 % loss, four receivers", 25, 12, "ms"),
}
LATENCY = Goal(
    AREA,
    "one-way latency, median, 10,000 msg/s, against raw UDP",
    unit="µs",
    bound=2,
    aim=1.4,
    lower_is_better=True,
)
TRAFFIC = _duty("repairs sent for each byte that four receivers lost together", 1.3, 1.1, "×")
NACKS = _duty("simulated: NACKs a lost datagram, 10,000 receivers", 10, 4, "NACKs")


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    with Namespaces() as wire:
        note = "veth between two namespaces" if wire.sender_pid else "loopback: no privilege"
        for goal, peer, package in RACES:
            reason = why_not(package)
            if reason is not None:
                yield goal.missing(reason)
                continue
            yield _guarded(goal, lambda g=goal, p=peer: _race(g, p, wire, plan, note))
        yield _guarded(LOSSY, lambda: _run_lossy(wire, plan))
        for receivers, goal in REPAIRS.items():
            yield _guarded(goal, lambda g=goal, r=receivers: _run_repairs(g, r, wire, plan))
        yield _guarded(LATENCY, lambda: _run_latency(wire, plan))
        yield _guarded(TRAFFIC, lambda: _run_traffic(wire, plan))
    outcomes = [lose_one(CROWD, seed).nacks for seed in range(CROWD_SEEDS)]
    yield NACKS.measured([statistics.mean(outcomes)], f"of {CROWD_SEEDS}, at most {max(outcomes)}")


def _guarded(goal: Goal, measure: Callable[[], Row]) -> Row:
    try:
        return measure()
    except TrialError as error:
        say(f"{goal.what}: {error}")
        return goal.missing(f"trial failed: {error}", ok=False)


def _throughput(kind: Any, wire: Wire, plan: Plan, *options: Any) -> float:
    return measure_throughput(kind(wire, pick_port(), *options), "small", 1, plan)


def _race(goal: Goal, peer: type, wire: Wire, plan: Plan, note: str) -> Row:
    comparison = compare(
        goal.what,
        lambda: _throughput(OursGroup, wire, plan),
        lambda: _throughput(peer, wire, plan),
        plan.run_count,
    )
    return goal.compared(comparison, note)


def _run_lossy(wire: Wire, plan: Plan) -> Row:
    comparison = compare(
        LOSSY.what,
        lambda: _throughput(OursGroup, wire, plan, LOSS),
        lambda: _throughput(OursGroup, wire, plan),
        plan.run_count,
    )
    return LOSSY.compared(comparison, "trains are lost whole, as the kernel filters them")


def _run_repairs(goal: Goal, receivers: int, wire: Wire, plan: Plan) -> Row:
    figures = []
    for _ in range(plan.run_count):
        port = pick_port()
        figures.append(measure_repairs(wire, port, receivers, REPAIR_LOSS, 3 * plan.seconds))
        say(f"{goal.what}: {figures[-1]:.1f} ms")
    return goal.measured(figures)


def _run_latency(wire: Wire, plan: Plan) -> Row:
    comparison = compare(
        LATENCY.what,
        lambda: measure_latency(True, wire, pick_port(), plan.seconds),
        lambda: measure_latency(False, wire, pick_port(), plan.seconds),
        plan.run_count,
    )
    return LATENCY.compared(comparison)


def _run_traffic(wire: Wire, plan: Plan) -> Row:
    figures = [
        measure_repair_traffic(wire, pick_port(), REPAIR_LOSS, 3 * plan.seconds)
        for _ in range(plan.run_count)
    ]
    return TRAFFIC.measured(figures, "what is lost counts repairs that were lost")
