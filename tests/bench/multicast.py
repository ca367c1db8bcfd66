"""UDP multicast: rates against raw sockets, LCM and Cyclone DDS; repairs; latency."""

import random
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.bench.dds import DdsReceiver, DdsSender
from tests.bench.groups import (
    GroupReceiver,
    GroupSender,
    LcmReceiver,
    LcmSender,
    Namespaces,
    RawUdpReceiver,
    RawUdpSender,
    Wire,
    over,
    why_not,
)
from tests.bench.harness import (
    Child,
    Children,
    Contender,
    Plan,
    call_all,
    gather,
    measure_throughput,
    say,
)
from tests.bench.latency import PacedSender, StampReader, measure_one_way
from tests.bench.loads import TrialError
from tests.bench.report import Goal, Row, compare_percentiles, duty_goal, rate_goal
from tests.simulation.crowd import lose_one

AREA = "multicast"
LOSS = 0.01
REPAIR_LOSS = 0.05
CROWD = 10_000
CROWD_SEEDS = 20


_rate, _duty = partial(rate_goal, AREA), partial(duty_goal, AREA)

RACES = (
    (_rate("publish_many + receive_many, against raw UDP multicast", 10, 25), "socket",
     ("raw UDP multicast", RawUdpSender, RawUdpReceiver)),
    (_rate("the same against LCM", 10, 25), "lcm", ("LCM", LcmSender, LcmReceiver)),
    (_rate("the same against Cyclone DDS, reliable and keep-all", 25, 60), "cyclonedds",
     ("Cyclone DDS", DdsSender, DdsReceiver)),
)  # fmt: skip
"""A goal, the package that its peer needs, and the peer."""
LOSSY = _rate("the same at 1 % loss, against no loss", 0.7, 0.9)
REPAIRS = {
    1: _duty("gap to repair, 99th percentile, 5 % loss, one receiver", 15, 5, "ms"),
    4: _duty("gap to repair, 99th percentile, 5 % loss, four receivers", 25, 12, "ms"),
}
LATENCIES = {
    name: Goal(AREA, f"one-way latency, {name}, 10,000 msg/s, against raw UDP", "µs", *bounds,
               lower_is_better=True)
    for name, bounds in (("median", (1.4, 1.15)), ("99th percentile", (2, 1.3)))
}  # fmt: skip
TRAFFIC = _duty("repairs sent for each byte that four receivers lost together", 1.3, 1.1, "×")
NACKS = _duty("simulated: NACKs a lost datagram, 10,000 receivers", 10, 4, "NACKs")


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    with Namespaces() as wire:
        note = "veth between two namespaces" if wire.sender_pid else "loopback: no privilege"
        for goal, package, peer in RACES:
            if reason := why_not(package):
                yield goal.missing(reason)
                continue
            yield goal.guarded(lambda g=goal, p=peer: _race(g, p, wire, plan, note))
        yield LOSSY.guarded(lambda: _run_lossy(wire, plan))
        for receivers, goal in REPAIRS.items():
            yield goal.guarded(lambda g=goal, r=receivers: _run_repairs(g, r, wire, plan))
        yield from _run_latency(wire, plan)
        yield TRAFFIC.guarded(lambda: _run_traffic(wire, plan))
    outcomes = [lose_one(CROWD, seed).nacks for seed in range(CROWD_SEEDS)]
    yield NACKS.measured([statistics.mean(outcomes)], f"of {CROWD_SEEDS}, at most {max(outcomes)}")


def _ours(wire: Wire, plan: Plan, loss: float = 0.0) -> float:
    name = f"p2pmsg, multicast, {loss:.0%} lost"
    ours = over(wire, name, GroupSender, GroupReceiver, loss=loss)
    return measure_throughput(ours, "small", 1, plan)


def _race(goal: Goal, peer: Any, wire: Wire, plan: Plan, note: str) -> Row:
    return goal.compared(
        lambda: _ours(wire, plan),
        lambda: measure_throughput(over(wire, *peer), "small", 1, plan),
        plan.run_count,
        note,
    )


def _run_lossy(wire: Wire, plan: Plan) -> Row:
    return LOSSY.compared(
        lambda: _ours(wire, plan, LOSS),
        lambda: _ours(wire, plan),
        plan.run_count,
        "trains are lost whole, as the kernel filters them",
    )


