"""What messages wait for: frames that a program that publishes all the time is not kept busy by."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.core import PublisherCore

SECOND = 1_000_000_000
VALUE = b"v" * 100


@dataclass
class Program:
    """Publishes as `Publisher.publish` does, on a machine that takes `slow` times as long.

    Attributes:
        slow: 1 is a quick machine; 4 one that is old, or shared.
        now_ns: its clock.
        ages_us: of each message, how long it waited for its frame.
        counts: of each frame, how many messages it has.
        ticks: whether its thread runs, too.

    """

    config: PublisherConfig
    slow: float = 1.0
    now_ns: int = SECOND
    ages_us: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    ticks: bool = True
    _published_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = PublisherCore(
            name="p", session=1, recovery="tcp://127.0.0.1:1", config=self.config, now_ns=SECOND
        )

    def _spend(self, nanoseconds: float) -> None:
        self.now_ns += int(nanoseconds * self.slow)

    def publish(self) -> None:
        core, began_ns = self.core, self.now_ns
        self._published_ns.append(began_ns)
        batch = core.open_batches.get("t")
        if batch is not None and batch.put(VALUE, None, None, None) >= 0:
            self._spend(500)
            return
        if (
            batch is None
            and core.publish_alone("t", VALUE, None, None, None, began_ns, began_ns) >= 0
        ):
            self._spend(8_000)
            self._send()
            core.on_alone("t", began_ns, self.now_ns)
            return
        inside_ns = core.gathering.inside_ns
        core.publish("t", VALUE, None, None, None, now_ns=began_ns, wall_ns=began_ns)
        self._spend(8_000)
        made = core.sealed_ns == began_ns
        self._send()
        core.gathering.on_call(inside_ns, began_ns, self.now_ns, made=made)

    def _send(self) -> None:
        while self.core.outbox:
            self.core.outbox.popleft()
            self._spend(6_000)
            stop = self.core.replay.next("t")
            self.counts.append(stop - len(self.ages_us))
            began = self._published_ns[len(self.ages_us) : stop]
            self.ages_us += [(self.now_ns - each) / 1000 for each in began]

    def tick(self) -> None:
        """Do what the publisher's thread does."""
        self.core.handle_timer(now_ns=self.now_ns)
        self._send()

    def run(self, seconds: float, gap_ns: int = 0, together: int = 1) -> float:
        """Publish `together` messages each `gap_ns`, if it can; return how many a second."""
        count, due_ns, began_ns = 0, self.now_ns, self.now_ns
        while self.now_ns < began_ns + seconds * SECOND:
            self.now_ns = max(self.now_ns, due_ns)
            for _ in range(together):
                self.publish()
            count, due_ns = count + together, due_ns + gap_ns
            if self.ticks and count % 50 == 0:
                self.tick()
        return count / (self.now_ns - began_ns) * SECOND


def program(slow: float, **options: Any) -> Program:
    return Program(PublisherConfig(**options), slow)


@pytest.mark.parametrize(("slow", "share"), [(1, 0.9), (1.8, 0.9), (4, 0.75), (5, 0.75)])
@pytest.mark.parametrize(
    "linger",
    [0, 0.001, *(pytest.param(s, marks=pytest.mark.long) for s in (0.00005, 0.0002, 0.005))],
)
def test_who_publishes_all_the_time_is_kept_busy_by_few_frames(slow, share, linger):
    if linger < 0.001:
        share = min(share, 0.6)
    one = program(slow, linger=linger)
    one.ticks = False  # its thread does not get the interpreter
    assert one.run(0.3) > share / (500e-9 * slow)


@pytest.mark.parametrize("linger", [0, 0.001])
@pytest.mark.parametrize("gap_us", [40, 100, 1000])
def test_what_comes_seldom_waits_for_nothing(linger, gap_us):
    one = program(1, linger=linger)
    one.run(0.1, gap_us * 1000)
    assert set(one.counts) == {1}
    assert max(one.ages_us) < 16


@pytest.mark.parametrize("slow", [1, 8])
def test_nothing_is_gathered_where_that_is_said(slow):
    one = program(slow, gather_within=0)
    one.run(0.05, 20_000)
    assert set(one.counts) == {1}
