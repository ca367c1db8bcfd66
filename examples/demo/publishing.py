"""The demo's publisher process: plays the feed at an even pace."""

import sys
import time
from collections.abc import Callable

from p2pmsg import Publisher, codec
from p2pmsg.config import PublisherConfig
from p2pmsg.log import LogConfig

from .child import emit, next_command
from .plan import TOPICS, Plan

STALL_S = 0.1
"""How long the slow subscriber may hold up the feed in all; after that it needs repairs."""
_JOIN_TIMEOUT_S = 30.0
_PACE_EVERY = 64
_REPLAY_BYTES = 2**30
"""Enough for all that a subscriber may have missed."""
_REPLAY_BYTES_LOGGED = 2**20
"""With a log the buffer need not hold all, and some repairs should come from the log."""
_PROGRESS_S = 0.2


def main() -> None:
    """Publish, and stay until the parent says `close`."""
    plan = codec.convert(codec.json_decode(sys.argv[1]), Plan)
    replay_bytes = _REPLAY_BYTES if plan.log is None else _REPLAY_BYTES_LOGGED
    config = PublisherConfig(replay_bytes=replay_bytes, stall_timeout=STALL_S, on_full="block")
    log = LogConfig(plan.log) if plan.log is not None else None
    with Publisher(plan.endpoint, name="feed", log=log, config=config) as publisher:
        emit("ready", endpoint=publisher.endpoint)
        publisher.wait_for_subscribers(2, timeout=_JOIN_TIMEOUT_S)
        emit("joined")
        play(publisher, plan, lambda count: emit("progress", published=count))
        counts = {topic: stop for topic, (_, stop) in publisher.stats().streams.items()}
        emit("published", published=publisher.stats().published, counts=counts)
        next_command()
        publisher.close(timeout=2.0)
        emit("closed")


def play(publisher: Publisher, plan: Plan, report: Callable[[int], object]) -> None:
    """Publish the feed within `plan.seconds`, at an even pace; continue after what the log has."""
    publish = publisher.publish
    logged = {topic: stop for topic, (_, stop) in publisher.stats().streams.items()}
    s_per_message = plan.seconds / max(1, plan.total)
    reported_s = time.monotonic()
    start_s = reported_s - sum(logged.values()) * s_per_message
    for index, event in enumerate(plan.source.events()):
        topic = TOPICS[event.kind]
        if logged.get(topic, 0):
            logged[topic] -= 1
            continue
        if index % _PACE_EVERY == 0:
            now_s = time.monotonic()
            if now_s - reported_s >= _PROGRESS_S:
                reported_s = now_s
                report(index)
            ahead_s = start_s + index * s_per_message - now_s
            if ahead_s > 0:
                time.sleep(ahead_s)
        publish(topic, event.line, event.symbol, timestamp_ns=event.timestamp_ns)
    publisher.flush()


if __name__ == "__main__":
    main()