def _run_repairs(goal: Goal, receivers: int, wire: Wire, plan: Plan) -> Row:
    figures = []
    for _ in range(plan.run_count):
        figures.append(measure_repairs(wire, receivers, REPAIR_LOSS, 3 * plan.seconds))
        say(f"{goal.what}: {figures[-1]:.1f} ms")
    return goal.measured(figures)


def _run_latency(wire: Wire, plan: Plan) -> Iterator[Row]:
    def measure(ours: bool) -> list[int]:
        ends = (GroupSender, GroupReceiver) if ours else (RawUdpSender, RawUdpReceiver)
        one = over(wire, "one way", *ends)
        return measure_one_way(plan, LATENCY_RATE, one, SpinningSender)

    sides = partial(measure, True), partial(measure, False)
    return compare_percentiles("one-way latency", LATENCIES, *sides, plan.run_count)


def _run_traffic(wire: Wire, plan: Plan) -> Row:
    figures = [
        measure_repair_traffic(wire, REPAIR_LOSS, 3 * plan.seconds) for _ in range(plan.run_count)
    ]
    return TRAFFIC.measured(figures, "what is lost counts repairs that were lost")


LATENCY_RATE = 10_000
REPAIR_RATE = 2_000


class SpinningSender(PacedSender):
    """Does not sleep in between; perhaps its messages go over a link that loses some."""

    def __init__(self, contender: Contender, link_loss: float = 0.0) -> None:
        super().__init__(contender, spins=True)
        self._link = LossyLink(self._sender.publisher, link_loss) if link_loss else None

    def repair_ratio(self) -> float:
        """Bytes sent again for each byte that the link lost."""
        assert self._link is not None
        stats = self._sender.publisher.stats().multicast
        return stats.bytes_repaired / max(1, self._link.lost_bytes)


class LossyLink:
    """A link at the publisher, before the ways part: what it loses, all receivers lose."""

    def __init__(self, publisher: Any, loss: float) -> None:
        udp = publisher._peer.sender._udp
        send, send_train = udp.send, udp.send_train
        rng = random.Random(7)
        self.lost_bytes = 0

        def lossy_send(datagram: bytes, address: Any = None) -> bool:
            if rng.random() < loss:
                self.lost_bytes += len(datagram)
                return True
            return send(datagram, address)

        def lossy_train(pieces: Any, segment: int) -> bool:
            if rng.random() < loss:
                self.lost_bytes += sum(map(len, pieces))
                return True
            return send_train(pieces, segment)

        udp.send, udp.send_train = lossy_send, lossy_train


class RepairedReader(StampReader):
    """Reports what was repaired."""

    def repairs(self) -> dict[str, float]:
        stats = self._receiver.subscriber.stats()
        if stats.lost or not stats.balanced:
            raise TrialError(f"{stats.lost} messages were reported lost")
        found = stats.repair_latency
        return {"count": found.count, "p99_ms": found.percentile(99) / 1e6}


def measure_repairs(wire: Wire, receivers: int, loss: float, seconds: float) -> float:
    """99th percentile from gap to repair, in ms: the worst of the receivers."""
    count = int(REPAIR_RATE * seconds)
    with Children() as children:
        _, others = _send_with_loss(children, wire, receivers, count, ends_loss=loss)
        found = [other.call("repairs") for other in others]
    if min(one["count"] for one in found) < count * loss / 4:
        raise TrialError(f"hardly anything was lost: {found}")
    return max(one["p99_ms"] for one in found)


def measure_repair_traffic(wire: Wire, loss: float, seconds: float) -> float:
    """Bytes sent again for each byte that four receivers lost together."""
    count = int(REPAIR_RATE * seconds)
    with Children() as children:
        sender, _ = _send_with_loss(children, wire, 4, count, link_loss=loss)
        return float(sender.call("repair_ratio"))


def _send_with_loss(
    children: Children,
    wire: Wire,
    receivers: int,
    count: int,
    *,
    link_loss: float = 0.0,
    ends_loss: float = 0.0,
) -> tuple[Child, list[Child]]:
    """Send `count` messages, of which the link loses a part, or each receiver; return the ends."""
    ours = over(wire, "p2pmsg", GroupSender, GroupReceiver, loss=ends_loss)
    one = children.start(SpinningSender, ours, link_loss)
    endpoint = one.call("endpoint")
    others = [children.start(RepairedReader, ours, endpoint) for _ in range(receivers)]
    call_all(others, "ready")
    one.call("wait_ready", receivers)
    for other in others:
        other.begin("receive", count)
    one.begin("send", count, REPAIR_RATE)
    gather([one, *others])
    return one, others
