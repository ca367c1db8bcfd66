"""The local log: what it costs to keep, and how fast it is read."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.bench.harness import Children, Contender, Plan, call_all, gather, measure_throughput, say
from tests.bench.loads import TrialError
from tests.bench.log_roles import LogRole, PublisherOnLog, Replayer, big_log_bytes, use_memory
from tests.bench.ours import OURS, OURS_MANY, REPLAY_BYTES
from tests.bench.report import Row, duty_goal, rate_goal

AREA = "log"
APPEND_BYTES = 1 << 30
REPLAY_COUNT = 4_000_000
READERS = 3
FIRSTS = 20
FILL_SECONDS = 240.0


_rate, _duty = partial(rate_goal, AREA), partial(duty_goal, AREA)
WRITTEN = _rate("publish one by one, acknowledged when written, against without a log", 0.75, 0.95)
APPEND = _rate("append, against plain sequential writes", 0.7, 0.9, "B/s")
OPEN = _duty("open after a crash", 1, 0.2, "s")
FIRST = _duty("first message of a replay from the middle", 20, 5, "ms")
REPLAY = _rate("replay over TCP, against live publish_many", 0.7, 1)
MEMORY = _duty("publisher's memory while three readers replay", 150, 80, "MB")
LIVE = _rate("live publishing while three readers replay, against alone", 0.6, 0.8)


def _open_logged(directory: str) -> PublisherOnLog:
    place = tempfile.mkdtemp(dir=directory)
    use_memory(place, APPEND_BYTES)
    return PublisherOnLog(place, REPLAY_BYTES)


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    with tempfile.TemporaryDirectory(prefix="p2pmsg-bench-") as directory:
        opened = partial(_open_logged, directory)
        logged = Contender(f"{OURS.name}, logged", opened, OURS.open_receiver)
        yield WRITTEN.guarded(lambda: WRITTEN.raced(logged, OURS, plan))
        yield APPEND.guarded(lambda: _appending(plan, directory))
        yield from _big_log(plan, directory)


def _appending(plan: Plan, directory: str) -> Row:
    def measure(method: str) -> float:
        with Children() as children:
            return float(children.start(LogRole, directory).call(method, APPEND_BYTES))

    note = f"{APPEND_BYTES >> 20} MiB of 256 KiB frames each"
    return APPEND.compared(
        lambda: measure("append"), lambda: measure("write"), plan.run_count, note
    )


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
    big, note = f"{directory}/big", f"a log of {byte_count / 1e9:.1f} GB"
    say(f"writing {note}")
    with _filled(big, byte_count) as big_next:
        seconds, firsts = _open_and_find(big, big_next)
        yield OPEN.measured([seconds], note)
        yield FIRST.measured(firsts, note)
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

    note = f"{count:,} messages by a Subscriber from a sequence"
    live = partial(measure_throughput, OURS_MANY, "small", 1, plan)
    return REPLAY.compared(replay, live, plan.run_count, note)


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
            call_all(replayers, "ready")
            for turn, replayer in enumerate(replayers):
                replayer.begin("replay_for", turn * following // 4, plan.seconds + 1)
            time.sleep(0.3 if replayers else 0)
            rate = publisher.call("publish_for", plan.seconds)
            if replayers and min(gather(replayers)) <= 0:
                raise TrialError("a reader got nothing")
            return float(rate)

    return LIVE.compared(lambda: publish(READERS), lambda: publish(0), plan.run_count)
