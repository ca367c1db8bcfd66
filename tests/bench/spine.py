"""The spine: publisher to subscribers over TCP, against the peers, and what idling costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.bench.duty import measure_idle, measure_memory, measure_repair
from tests.bench.harness import (
    Contender,
    Plan,
    compare,
    measure_ping_pong,
    measure_throughput,
    say,
)
from tests.bench.joining import RATE, measure
from tests.bench.loads import LARGE_BYTES, TrialError
from tests.bench.ours import REPLAY_BYTES, Ours, OursMany, why_not_ours
from tests.bench.peers import BatchZmq, MsgpackZmq, RawZmq, Zenoh, why_no_zenoh
from tests.bench.report import Goal, Row

AREA = "spine"
IDLE_SECONDS_PER_TRIAL_SECOND = 4
REPAIR_SECONDS_PER_TRIAL_SECOND = 3
REPAIR_RUNS_MAX = 3
JOINING_RUNS_MAX = 3
MEGABYTE = 1e6


@dataclass(frozen=True)
class Race:
    """A row of throughput: ours and a peer, the load and the number of subscribers."""

    goal: Goal
    ours: Contender
    peer: Contender
    load: str = "small"
    subscriber_count: int = 1
    scale: float = 1.0
    """From messages a second to the unit of the row."""


def _rate(what: str, bound: float, aim: float, unit: str = "msg/s") -> Goal:
    return Goal(AREA, what, unit, bound, aim)


RACES = (
    Race(
        _rate("publish and iterate one by one, against raw pyzmq", 1.5, 2.5),
        Ours(),
        RawZmq(),
    ),
    Race(
        _rate("a dict of five fields, against pyzmq + msgpack a message", 4, 6),
        Ours(),
        MsgpackZmq(),
        load="dict",
    ),
    Race(
        _rate("publish_many + receive_many, against hand-written 64 KiB batches", 0.9, 1.2),
        OursMany(),
        BatchZmq(),
    ),
    Race(
        _rate("one publisher to four subscribers, at each, against raw pyzmq", 1.3, 2),
        Ours(),
        RawZmq(),
        subscriber_count=4,
    ),
    Race(
        _rate("64 KiB values, against raw pyzmq", 0.9, 1, unit="MB/s"),
        Ours(),
        RawZmq(),
        load="large",
        scale=LARGE_BYTES / MEGABYTE,
    ),
    Race(
        _rate("publish and iterate one by one, against Zenoh advanced", 3, 5),
        Ours(),
        Zenoh(),
    ),
)

PING_PONG = Goal(
    AREA,
    "ping-pong, median of RTT/2, against raw pyzmq",
    unit="µs",
    bound=1.25,
    aim=1.1,
    lower_is_better=True,
)


def _duty(what: str, bound: float, aim: float, unit: str) -> Goal:
    """A goal with a bound of its own, the lower the better."""
    return Goal(AREA, what, unit, bound, aim, lower_is_better=True, against_peer=False)


REPAIR = _duty("gap to repair, 99th percentile, 10 % of frames lost", 10, 3, "ms")
IDLE = {
    "publisher": _duty("idle publisher", 1, 0.5, "% of a core"),
    "waiting": _duty("idle subscriber, waiting in receive", 1, 0.5, "% of a core"),
    "asleep": _duty("idle subscriber, nobody waiting", 1, 0.5, "% of a core"),
}
MEMORY = _duty(
    "publisher's peak RSS growth, a subscriber never reads", 1.2, 1.1, "× the 64 MiB buffer"
)
JOINING = {
    0.0: _duty("1,000 subscribers of all topics join an idle publisher at once", 5, 2, "s"),
    RATE: _duty(f"the same, and it publishes {RATE:.0f} messages a second", 10, 4, "s"),
}


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    reason = why_not_ours()
    if reason is not None:
        say(f"{reason}; measuring the peers alone")
        yield from _peers_alone(plan, reason)
        return
    for race in RACES:
        yield _guarded(race.goal, lambda race=race: _run_race(race, plan))
    yield _guarded(PING_PONG, lambda: _run_ping_pong(plan))
    yield _guarded(REPAIR, lambda: _run_repair(plan))
    yield from _run_idle(plan)
    yield _guarded(MEMORY, lambda: _run_memory(plan))
    for rate, goal in JOINING.items():
        yield _guarded(goal, lambda goal=goal, rate=rate: _run_joining(goal, rate, plan))


def _guarded(goal: Goal, measure: Callable[[], Row]) -> Row:
    """A failed trial is a row that says so, and the next row is measured all the same."""
    try:
        return measure()
    except TrialError as error:
        say(f"{goal.what}: {error}")
        return goal.missing(f"trial failed: {error}", ok=False)


def _run_race(race: Race, plan: Plan) -> Row:
    reason = why_no_zenoh() if isinstance(race.peer, Zenoh) else None
    if reason is not None:
        return race.goal.missing(reason)

    def measure(contender: Contender) -> float:
        rate = measure_throughput(contender, race.load, race.subscriber_count, plan)
        return rate * race.scale

    comparison = compare(
        race.goal.what, lambda: measure(race.ours), lambda: measure(race.peer), plan.run_count
    )
    return race.goal.compared(comparison)


def _run_ping_pong(plan: Plan) -> Row:
    comparison = compare(
        PING_PONG.what,
        lambda: measure_ping_pong(Ours(), plan),
        lambda: measure_ping_pong(RawZmq(), plan),
        plan.run_count,
    )
    return PING_PONG.compared(comparison)


def _run_repair(plan: Plan) -> Row:
    seconds = plan.seconds * REPAIR_SECONDS_PER_TRIAL_SECOND
    trials = [
        measure_repair(seconds, seed) for seed in range(1, 1 + min(plan.run_count, REPAIR_RUNS_MAX))
    ]
    medians = ", ".join(f"{trial['p50_ms']:.2f}" for trial in trials)
    return REPAIR.measured([trial["p99_ms"] for trial in trials], f"medians {medians} ms")


def _run_idle(plan: Plan) -> Iterator[Row]:
    try:
        shares = measure_idle(plan.seconds * IDLE_SECONDS_PER_TRIAL_SECOND)
    except TrialError as error:
        say(f"idle: {error}")
        yield from (goal.missing(f"trial failed: {error}", ok=False) for goal in IDLE.values())
        return
    for end, goal in IDLE.items():
        yield goal.measured([shares[end]])


def _run_joining(goal: Goal, rate: float, plan: Plan) -> Row:
    trials = [measure(rate=rate) for _ in range(min(plan.run_count, JOINING_RUNS_MAX))]
    trial = trials[-1]
    note = (
        f"publisher's processor {trial['driver_s'] + trial['publishing_s']:.2f} s and libzmq's "
        f"{trial['others_s']:.2f} s, subscribers' {trial['subscribers_cpu_s']:.1f} s; "
        f"{trial['probes']:.0f} probes"
    )
    if rate:
        slowest = max(each["worst_publish_ms"] for each in trials)
        worked = max(each["worst_publish_cpu_ms"] for each in trials)
        note += f"; slowest publish {slowest:.0f} ms, {worked:.1f} ms of it at work"
    return goal.measured([each["seconds"] for each in trials], note)


def _run_memory(plan: Plan) -> Row:
    growth = measure_memory(plan.seconds * IDLE_SECONDS_PER_TRIAL_SECOND)
    note = (
        f"{growth['count']:,.0f} messages published; "
        f"the subscriber grew by {growth['subscriber_bytes'] / 2**20:.1f} MiB"
    )
    return MEMORY.measured([growth["publisher_bytes"] / REPLAY_BYTES], note)


def _peers_alone(plan: Plan, reason: str) -> Iterator[Row]:
    """While p2pmsg cannot be measured, show what it will have to beat."""
    for race in RACES:
        if isinstance(race.peer, Zenoh) and why_no_zenoh() is not None:
            yield race.goal.missing(f"{reason}; {why_no_zenoh()}")
            continue
        yield _guarded(race.goal, lambda race=race: _run_peer(race, plan, reason))
    trips_us = [measure_ping_pong(RawZmq(), plan) for _ in range(plan.run_count)]
    yield PING_PONG.alone(trips_us, reason)
    for goal in (REPAIR, *IDLE.values(), MEMORY, *JOINING.values()):
        yield goal.missing(reason)


def _run_peer(race: Race, plan: Plan, reason: str) -> Row:
    rates = [
        measure_throughput(race.peer, race.load, race.subscriber_count, plan)
        for _ in range(plan.run_count)
    ]
    return race.goal.alone([rate * race.scale for rate in rates], reason)
