"""`p2pmsg log replay`: publish again what a log has."""

import argparse
import math
import time
from functools import partial

from p2pmsg import Publisher
from p2pmsg.cli.arguments import BIND, PUBLISHING, speed
from p2pmsg.cli.command import command, note, option
from p2pmsg.cli.log_access import DIRECTORY, PART, Reading, open_log
from p2pmsg.cli.pubsub import publishing
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import plural, rate_text
from p2pmsg.config import PublisherConfig
from p2pmsg.errors import LogError

_CLOSE_S = 60.0
"""How long it waits at the end until all subscribers have everything."""
_STALL_S = 60.0
"""How long a subscriber that does not read may hold up the replay: nothing else waits for it."""
_MESSAGE_BYTES_MAX = 2**30
"""What the log has was accepted once."""


@command(
    "log replay", DIRECTORY, BIND, *PART,
    option("--speed", "1: at the pace at which it was written (default), N times that, or max: as "
           "fast as possible", "N", speed, default=1.0),
    *PUBLISHING, *SECURITY,
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
      p2pmsg log replay prices.log tcp://127.0.0.1:5556 --speed max --wait 2 --timeout 30
    """
    security = security_of(arguments)
    with open_log(arguments.directory) as reader:
        reading = Reading(reader, arguments, partial(note, "log replay"))
        if not reading.parts:  # or else it would wait for subscribers, to give them nothing
            raise LogError("there are no such messages in the log")
        config = _ReplayConfig(stall_timeout=_STALL_S, message_bytes_max=_MESSAGE_BYTES_MAX)
        with publishing(
            arguments, "log replay", _CLOSE_S, config=config, security=security
        ) as publisher:
            began_s = time.monotonic()
            count = _publish(publisher, reading, arguments.speed)
            seconds = max(time.monotonic() - began_s, 1e-9)
            subscribers = plural(publisher.stats().subscribers, "subscriber")
    print(
        f"replayed {count:,} messages of {plural(len(reading.parts), 'stream')} to {subscribers} "
        f"in {seconds:.1f} s, {rate_text(count / seconds)}/s"
    )
    return 0 if reading.is_whole and not publisher.stats().undelivered else 1


def _publish(publisher: Publisher, reading: Reading, speed: float) -> int:
    """Publish messages when they are due; return how many."""
    pace, count = Pace(speed), 0
    for batch, appended_ns in reading.batches():
        if speed != math.inf:
            time.sleep(pace.wait_s(appended_ns, now_s=time.monotonic()))
        for message in batch:
            publisher.publish(
                message.topic, message.value, message.key, message.timestamp_ns, message.headers
            )
        count += len(batch)
    publisher.flush()
    return count


class _ReplayConfig(PublisherConfig):
    """Takes what the log has, however large it is, and claims no size that it may not have."""

    @property
    def announced_bytes_max(self) -> int:
        return 0


class Pace:
    """When each frame is due, by the time when it was appended.

    A step back of the clock counts as no time.

    Args:
        speed: how many times the original pace.

    """

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._last_ns: int | None = None
        self._due_s: float | None = None

    def wait_s(self, appended_ns: int, *, now_s: float) -> float:
        """Return how long to wait before the frame that was appended then; 0 where it is late."""
        if self._due_s is None or self._last_ns is None:
            self._due_s = now_s
        else:
            self._due_s += max(0, appended_ns - self._last_ns) / 1e9 / self._speed
        self._last_ns = appended_ns
        return max(0.0, self._due_s - now_s)
