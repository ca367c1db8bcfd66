"""Collectors and clients that tests kill: `python -m tests.integration.statsd_children ROLE …`."""

import json
import os
import signal
import sys
import time

import p2pmsg
from p2pmsg import metrics


def say(**words):
    print(json.dumps(words), flush=True)


def collect(interval_s, state, *endpoints):
    """Collect exact metrics until killed, and print the totals."""
    with p2pmsg.statsd.Collector(
        "udp://127.0.0.1:0", exact=list(endpoints), state=state, interval=float(interval_s)
    ) as collector:
        while True:
            totals = collector.totals()
            say(counters=totals.counters, lost=totals.lost)
            time.sleep(0.02)


def short(endpoint, ending):
    """Count to a hundred and end at once: by `close`, without it, by SIGKILL, or in a fork."""
    if ending == "fork":
        import multiprocessing

        multiprocessing.set_start_method("fork")
        process = multiprocessing.Process(target=short, args=(endpoint, "exit"))
        process.start()
        process.join()
        return
    client = metrics.Client(endpoint, interval=60.0)
    if ending.startswith("killed_"):
        client.wait_for_collectors(timeout=60)
    for _ in range(100):
        client.increment("short.hits")
    if ending == "killed_when_seen":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending.startswith("killed_after"):  # SIGALRM, which nobody handles, while it closes
        signal.setitimer(signal.ITIMER_REAL, float(ending.rpartition("_")[2]))
        client.close()
        time.sleep(10)
    if ending == "close":
        client.close()
        say(undelivered=client.undelivered)
    if ending == "interrupt":
        raise KeyboardInterrupt


def count_with_log(endpoint, log, first, stop):
    """Count each number once, with a log; print before and after each; then stay."""
    with metrics.Client(endpoint, interval=0.0, log=p2pmsg.LogConfig(log)) as client:
        say(endpoint=client.endpoint)
        for number in range(int(first), int(stop)):
            say(begun=number)
            client.increment(f"n{number}")
            say(done=number)
        sys.stdin.readline()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
