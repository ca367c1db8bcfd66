"""The local log: what it costs to keep, and how fast it is read."""

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.bench.harness import Children, Plan, compare, gather, measure_throughput, say
from tests.bench.loads import TrialError
from tests.bench.log_roles import (
    GroupCommitRole,
    LogRole,
    ManyPublisherOnLog,
    PublisherOnLog,
    Replayer,
    big_log_bytes,
    use_memory,
)
from tests.bench.ours import Ours, OursMany, OursSender
from tests.bench.report import Goal, Row

AREA = "log"
APPEND_BYTES = 1 << 30
REPLAY_COUNT = 4_000_000
READERS = 3
COMMITTERS = 16
FIRSTS = 20
FILL_SECONDS = 240.0


def _rate(what: str, bound: float, aim: float, unit: str = "msg/s") -> Goal:
    return Goal(AREA, what, unit, bound, aim)


def _duty(what: str, bound: float, aim: float, unit: str) -> Goal:
    return Goal(AREA, what, unit, bound, aim, lower_is_better=True, against_peer=False)


PUBLISH = _rate("publish with the log (fsync by interval), against without", 0.8, 0.95)
WRITTEN = _rate("publish one by one, acknowledged when written, against without a log", 0.75, 0.95)
WRITTEN_MANY = _rate("publish_many, acknowledged when written, against without a log", 0.75, 0.95)
SYNCED = _rate(
    "16 threads publish, acknowledged when synced, against a group commit by hand", 0.5, 0.9
)
APPEND = _rate("append, against plain sequential writes", 0.7, 0.9, "B/s")
OPEN = _duty("open after a crash", 1, 0.2, "s")
FIRST = _duty("first message of a replay from the middle", 20, 5, "ms")
REPLAY = _rate("replay over TCP, against live publish_many", 0.7, 1)
MEMORY = _duty("publisher's memory while three readers replay", 150, 80, "MB")
LIVE = _rate("live publishing while three readers replay, against alone", 0.6, 0.8)


@dataclass(frozen=True)
class OursLogged(Ours):
    """p2pmsg with a log."""

    name: str = "p2pmsg, logged"
    directory: str = ""
    acknowledge: str = "written"
    sender: type[PublisherOnLog] = PublisherOnLog

    def open_sender(self) -> OursSender:
        from tests.bench.ours import REPLAY_BYTES

        place = tempfile.mkdtemp(dir=self.directory)
        use_memory(place, APPEND_BYTES)
        return self.sender(place, REPLAY_BYTES, self.acknowledge)


@dataclass(frozen=True)
class OursLoggedMany(OursLogged, OursMany):
    """p2pmsg with a log, many messages a call."""

    sender: type[PublisherOnLog] = ManyPublisherOnLog


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    goals = (PUBLISH, WRITTEN, WRITTEN_MANY, SYNCED, APPEND, OPEN, FIRST, REPLAY, MEMORY, LIVE)
    try:
        missing = importlib.util.find_spec("recovery.log") is None
        reason = "there is no log"
        if not missing:
            importlib.import_module("recovery.log")
    except ImportError as error:
        missing, reason = True, f"{error.name} is not installed (pip install -e '.[log]')"
    if missing:
        yield from (goal.missing(reason) for goal in goals)
        return
    with tempfile.TemporaryDirectory(prefix="p2pmsg-bench-") as directory:
        gathered = OursLogged(directory=directory, acknowledge="gathered")
        yield _publishing(PUBLISH, gathered, Ours(), plan)
        yield _publishing(WRITTEN, OursLogged(directory=directory), Ours(), plan)
        yield _publishing(WRITTEN_MANY, OursLoggedMany(directory=directory), OursMany(), plan)
        yield _committing(plan, directory)
        yield _appending(plan, directory)
        yield from _big_log(plan, directory)


def _publishing(goal: Goal, logged: OursLogged, plain: Ours, plan: Plan) -> Row:
    comparison = compare(
        goal.what,
        lambda: measure_throughput(logged, "small", 1, plan),
        lambda: measure_throughput(plain, "small", 1, plan),
        plan.run_count,
    )
    return goal.compared(comparison, f"acknowledge={logged.acknowledge!r}")


def _committing(plan: Plan, directory: str) -> Row:
    def measure(method: str) -> float:
        with Children() as children:
            role = children.start(GroupCommitRole, directory)
            return float(role.call(method, COMMITTERS, plan.seconds))

    comparison = compare(
        SYNCED.what, lambda: measure("ours"), lambda: measure("by_hand"), plan.run_count
    )
    return SYNCED.compared(comparison)


