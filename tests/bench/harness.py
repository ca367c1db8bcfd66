"""Processes, roles and interleaved trials: how ours and a peer are measured alike.

A *contender* is one way of sending messages. Publisher and every subscriber are processes of their
own, fresh for each trial; the coordinator talks to them over pipes and is idle while they run.
"""

import ctypes
import gc
import multiprocessing
import multiprocessing.connection
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.bench.loads import LOADS, TrialError

CALL_TIMEOUT_SECONDS = 40.0
SETTLE_SECONDS = 0.05
WARM_UP_COUNT = {"small": 20_000, "dict": 10_000, "large": 500}
TOP_UP_ROUNDS_MAX = 3
PING_WARM_UP_COUNT = 500
STOP = b"stop"


class Sender(Protocol):
    """The sending end of a contender; who inherits it needs no methods that do nothing."""

    endpoint: str

    def wait_ready(self, subscriber_count: int) -> None: ...
    def send(self, values: list[Any]) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


class Receiver(Protocol):
    """The receiving end: `receive` gives at least one and at most `count` values, in order.

    `check_each` takes as many dicts as there are marks; it raises `TrialError` where one has
    another in its field. Only who is given dicts needs it.
    """

    def receive(self, count: int) -> list[Any]: ...
    def check_each(self, field: str, marks: list[Any]) -> None: ...
    def receive_rest(self, seconds: float) -> int: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Contender:
    """One way of sending messages; is pickled into the processes, so it holds no sockets."""

    name: str
    open_sender: Callable[[], Sender]
    open_receiver: Callable[[str], Receiver]


# ------------------------------------------------------------------------------------ processes


