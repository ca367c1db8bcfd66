"""The spine: publisher to subscribers over TCP, against the peers, and what idling costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.bench.duty import (
    IDLE_STREAMS,
    measure_idle,
    measure_idle_streams,
    measure_memory,
    measure_repair,
)
from tests.bench.harness import Contender, Plan, measure_ping_pong, say
from tests.bench.loads import LARGE_BYTES, TrialError
from tests.bench.ours import OURS, OURS_MANY, REPLAY_BYTES
from tests.bench.peers import BATCH_ZMQ, MSGPACK_ZMQ, RAW_ZMQ, ZENOH, why_no_zenoh
from tests.bench.report import Goal, Row, duty_goal, rate_goal

AREA = "spine"
IDLE_SECONDS_PER_TRIAL_SECOND = 4
REPAIR_SECONDS_PER_TRIAL_SECOND = 3
REPAIR_RUNS_MAX = 3
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


_rate, _duty = partial(rate_goal, AREA), partial(duty_goal, AREA)
RACES = (
    Race(_rate("publish and iterate one by one, against raw pyzmq", 1.5, 2.5), OURS, RAW_ZMQ),
    Race(_rate("a dict of five fields, against pyzmq + msgpack a message", 4, 6),
         OURS, MSGPACK_ZMQ, load="dict"),
    Race(_rate("publish_many + receive_many, against hand-written 64 KiB batches", 0.9, 1.2),
         OURS_MANY, BATCH_ZMQ),
    Race(_rate("one publisher to four subscribers, at each, against raw pyzmq", 1.3, 2),
         OURS, RAW_ZMQ, subscriber_count=4),
    Race(_rate("64 KiB values, against raw pyzmq", 0.9, 1, unit="MB/s"),
         OURS, RAW_ZMQ, load="large", scale=LARGE_BYTES / MEGABYTE),
    Race(_rate("publish and iterate one by one, against Zenoh advanced", 3, 5), OURS, ZENOH),
)  # fmt: skip
PING_PONG = Goal(AREA, "ping-pong, median of RTT/2, against raw pyzmq", "µs", 1.25, 1.1,
                 lower_is_better=True)  # fmt: skip
REPAIR = _duty("gap to repair, 99th percentile, 10 % of frames lost", 10, 3, "ms")
IDLE = {
    "publisher": _duty("idle publisher", 1, 0.5, "% of a core"),
    "waiting": _duty("idle subscriber, waiting in receive", 1, 0.5, "% of a core"),
    "asleep": _duty("idle subscriber, nobody waiting", 1, 0.5, "% of a core"),
}
STREAMS = {
    "publisher": _duty(f"publisher of {IDLE_STREAMS:,} idle streams", 3, 0.5, "% of a core"),
    "waiting": _duty("subscriber of these, waiting in receive", 3, 0.5, "% of a core"),
}
MEMORY = _duty(
    "publisher's peak RSS growth, a subscriber never reads", 1.2, 1.1, "× the 64 MiB buffer"
)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    for race in RACES:
        yield race.goal.guarded(lambda race=race: _run_race(race, plan))
    yield PING_PONG.guarded(lambda: _run_ping_pong(plan))
    yield REPAIR.guarded(lambda: _run_repair(plan))
    yield from _run_idle(IDLE, measure_idle, plan)
    yield from _run_idle(STREAMS, measure_idle_streams, plan)
    yield MEMORY.guarded(lambda: _run_memory(plan))


def _run_race(race: Race, plan: Plan) -> Row:
    reason = why_no_zenoh() if race.peer is ZENOH else None
    if reason is not None:
        return race.goal.missing(reason)

    return race.goal.raced(
        race.ours,
        race.peer,
        plan,
        load=race.load,
        subscribers=race.subscriber_count,
        scale=race.scale,
    )


def _run_ping_pong(plan: Plan) -> Row:
    return PING_PONG.compared(
        lambda: measure_ping_pong(OURS, plan),
        lambda: measure_ping_pong(RAW_ZMQ, plan),
        plan.run_count,
    )


def _run_repair(plan: Plan) -> Row:
    seconds = plan.seconds * REPAIR_SECONDS_PER_TRIAL_SECOND
    trials = [
        measure_repair(seconds, seed) for seed in range(1, 1 + min(plan.run_count, REPAIR_RUNS_MAX))
    ]
    medians = ", ".join(f"{trial['p50_ms']:.2f}" for trial in trials)
    return REPAIR.measured([trial["p99_ms"] for trial in trials], f"medians {medians} ms")


def _run_idle(
    goals: dict[str, Goal], measure: Callable[[float], dict[str, float]], plan: Plan
) -> Iterator[Row]:
    try:
        shares = measure(plan.seconds * IDLE_SECONDS_PER_TRIAL_SECOND)
    except TrialError as error:
        say(f"idle: {error}")
        yield from (goal.missing(f"trial failed: {error}", ok=False) for goal in goals.values())
        return
    for end, goal in goals.items():
        yield goal.measured([shares[end]])


def _run_memory(plan: Plan) -> Row:
    growth = measure_memory(plan.seconds * IDLE_SECONDS_PER_TRIAL_SECOND)
    note = (
        f"{growth['count']:,.0f} messages published; "
        f"the subscriber grew by {growth['subscriber_bytes'] / 2**20:.1f} MiB"
    )
    return MEMORY.measured([growth["publisher_bytes"] / REPLAY_BYTES], note)
