"""The demo's coordinator: starts the processes, follows them, and checks the results."""

import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from p2pmsg import codec

from .bars import Bar, round_volume
from .plan import FEED_SECONDS, Plan, Source, make_plan
from .processes import Child, Children, DemoError, Event
from .subscribing import Role, Tally

LOSS = 0.05
"""The part of each subscriber's datagrams that the kernel drops."""
SPARK_MODULE = f"{__package__}.spark"
SPARK_MISSING_STATUS = 3
"""The exit status of the Spark child where Java or PySpark is missing."""
_SPARK_PATIENCE_S = 110.0
"""Spark gives up when it has read nothing more for so long. On two busy cores its first batch takes
a minute, of which the demo sees nothing."""
PATIENCE_S = 300.0
"""The demo gives up when a step takes so much longer than the feed."""
_CLOSE_TIMEOUT_S = 5.0
_LEAVE_TIMEOUT_S = 3.0
_KILL_AT = 0.5
"""With a log: the publisher is killed when this part of the feed is published."""
_SLOW_SHARE = 0.5
"""For this share of the feed's time the slow subscriber is slow."""


@dataclass(kw_only=True)
class State:
    """What is known while it runs, and at the end.

    Attributes:
        total, published: messages of the feed; those published by now.
        seconds: since the start.
        subscribers: the ledger of each subscriber by now.
        restarts: how often the publisher was killed and started again on its log.
        spark: the state of Spark, in words; `spark_rows`: how many messages it read, None without
            it; `spark_lag`: how many it had not read after its last batch.
        bars: the result of Spark, or else of the fast subscriber.
        expected: the bars computed directly from the input.
        errors: what is wrong with the result; empty when all is correct.

    """

    total: int
    expected: list[Bar]
    published: int = 0
    seconds: float = 0.0
    subscribers: dict[str, Tally] = field(default_factory=dict)
    restarts: int = 0
    spark: str = "not started"
    spark_rows: int | None = None
    spark_seconds: float = 0.0
    spark_lag: int | None = None
    bars: list[Bar] = field(default_factory=list)
    bars_equal: bool = False
    errors: list[str] = field(default_factory=list)

    @property
    def faults(self) -> str:
        """Which faults have occurred so far, in words."""
        dropped = sum(tally.kernel_drops for tally in self.subscribers.values())
        return f"{dropped:,} datagrams dropped by the kernel"


class Progress:
    """Is called while the demo runs; this one shows nothing, a subclass may."""

    def begin(self, plan: Plan) -> None:
        """Show what will be played."""

    def update(self, state: State) -> None:
        """Show the state; called many times a second."""

    def end(self) -> None:
        """Remove what is shown."""


def run_demo(
    source: Source,
    progress: Progress,
    *,
    with_spark: bool = True,
    log: str | None = None,
    seconds: float = FEED_SECONDS,
    spark_module: str = SPARK_MODULE,
) -> State:
    """Run the demo and return how it ended; at the end no child is left.

    Raises:
        FeedError: the input cannot be read.
        DemoError: a process failed, or nothing changed for too long.

    """
    began_s = time.monotonic()
    plan, expected = make_plan(source, pick_group(), seconds, log)
    if not plan.total:
        raise DemoError("the input has no events")
    progress.begin(plan)
    with Children() as children:
        demo = _Demo(children, plan, expected, progress, began_s)
        try:
            return demo.run(spark_module if with_spark else None)
        finally:
            progress.end()