class Child:
    """An object that lives in a process of its own and is called over a pipe.

    `ready` and `close` can be called of each object, whether it has such a method or not.
    """

    def __init__(self, factory: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._name = factory.__name__
        self._process = context.Process(
            target=_serve, args=(far_end, factory, arguments), daemon=True
        )
        self._process.start()
        far_end.close()

    def begin(self, method: str, *arguments: Any) -> None:
        """Start a call; `result` waits for it."""
        self._pipe.send((method, arguments))

    def result(self, timeout: float = CALL_TIMEOUT_SECONDS) -> Any:
        return gather([self], timeout)[0]

    def _take_result(self) -> Any:
        try:
            is_good, value = self._pipe.recv()
        except EOFError:
            self._process.join(1)
            raise TrialError(f"{self._name} died, exit {self._process.exitcode}") from None
        if not is_good:
            raise TrialError(f"{self._name}: {value}")
        return value

    def call(self, method: str, *arguments: Any, timeout: float = CALL_TIMEOUT_SECONDS) -> Any:
        self.begin(method, *arguments)
        return self.result(timeout)

    def kill(self) -> None:
        """End the process as a crash does."""
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        """End the process: it closes its sockets first, if it still can."""
        try:
            self._pipe.send(("close", ()))
        except OSError:
            pass
        self._pipe.close()
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def gather(children: Sequence[Child], timeout: float = CALL_TIMEOUT_SECONDS) -> list[Any]:
    """Wait for the calls begun on all of `children`; raise as soon as one of them fails."""
    deadline = time.monotonic() + timeout
    results: dict[Child, Any] = {}
    pending = {child._pipe: child for child in children}
    while pending:
        ready = multiprocessing.connection.wait(list(pending), deadline - time.monotonic())
        if not ready:
            names = ", ".join(child._name for child in pending.values())
            raise TrialError(f"{names} silent for {timeout:.0f} s")
        for pipe in ready:
            child = pending.pop(pipe)
            results[child] = child._take_result()
    return [results[child] for child in children]


def call_all(children: Sequence[Child], method: str, *arguments: Any) -> list[Any]:
    """Call a method of all of `children` at once."""
    for child in children:
        child.begin(method, *arguments)
    return gather(children)


class Children:
    """The processes of one trial; all are gone at the end of the `with` block."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def start(self, factory: Callable[..., Any], *arguments: Any) -> Child:
        child = Child(factory, *arguments)
        self._children.append(child)
        return child

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        for child in reversed(self._children):
            child.stop()


def _serve(
    pipe: multiprocessing.connection.Connection,
    factory: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    die_with_parent()
    target = None
    while True:
        try:
            method, call_arguments = pipe.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            if target is None:
                target = factory(*arguments)
                gc.collect()
                gc.freeze()  # the ring is no garbage: do not walk it during the trial
            if method not in ("ready", "close") or hasattr(target, method):
                value = getattr(target, method)(*call_arguments)
            else:
                value = None
            answer = (True, value)
        except BaseException as error:
            if not isinstance(error, TrialError):
                traceback.print_exc(limit=-4)
            answer = (False, f"{type(error).__name__}: {error}")
        if method == "close":
            return
        try:
            pipe.send(answer)
        except OSError:
            return  # the coordinator has given this trial up


def die_with_parent() -> None:
    """End this process, which was just started, when the one that started it ends."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    except (OSError, AttributeError):
        pass  # not Linux: daemon processes still end with an orderly parent


# ---------------------------------------------------------------------------------------- roles


class PublisherRole:
    """Sends stretches of its load's ring."""

    def __init__(self, contender: Contender, load: str) -> None:
        self._ring = LOADS[load]().ring
        self._sender = contender.open_sender()

    def endpoint(self) -> str:
        return self._sender.endpoint

    def wait_ready(self, subscriber_count: int) -> None:
        self._sender.wait_ready(subscriber_count)

    def send(self, count: int) -> int:
        """Send `count` messages; return when the first send began."""
        send, ring = self._sender.send, self._ring
        rounds, rest = divmod(count, len(ring))
        tail = ring[:rest]
        first_ns = time.monotonic_ns()
        for _ in range(rounds):
            send(ring)
        if tail:
            send(tail)
        self._sender.finish()
        return first_ns

    def close(self) -> None:
        self._sender.close()


class SubscriberRole:
    """Receives and checks every message."""

    def __init__(self, contender: Contender, load: str, endpoint: str) -> None:
        self._load = LOADS[load]()
        self._receiver = contender.open_receiver(endpoint)

    def receive(self, count: int) -> int:
        """Receive and check `count` messages; return when the last one came."""
        if self._load.field is not None:
            return self._receive_dicts(self._load.field, count)
        if hasattr(self._receiver, "receive_checked"):  # in one run of an event loop
            return self._receiver.receive_checked(self._load, count)
        receive, check = self._receiver.receive, self._load.check
        chunk_count = self._load.chunk_count
        position = 0
        while position < count:
            values = receive(min(chunk_count, count - position))
            last_ns = time.monotonic_ns()
            check(position, values)
            position += len(values)
        return last_ns

    def _receive_dicts(self, field: str, count: int) -> int:
        load, receiver = self._load, self._receiver
        for position in range(0, count, load.chunk_count):
            load.check(position, receiver.receive(1))
            receiver.check_each(
                field, load.marks(position + 1, min(load.chunk_count, count - position) - 1)
            )
        return time.monotonic_ns()

    def receive_rest(self) -> int:
        """Count what comes although nothing more was sent."""
        return self._receiver.receive_rest(SETTLE_SECONDS)

    def close(self) -> None:
        self._receiver.close()


class PingPongRole:
    """One end of a ping-pong: a sender of its own and a receiver of the other's messages."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._ring = LOADS["small"]().ring
        self._sender = contender.open_sender()
        self._receiver: Any = None

    def endpoint(self) -> str:
        return self._sender.endpoint

    def connect(self, endpoint: str) -> None:
        self._receiver = self._contender.open_receiver(endpoint)

    def wait_ready(self) -> None:
        self._sender.wait_ready(1)

    def echo(self) -> None:
        receive, send = self._receiver.receive_one, self._sender.send_one
        value = receive()
        while value != STOP:
            send(value)
            value = receive()

    def ping(self, seconds: float) -> float:
        """Return the median of half a round trip in ns."""
        return statistics.median(self.trips(seconds))

    def trips(self, seconds: float) -> list[int]:
        """Return half of each round trip in ns."""
        receive, send, now_ns = self._receiver.receive_one, self._sender.send_one, time.monotonic_ns
        ring, trips_ns = self._ring, []
        end_ns = now_ns() + int(seconds * 1e9)
        sent_ns = 0
        while sent_ns < end_ns or len(trips_ns) < 2 * PING_WARM_UP_COUNT:
            value = ring[len(trips_ns) % len(ring)]
            sent_ns = now_ns()
            send(value)
            answer = receive()
            trips_ns.append((now_ns() - sent_ns) // 2)
            if answer != value:
                raise TrialError(f"trip {len(trips_ns)} brought another message back")
        send(STOP)
        return trips_ns[PING_WARM_UP_COUNT:]

    def close(self) -> None:
        self._sender.close()
        self._receiver.close()


# --------------------------------------------------------------------------------------- trials


@dataclass
class Plan:
    """How long and how often to measure; `rates` remembers how many messages fill the time."""

    run_count: int = 5
    seconds: float = 1.2
    rates: dict[tuple[str, str, int], float] = field(default_factory=dict)


def measure_throughput(contender: Contender, load: str, subscriber_count: int, plan: Plan) -> float:
    """Messages a second at each subscriber: count / (last receive of any - first send)."""
    key = (contender.name, load, subscriber_count)
    with Children() as children:
        publisher = children.start(PublisherRole, contender, load)
        endpoint = publisher.call("endpoint")
        subscribers = [
            children.start(SubscriberRole, contender, load, endpoint)
            for _ in range(subscriber_count)
        ]
        call_all(subscribers, "ready")
        publisher.call("wait_ready", subscriber_count)
        rate, _ = _run_round(publisher, subscribers, WARM_UP_COUNT[load])
        rate = plan.rates.get(key, rate)
        for _ in range(TOP_UP_ROUNDS_MAX):
            rate, seconds = _run_round(publisher, subscribers, max(1, int(rate * plan.seconds)))
            if seconds >= 0.85 * plan.seconds:
                break
        for subscriber in subscribers:
            rest_count = subscriber.call("receive_rest")
            if rest_count:
                raise TrialError(f"{contender.name}: {rest_count} messages more than were sent")
    plan.rates[key] = rate
    return rate


def measure_rate(
    plan: Plan, name: str, first_rate: float, run: Callable[[int], tuple[float, float]]
) -> float:
    """Return the rate of `run(count)`, which returns it and the seconds that it took.

    The count is that which fills the plan's time, by the last rate of this name.
    """
    rate = plan.rates.get((name, "", 0), first_rate)
    for _ in range(1 + TOP_UP_ROUNDS_MAX):
        rate, seconds = run(int(rate * plan.seconds))
        if seconds >= 0.6 * plan.seconds:
            break
    plan.rates[name, "", 0] = rate
    return rate


def _run_round(publisher: Child, subscribers: list[Child], count: int) -> tuple[float, float]:
    """Send and receive `count` messages; return the rate and the time taken."""
    for subscriber in subscribers:
        subscriber.begin("receive", count)
    publisher.begin("send", count)
    first_ns, *last_ns = gather([publisher, *subscribers])
    seconds = (max(last_ns) - first_ns) / 1e9
    return count / seconds, seconds


def measure_ping_pong(
    contender: Contender | str, plan: Plan, role: Callable[..., Any] = PingPongRole
) -> float:
    """Median of half a round trip between two processes, in µs."""
    return play_ping_pong(contender, role, "ping", plan.seconds) / 1e3


def play_ping_pong(
    contender: Contender | str, role: Callable[..., Any], method: str, seconds: float
) -> Any:
    """Return what the `method` of one end found in so many seconds, while the other end echoes."""
    with Children() as children:
        pinger = children.start(role, contender)
        echoer = children.start(role, contender)
        pinger.begin("endpoint")
        echoer.call("connect", pinger.result())
        pinger.call("connect", echoer.call("endpoint"))
        pinger.call("wait_ready")
        echoer.call("wait_ready")
        echoer.begin("echo")
        pinger.begin(method, seconds)
        return gather([pinger, echoer])[0]


@dataclass(frozen=True)
class Comparison:
    """Figures of ours and the peer from adjacent trials, in the order in which they ran."""

    ours: list[float]
    peers: list[float]

    @property
    def ratios(self) -> list[float]:
        return [our / peer for our, peer in zip(self.ours, self.peers, strict=True)]


def compare(
    what: str, measure_ours: Callable[[], float], measure_peer: Callable[[], float], run_count: int
) -> Comparison:
    """Run ours and the peer in turn, A B A B …, so that both see the same machine."""
    comparison = Comparison([], [])
    for run in range(run_count):
        our, peer = measure_ours(), measure_peer()
        comparison.ours.append(our)
        comparison.peers.append(peer)
        say(f"{what}, run {run + 1} of {run_count}: {our:,.0f} and {peer:,.0f}")
    return comparison


def read_stolen(path: Path = Path("/proc/stat")) -> tuple[int, int]:
    """Return the ticks that the host took from the cores, and all in which there was work to do.

    (0, 1) where the system does not count them.
    """
    try:
        first = path.read_text(encoding="ascii").partition("\n")[0]
        user, nice, system, _, _, irq, soft, steal = map(int, first.split()[1:9])
    except (OSError, ValueError):
        return 0, 1
    return steal, user + nice + system + irq + soft + steal


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)
