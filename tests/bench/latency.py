"""`make bench ONLY=latency`: the age of messages that are sent at an even pace, and its tail."""

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.bench.harness import Children, Contender, PingPongRole, Plan, gather, play_ping_pong
from tests.bench.loads import SMALL_BYTES, TrialError
from tests.bench.ours import OURS
from tests.bench.peers import RAW_ZMQ
from tests.bench.report import Goal, Row, compare_percentiles

AREA = "latency"
_STAMP = struct.Struct("!Qq")
_TAIL = bytes(SMALL_BYTES - _STAMP.size)
_SECONDS_MIN = 2.0
"""A trial has at least so many seconds, so that there are some messages beyond each percentile."""


@dataclass(frozen=True)
class Pace:
    """A rate, and for each percentile the bound and the aim of ours against raw pyzmq."""

    rate: int
    goals: dict[str, tuple[float, float]]


PACES = (
    Pace(
        10_000,
        {"median": (1.1, 0.9), "99th percentile": (1.5, 1), "99.9th percentile": (1.2, 1)},
    ),
    Pace(1_000, {"99th percentile": (1.5, 1)}),
    Pace(50_000, {"99th percentile": (1.5, 1)}),
    Pace(200_000, {"99th percentile": (1.5, 1)}),
)
PING_PONG = {"99th percentile": (1.2, 0.9), "99.9th percentile": (1.5, 1)}


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    for pace in PACES:
        what = f"one way, {pace.rate:,} messages a second"
        yield from _compared(what, pace.goals, plan, partial(measure_one_way, plan, pace.rate))
    yield from _compared("ping-pong", PING_PONG, plan, partial(_ping_pong, plan))


def _compared(
    what: str,
    goals: dict[str, tuple[float, float]],
    plan: Plan,
    measure: Callable[[Contender], list[int]],
) -> Iterator[Row]:
    rows = {
        name: Goal(AREA, f"{what}, {name} against raw pyzmq", "µs", *bounds, lower_is_better=True)
        for name, bounds in goals.items()
    }
    sides = partial(measure, OURS), partial(measure, RAW_ZMQ)
    return compare_percentiles(what, rows, *sides, plan.run_count)


class PacedSender:
    """Sends numbered, stamped messages at an even pace; it sleeps in between, unless it `spins`."""

    def __init__(self, contender: Contender, *, spins: bool = False) -> None:
        self._sender = contender.open_sender()
        self._spins = spins

    def endpoint(self) -> str:
        return self._sender.endpoint

    def wait_ready(self, count: int = 1) -> None:
        self._sender.wait_ready(count)

    def send(self, count: int, rate: int) -> None:
        send, now_ns, sleep = self._sender.send_one, time.monotonic_ns, time.sleep
        start_ns = now_ns()
        for number in range(count):
            due_ns = start_ns + number * 1_000_000_000 // rate
            while (left_ns := due_ns - now_ns()) > 0:
                if not self._spins:
                    sleep(left_ns / 1e9)
                elif left_ns > 200_000:
                    sleep((left_ns - 100_000) / 1e9)
            send(_STAMP.pack(number, now_ns()) + _TAIL)

    def close(self) -> None:
        self._sender.close()


class StampReader:
    """Notes how old each message is when it is received."""

    def __init__(self, contender: Contender, endpoint: str) -> None:
        self._receiver = contender.open_receiver(endpoint)

    def receive(self, count: int) -> list[int]:
        """Return the ages in ns, in order."""
        receive, unpack, now_ns = self._receiver.receive_one, _STAMP.unpack_from, time.monotonic_ns
        ages = []
        for number in range(count):
            sent_number, sent_ns = unpack(receive())
            ages.append(now_ns() - sent_ns)
            if sent_number != number:
                raise TrialError(f"message {sent_number} came where {number} was due")
        return ages

    def close(self) -> None:
        self._receiver.close()


def measure_one_way(
    plan: Plan, rate: int, contender: Contender, sender_role: type[PacedSender] = PacedSender
) -> list[int]:
    """Return how old each message was when it was received, in ns; not of the first tenth."""
    count = int(rate * max(plan.seconds, _SECONDS_MIN))
    with Children() as children:
        sender = children.start(sender_role, contender)
        reader = children.start(StampReader, contender, sender.call("endpoint"))
        reader.call("ready")
        sender.call("wait_ready")
        reader.begin("receive", count)
        sender.begin("send", count, rate)
        _, ages = gather([sender, reader])
    return list(ages[count // 10 :])


def _ping_pong(plan: Plan, contender: Contender) -> list[int]:
    seconds = max(plan.seconds, _SECONDS_MIN)
    return list(play_ping_pong(contender, PingPongRole, "trips", seconds))