class _Demo:
    def __init__(
        self,
        children: Children,
        plan: Plan,
        expected: list[Bar],
        progress: Progress,
        began_s: float,
    ) -> None:
        self._children, self._plan, self._progress = children, plan, progress
        self._began_s = began_s
        self._state = State(total=plan.total, expected=expected)
        self._publisher: Child | None = None
        self._spark: Child | None = None
        self._killed: Child | None = None
        self._counts: dict[str, int] | None = None
        self._done: dict[str, list[Bar]] = {}
        self._spark_bars: list[Bar] | None = None
        self._endpoint = ""
        self._joined = self._closed = False

    def run(self, spark_module: str | None) -> State:
        self._publisher = self._start("publisher", "publishing", self._plan)
        self._follow(lambda: bool(self._endpoint))
        self._start_subscribers(self._endpoint)
        self._follow(lambda: self._joined)
        if spark_module is None:
            self._state.spark = "left out"
        else:
            self._start_spark(spark_module, self._endpoint)
        if self._plan.log is not None:
            self._follow(lambda: self._state.published >= self._plan.total * _KILL_AT)
            self._restart_publisher()
        self._follow(lambda: len(self._done) == 2 and self._counts is not None)
        self._follow(lambda: self._spark is None or self._spark_bars is not None)
        self._state.seconds = time.monotonic() - self._began_s
        self._leave()
        self._check()
        return self._state

    def _start(self, name: str, module: str, argument: Any) -> Child:
        text = codec.json_encode(argument).decode()
        return self._children.start(name, f"{__package__}.{module}", text)

    def _restart_publisher(self) -> None:
        """Kill the publisher, and start it again on its log, in the same place."""
        assert self._publisher is not None
        self._killed, self._joined = self._publisher, False
        self._killed.kill(signal.SIGKILL)
        self._killed.wait(PATIENCE_S)
        plan = replace(self._plan, endpoint=self._endpoint)
        self._publisher = self._start("publisher", "publishing", plan)
        self._state.restarts += 1

    def _start_subscribers(self, endpoint: str) -> None:
        counts = self._plan.counts
        self._state.subscribers = {"fast": Tally(), "slow": Tally()}
        fast = Role(name="fast", endpoint=endpoint, counts=counts, loss=LOSS)
        slow = replace(fast, name="slow", slow_seconds=self._plan.seconds * _SLOW_SHARE)
        for role in (fast, slow):
            self._start(role.name, "subscribing", role)

    def _start_spark(self, module: str, endpoint: str) -> None:
        self._state.spark = "starting"
        self._spark = self._children.start(
            "spark", module,
            "--peers", endpoint, "--topics", ",".join(sorted(self._plan.counts, reverse=True)),
            "--expected-rows", str(self._plan.total),
            "--timeout", f"{_SPARK_PATIENCE_S:.0f}",
        )  # fmt: skip

    def _follow(self, is_done: Callable[[], bool]) -> None:
        """Process the children's events until `is_done()`."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_done():
            self._poll()
            now_s = time.monotonic()
            self._state.seconds = now_s - self._began_s
            self._progress.update(self._state)
            if now_s > deadline_s + self._plan.seconds:
                raise DemoError(f"it takes longer than {PATIENCE_S:.0f} s: {self._state}")

    def _poll(self) -> None:
        for child, event in self._children.poll():
            if event["event"] == "ended":
                self._on_end(child, event["status"])
            elif child is self._publisher:
                self._on_publisher(event)
            elif child is self._spark:
                self._on_spark(event)
            elif child is not self._killed:
                self._on_subscriber(child.name, event)

    def _on_publisher(self, event: Event) -> None:
        self._state.published = max(self._state.published, event.get("published", 0))
        match event["event"]:
            case "ready":
                self._endpoint = event["endpoint"]
            case "joined":
                self._joined = True
            case "published":
                self._counts = event["counts"]
            case "closed":
                self._closed = True

    def _on_subscriber(self, name: str, event: Event) -> None:
        if "tally" in event:
            tally = codec.convert(event["tally"], Tally)
            self._state.subscribers[name] = tally
            # The publisher's own figure comes only five times a second.
            self._state.published = max(self._state.published, tally.delivered)
        if event["event"] == "done":
            self._done[name] = _to_bars(event["bars"])

    def _on_spark(self, event: Event) -> None:
        state = self._state
        state.spark_rows = event.get("rows", state.spark_rows)
        state.spark_lag = event.get("lag", state.spark_lag)
        if event["event"] == "result":
            state.spark = "done" if event["rows"] >= state.total else "gave up"
            state.spark_seconds = event["seconds"]
            self._spark_bars = _to_bars(event["bars"])
        else:
            state.spark = "reading"

    def _on_end(self, child: Child, status: int) -> None:
        if child is self._killed:
            return
        if child is self._spark:
            if self._spark_bars is not None:
                return
            if status != SPARK_MISSING_STATUS:
                raise DemoError(f"Spark failed: {child.last_words}")
            self._spark = None
            self._state.spark = f"left out: {child.last_words}"
            self._state.spark_rows = None
        elif not (self._closed if child is self._publisher else child.name in self._done):
            raise DemoError(f"the {child.name} process failed: {child.last_words}")

    def _leave(self) -> None:
        """Let all children end by themselves; the publisher sends its last figures then."""
        assert self._publisher is not None
        self._publisher.send("close")
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while not self._closed and time.monotonic() < deadline_s:
            self._poll()
        self._children.wait(_LEAVE_TIMEOUT_S)

    def _check(self) -> None:
        """Check the ledgers and the bars; what is wrong goes into `errors`."""
        state, plan = self._state, self._plan
        errors: list[str] = []
        if self._counts != plan.counts:
            errors.append(f"published {self._counts}, but the input has {plan.counts}")
        if state.published != plan.total:
            errors.append(f"published {state.published} messages, but the input has {plan.total}")
        for name, tally in state.subscribers.items():
            errors += [f"{name}: {error}" for error in ledger_errors(tally, plan.total)]
        if self._spark is not None and state.spark_rows != plan.total:
            errors.append(f"Spark read {state.spark_rows} messages, not {plan.total}")
        results = {"the fast subscriber": self._done["fast"]}
        if self._spark_bars is not None:
            results["Spark"] = self._spark_bars
        state.bars_equal = True
        for who, bars in results.items():
            state.bars = bars
            difference = first_difference(state.expected, bars)
            if difference is not None:
                state.bars_equal = False
                errors.append(f"the bars of {who} differ: {difference}")
        state.errors = errors


def pick_group() -> str:
    """Return a group on loopback at a port that is free now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return f"udp://239.255.77.77:{port}?interface=127.0.0.1&ttl=0"


def ledger_errors(tally: Tally, published: int) -> list[str]:
    """Compare the library's ledger with what was published, and with what the process counted."""
    checks = {
        f"knows of {tally.published} messages, not {published}": tally.published == published,
        "published = delivered + outstanding + lost does not hold": tally.balanced
        and published == tally.delivered + tally.outstanding + tally.lost,
        f"{tally.lost} messages were lost": not tally.lost,
        f"{tally.outstanding} messages are outstanding": not tally.outstanding,
        f"counted {tally.seen}, twice {tally.duplicates}, never {tally.missing}": (
            (tally.seen, tally.duplicates, tally.missing) == (tally.delivered, 0, tally.lost)
        ),
    }
    return [error for error, holds in checks.items() if not holds]


def _to_bars(rows: list[list[Any]]) -> list[Bar]:
    bars = sorted(Bar(*row) for row in rows)
    return [replace(bar, volume=round_volume(bar.volume)) for bar in bars]


def first_difference(expected: list[Bar], got: list[Bar]) -> str | None:
    """Return the first bar in which two sorted lists differ, in words; None where they agree."""
    for want, have in zip_longest(expected, got):
        if want != have:
            return f"expected {want}, got {have}"
    return None
