"""`p2pmsg log replay`: publish what a log has once more."""

import argparse
import math
import sys
import time
from functools import partial
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.log_access import (
    LogAccessError,
    Reading,
    add_directory,
    add_part,
    choose,
    note,
    note_waiting,
    open_log,
    teller,
)
from p2pmsg.cli.log_progress import Bar, Pace
from p2pmsg.cli.log_text import rate_text
from p2pmsg.cli.waiting import wait_for_subscribers
from p2pmsg.config import PublisherConfig
from p2pmsg.message import MessageBatch
from p2pmsg.sync.publisher import Publisher

_STALL_MS = 60_000.0
"""How long a subscriber that does not read may hold the replay up: nothing else waits for it."""
_MESSAGE_BYTES_MAX = 2**30
"""Whatever the log has was accepted once."""
_SLICE = 1024
_FEW = 4
_NAP_S = 0.1
_DESCRIPTION = """\
Publish what a log has once more.

It binds, waits for a subscriber, and publishes the messages in the order in which they were
appended, with their topics, keys, timestamps, headers and values, as a new session: sequences
begin at 0. At the end it waits until the subscribers have everything.

examples:
  p2pmsg log replay var/prices tcp://127.0.0.1:5556
  p2pmsg log replay var/prices 'tcp://*:5556' 'trades.*' --from 2024-08-09T09:30:00Z --speed 10
  p2pmsg log replay var/prices tcp://127.0.0.1:5556 --speed max --wait-for 2 --timeout 30
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "replay", _DESCRIPTION, run, group="log")
    add_directory(parser)
    parser.add_argument(
        "endpoint", metavar="ENDPOINT", type=kinds.bind_endpoint,
        help="where to bind: tcp://HOST:PORT, ipc://PATH or udp://GROUP:PORT",
    )  # fmt: skip
    add_part(parser)
    parser.add_argument(
        "--speed", metavar="N", type=kinds.speed, default=1.0,
        help="1: at the pace at which it was written (default), N times that, or max: as fast as "
        "it goes",
    )  # fmt: skip
    parser.add_argument(
        "--pause-max", metavar="S", type=kinds.seconds, default=math.inf,
        help="shorten each pause to so many seconds, such as a night (default: as it was)",
    )  # fmt: skip
    kinds.add_publisher(parser, "--wait-for")
    parser.add_argument(
        "--close-timeout", metavar="S", type=kinds.seconds, default=60.0,
        help="at the end, wait so many seconds at most until all have everything (default 60)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Publish the part of the log that was chosen."""
    with open_log(arguments.directory) as reader:
        bar = Bar(sys.stderr if kinds.is_terminal(sys.stderr) else None)
        parts = choose(reader, arguments)
        if not parts:  # or else it would wait for subscribers, to give them nothing
            raise LogAccessError("there are no such messages in the log")
        reading = Reading(reader, parts, bar.around(teller("replay")))
        note_waiting("replay", reader)
        config = PublisherConfig(stall_ms=_STALL_MS, message_bytes_max=_MESSAGE_BYTES_MAX)
        publisher = Publisher(arguments.endpoint, name=arguments.name, config=config)
        replay = _Replay(publisher, reading, bar, arguments)
        close_timeout = arguments.close_timeout
        try:
            if arguments.endpoint != publisher.endpoint:
                note("replay", f"listening at {publisher.endpoint}")
            wait_for_subscribers(
                publisher, arguments.wait_for, arguments.timeout, partial(note, "replay")
            )
            replay.run()
        except KeyboardInterrupt:
            close_timeout = min(close_timeout, 0.2)
            raise
        finally:
            bar.clear()
            publisher.close(timeout=close_timeout)
    print(replay.summary())
    # The library's own warning has said already how many did not get everything.
    return 1 if not reading.is_whole or publisher.stats().undelivered else 0


class _Replay:
    """Publishes pieces when they are due."""

    def __init__(
        self, publisher: Publisher, reading: Reading, bar: Bar, arguments: argparse.Namespace
    ) -> None:
        self._publisher = publisher
        self._reading = reading
        self._pace = Pace(arguments.speed, arguments.pause_max)
        self._is_paced = arguments.speed != math.inf
        self._bar = bar
        self._published = 0
        self._seconds = 0.0
        self._subscribers = 0

    def run(self) -> None:
        """Publish all of it."""
        began_s = time.monotonic()
        self._update(began_s)
        for piece in self._reading.pieces(with_times=True):
            if self._is_paced:
                self._wait_until_due(piece.appended_ns)
            batch = piece.batch
            for at in range(0, len(batch), _SLICE):
                self._publish(batch.part(at, min(at + _SLICE, len(batch))))
                self._update(time.monotonic())
        self._publisher.flush()
        self._seconds = time.monotonic() - began_s
        self._subscribers = self._publisher.stats().subscribers

    def _update(self, now_s: float) -> None:
        self._bar.update(self._reading.done, self._reading.total, now_s=now_s)

    def _wait_until_due(self, appended_ns: int) -> None:
        now_s = time.monotonic()
        due_s = now_s + self._pace.wait_s(appended_ns, now_s=now_s)
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _NAP_S))
            self._update(time.monotonic())

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
        there, streams = self._subscribers, self._reading.streams
        return (
            f"replayed {self._published:,} messages of {streams} stream{'s' * (streams != 1)} "
            f"to {there} subscriber{'s' * (there != 1)} in {self._seconds:.1f} s, {rate}/s"
        )
