"""Collectors and clients that tests kill: `python -m tests.integration.statsd_children ROLE …`."""

import json
import os
import sys
import time

from p2pmsg import ClosedError, LogConfig, metrics
from p2pmsg.statsd import Collector


def say(**words):
    print(json.dumps(words), flush=True)


def collect(state, *endpoints):
    """Collect exact metrics until killed, saving often and telling the totals."""
    with Collector(
        "udp://127.0.0.1:0", exact=list(endpoints), state=state, interval_s=0.05
    ) as collector:
        while True:
            totals = collector.totals()
            say(counters=totals.counters, lost=totals.lost, duplicates=totals.duplicates)
            time.sleep(0.02)


def count(endpoint, messages):
    """Send so many deltas, one a message, say so, and stay until standard input ends."""
    with metrics.Client(endpoint, interval_ms=0) as client:
        say(endpoint=client.endpoint)
        for number in range(int(messages)):
            client.increment("child.hits")
            client.increment("child.sum", number)
            if number % 20 == 0:
                time.sleep(0.001)
        say(done=True)
        sys.stdin.readline()


def end_without_closing(endpoint):
    """Count one and end."""
    client = metrics.Client(endpoint, interval_ms=60_000)
    if client.endpoint.startswith("ipc"):
        client.wait_for_collectors(timeout=20)
    client.increment("child.hits")


def fork(endpoint):
    """Count one here and one in a child, at once and as often as they are asked."""
    client = metrics.Client(endpoint, interval_ms=10)
    if client.endpoint.startswith("ipc"):
        client.wait_for_collectors(timeout=20)
    client.increment("parent.hits")
    process = os.fork()
    try:
        client.increment("child.hits" if process == 0 else "parent.hits")
        client.flush()
    except ClosedError as error:
        say(error=str(error))
    if process:
        os.waitpid(process, 0)
        client.close()


def count_with_log(endpoint, log, first, stop):
    """Count numbers once each by a client with a log, and say before and behind each; then stay."""
    with metrics.Client(endpoint, interval_ms=0, log=LogConfig(log)) as client:
        say(endpoint=client.endpoint)
        for number in range(int(first), int(stop)):
            say(begun=number)
            client.increment(f"n{number}")
            say(done=number)
        sys.stdin.readline()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
