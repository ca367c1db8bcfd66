"""The peers of asyncio: against the threaded ones, zmq.asyncio, nats-py and Zenoh."""

import importlib.util
import statistics
from collections.abc import Callable, Iterator
from functools import partial

from tests.bench import aio_roles as roles
from tests.bench import asyncio_requests
from tests.bench.harness import Children, Contender, Plan, gather, measure_ping_pong
from tests.bench.peers import why_no_zenoh
from tests.bench.report import Goal, Row, duty_goal, rate_goal

AREA = "asyncio"
DELAY_COUNT = 1_000_000
IDLE_SECONDS_PER_TRIAL_SECOND = 4

_rate, _duty = partial(rate_goal, AREA), partial(duty_goal, AREA)


def why_no_nats() -> str | None:
    """Return why nats-py cannot be measured, or None."""
    if importlib.util.find_spec("nats") is None:
        return "nats-py is not installed (pip install -e '.[bench]')"
    if roles.nats_server() is None:
        return "there is no nats-server, which nats-py needs (apt install nats-server)"
    return None


def _always() -> None:
    return None


Race = tuple[Goal, Contender, Contender, Callable[[], str | None]]
RACES: tuple[Race, ...] = (
    (_rate("async for, against the threaded for", 0.7, 0.95),
     roles.OURS_AIO, roles.OURS_FOR, _always),
    (_rate("batches(), against the threaded receive_many", 0.9, 1),
     roles.OURS_AIO_MANY, roles.OURS_MANY, _always),
    (_rate("async for, against zmq.asyncio's drained loop", 2, 4),
     roles.OURS_AIO, roles.ZMQ_AIO, _always),
    (_rate("async for, against nats-py", 5, 20), roles.OURS_AIO, roles.NATS, why_no_nats),
    (_rate("async for, against Zenoh advanced in asyncio", 5, 20),
     roles.OURS_AIO, roles.ZENOH_AIO, why_no_zenoh),
)  # fmt: skip
PING_PONG = Goal(AREA, "ping-pong, median of RTT/2, against zmq.asyncio", "µs", 0.6, 0.4,
                 lower_is_better=True)  # fmt: skip
DELAY = _duty("worst delay of another task at full rate", 10, 2, "ms")
IDLE = _duty("idle subscriber, a task waiting in receive", 0.5, 0.1, "% of a core")


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    for race in RACES:
        yield race[0].guarded(partial(_run_race, race, plan))
    yield PING_PONG.guarded(partial(_run_ping_pong, plan))
    yield DELAY.guarded(partial(_run_delay, plan))
    yield IDLE.guarded(partial(_run_idle, plan))
    yield asyncio_requests.trips(plan)


def _run_race(race: Race, plan: Plan) -> Row:
    goal, ours, peer, why_not = race
    reason = why_not()
    if reason is not None:
        return goal.missing(reason)
    return goal.raced(ours, peer, plan)


def _run_ping_pong(plan: Plan) -> Row:
    return PING_PONG.compared(
        partial(measure_ping_pong, "ours", plan, roles.AioPingPong),
        partial(measure_ping_pong, "zmq", plan, roles.AioPingPong),
        plan.run_count,
    )


def _run_delay(plan: Plan) -> Row:
    delays, worked = [], []
    for _ in range(plan.run_count):
        with Children() as children:
            publisher = children.start(roles.DelaySender)
            subscriber = children.start(roles.AioDelay, publisher.call("endpoint_text"))
            subscriber.call("ready")
            publisher.call("wait_ready", 1)
            subscriber.begin("receive_and_tick", DELAY_COUNT)
            publisher.begin("send_all", DELAY_COUNT)
            delay, work = gather([subscriber, publisher])[0]
            delays.append(delay)
            worked.append(work)
    note = (
        "a task that wakes up every ms; the rest is what the system gave to others: "
        f"the loop's own work meanwhile was {statistics.median(worked):.2f} ms at most"
    )
    return DELAY.measured(delays, note)


def _run_idle(plan: Plan) -> Row:
    with Children() as children:
        publisher = children.start(roles.DelaySender)
        subscriber = children.start(roles.AioDelay, publisher.call("endpoint_text"))
        subscriber.call("ready")
        publisher.call("wait_ready", 1)
        seconds = plan.seconds * IDLE_SECONDS_PER_TRIAL_SECOND
        subscriber.call("cpu_share_waiting", 0.5)
        return IDLE.measured([subscriber.call("cpu_share_waiting", seconds)])
