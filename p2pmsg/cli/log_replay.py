"""`p2pmsg log replay`: publish again what a log has."""

import argparse
import math
import time
from functools import partial

from p2pmsg.cli.arguments import BIND, NO_BAR, seconds, speed, waiting_options
from p2pmsg.cli.command import command, note, option
from p2pmsg.cli.log_access import (
    DIRECTORY,
    PART,
    Reading,
    choose,
    on_tail_damage,
    on_waiting,
    open_log,
)
from p2pmsg.cli.progress import drawn
from p2pmsg.cli.pubsub import publishing
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import plural, rate_text
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import LogError
from p2pmsg.message import MessageBatch
from p2pmsg.sync.publisher import Publisher

_STALL_S = 60.0
"""How long a subscriber that does not read may hold up the replay: nothing else waits for it."""
_MESSAGE_BYTES_MAX = 2**30
"""What the log has was accepted once."""
_SLICE = 1024
_FEW = 4


@command(
    "log replay", DIRECTORY, BIND, *PART,
    option("--speed", "1: at the pace at which it was written (default), N times that, or max: as "
           "fast as possible", "N", speed, default=1.0),
    option("--pause-max", "shorten each pause to so many seconds, such as a night (default: as it "
           "was)", "S", seconds, default=math.inf),
    *waiting_options("--wait-for", 60.0),
    *SECURITY,
    NO_BAR,
)  # fmt: skip
def replay(arguments: argparse.Namespace) -> int:
    """Publish again what a log has.

    It binds, waits for a subscriber, and publishes the messages in the order in which they were
    appended, with their topics, keys, timestamps, headers and values, as a new session: sequences
    begin at 0. At the end it waits until the subscribers have everything. What is missing in the
    log, or damaged, is reported on standard error, and the status is 1.

    For example:
      p2pmsg log replay prices.log tcp://127.0.0.1:5556
      p2pmsg log replay prices.log 'tcp://*:5556' 'trades.*' --from 2024-08-09T09:30:00Z --speed 10
      p2pmsg log replay prices.log tcp://127.0.0.1:5556 --speed max --wait-for 2 --timeout 30
    """
    security = security_of(arguments)
    with open_log(arguments.directory) as reader:
        cut = reader.find_cut()
        parts = choose(reader, arguments, cut.ranges)
        if not parts:  # or else it would wait for subscribers, to give them nothing
            raise LogError("there are no such messages in the log")
        reading = Reading(reader, parts, partial(note, "log replay"), cut.findings)
        is_damaged = on_tail_damage("replay", reader)
        on_waiting("replay", reader)
        config = _ReplayConfig(stall_timeout=_STALL_S, message_bytes_max=_MESSAGE_BYTES_MAX)
        with publishing(
            arguments, "log replay", arguments.wait_for, config=config, security=security
        ) as publisher:
            run = _Replay(publisher, reading, arguments)
            with drawn("messages", lambda: (reading.done, reading.total), quiet=arguments.quiet):
                run.publish_all()
    print(run.summary())
    return 1 if is_damaged or not reading.is_whole or publisher.stats().undelivered else 0


class _ReplayConfig(PublisherConfig):
    """Takes what the log has, however large it is, and claims no size that it may not have."""

    @property
    def announced_bytes_max(self) -> int:
        return 0


class Pace:
    """When each frame is due, by the time when it was appended.

    A step back of the clock counts as no time.

    Args:
        speed: how many times the original pace; infinity: at once.
        pause_max_s: no pause is longer than this.

    """

    def __init__(self, speed: float, pause_max_s: float = math.inf) -> None:
        self._speed = speed
        self._pause_max_s = pause_max_s
        self._last_ns: int | None = None
        self._due_s: float | None = None

    def wait_s(self, appended_ns: int, *, now_s: float) -> float:
        """Return how long to wait before the frame that was appended then; 0 where it is late."""
        if self._due_s is None or self._last_ns is None:
            self._due_s = now_s
        else:
            pause_s = max(0, appended_ns - self._last_ns) / 1e9 / self._speed
            self._due_s += min(pause_s, self._pause_max_s)
        self._last_ns = appended_ns
        return max(0.0, self._due_s - now_s)


class _Replay:
    """Publishes pieces when they are due."""

    def __init__(
        self, publisher: Publisher, reading: Reading, arguments: argparse.Namespace
    ) -> None:
        self._publisher = publisher
        self._reading = reading
        self._pace = Pace(arguments.speed, arguments.pause_max)
        self._is_paced = arguments.speed != math.inf
        self._published = 0
        self._seconds = 0.0
        self._subscribers = 0

    def publish_all(self) -> None:
        """Publish all of it."""
        began_s = time.monotonic()
        for piece in self._reading.pieces(with_times=True):
            if self._is_paced:
                time.sleep(self._pace.wait_s(piece.appended_ns, now_s=time.monotonic()))
            batch = piece.batch
            for at in range(0, len(batch), _SLICE):
                self._publish(batch.part(at, min(at + _SLICE, len(batch))))
        self._publisher.flush()
        self._seconds = time.monotonic() - began_s
        self._subscribers = self._publisher.stats().subscribers

    def _publish(self, batch: MessageBatch) -> None:
        topic = batch.topic
        if batch.headers is None and len(batch) >= _FEW:
            times = batch.timestamps_ns or [batch.base_timestamp_ns] * len(batch)
            self._publisher.publish_many(topic, batch.values, batch.keys, times)
        else:
            for message in batch:
                self._publisher.publish(
                    topic, message.value, message.key, message.timestamp_ns, message.headers
                )
        self._published += len(batch)

    def summary(self) -> str:
        """Return the counts."""
        rate = rate_text(self._published / self._seconds) if self._seconds > 0 else "-"
        return (
            f"replayed {self._published:,} messages of {plural(self._reading.streams, 'stream')} "
            f"to {plural(self._subscribers, 'subscriber')} in {self._seconds:.1f} s, {rate}/s"
        )