def _appending(plan: Plan, directory: str) -> Row:
    def measure(method: str) -> float:
        with Children() as children:
            return float(children.start(LogRole, directory).call(method, APPEND_BYTES))

    comparison = compare(
        APPEND.what, lambda: measure("append"), lambda: measure("write"), plan.run_count
    )
    return APPEND.compared(comparison, f"{APPEND_BYTES >> 20} MiB of 256 KiB frames each")


@contextmanager
def _filled(directory: str, byte_count: int) -> Iterator[int]:
    """A log as a writer leaves it that is killed; the value is the next sequence."""
    with Children() as children:
        writer = children.start(LogRole, directory)
        following = writer.call("fill", byte_count, timeout=FILL_SECONDS)
        writer.kill()
    yield following


def _big_log(plan: Plan, directory: str) -> Iterator[Row]:
    byte_count = big_log_bytes()
    small_bytes = byte_count // 10
    big, small = f"{directory}/big", f"{directory}/small"
    say(f"writing logs of {byte_count / 1e9:.1f} and {small_bytes / 1e9:.1f} GB")
    with _filled(small, small_bytes) as small_next, _filled(big, byte_count) as big_next:
        note = f"a log of {byte_count / 1e9:.1f} GB; of {small_bytes / 1e9:.1f} GB: "
        small_figures = _open_and_find(small, small_next)
        figures = _open_and_find(big, big_next)
        yield OPEN.measured([figures[0]], note + f"{small_figures[0]:.3f} s")
        yield FIRST.measured(figures[1], note + f"{statistics.median(small_figures[1]):.2f} ms")
        yield _replaying(plan, big, big_next)
        yield _remembering(big, big_next)
        yield _publishing_meanwhile(plan, big, big_next)


def _open_and_find(directory: str, following: int) -> tuple[float, list[float]]:
    """Seconds to open, and ms to the first message of replays from various places."""
    with Children() as children:
        publisher = children.start(PublisherOnLog, directory)
        endpoint = publisher.call("where")
        seconds = publisher.call("open_seconds")
        replayer = children.start(Replayer, endpoint)
        replayer.call("ready")
        firsts = []
        for turn in range(FIRSTS):
            at = following * (turn + 5) // (FIRSTS + 10)
            firsts.append(1e3 * replayer.call("first_seconds", at))
            time.sleep(0.3)  # what was asked for beyond the first message is on its way
        return seconds, firsts


def _replaying(plan: Plan, directory: str, following: int) -> Row:
    count = min(REPLAY_COUNT, following // 2)

    def replay() -> float:
        with Children() as children:
            publisher = children.start(PublisherOnLog, directory)
            replayer = children.start(Replayer, publisher.call("where"))
            start = following - 2 * count
            return float(replayer.call("replay", start, start + count))

    comparison = compare(
        REPLAY.what, replay, lambda: measure_throughput(OursMany(), "small", 1, plan),
        plan.run_count,
    )  # fmt: skip
    return REPLAY.compared(comparison, f"{count:,} messages by a Subscriber from a sequence")


def _remembering(directory: str, following: int) -> Row:
    with Children() as children:
        publisher = children.start(PublisherOnLog, directory)
        endpoint = publisher.call("where")
        replayers = [children.start(Replayer, endpoint) for _ in range(READERS)]
        count = following // 2
        for turn, replayer in enumerate(replayers):
            start = turn * following // 8
            replayer.begin("replay", start, start + count)
        gather(replayers, timeout=FILL_SECONDS)
        growth = publisher.call("memory_growth") / 1e6
        read_gb = READERS * count * 130 / 1e9
    return MEMORY.measured([growth], f"each read half of the log, {read_gb:.1f} GB together")


def _publishing_meanwhile(plan: Plan, directory: str, following: int) -> Row:
    def publish(readers: int) -> float:
        with Children() as children:
            publisher = children.start(PublisherOnLog, directory)
            endpoint = publisher.call("where")
            replayers = [children.start(Replayer, endpoint) for _ in range(readers)]
            for replayer in replayers:
                replayer.call("ready")
            for turn, replayer in enumerate(replayers):
                replayer.begin("replay_for", turn * following // 4, plan.seconds + 1)
            time.sleep(0.3 if replayers else 0)
            rate = publisher.call("publish_for", plan.seconds)
            if replayers and min(gather(replayers)) <= 0:
                raise TrialError("a reader got nothing")
            return float(rate)

    comparison = compare(LIVE.what, lambda: publish(READERS), lambda: publish(0), plan.run_count)
    return LIVE.compared(comparison)
