"""What a metrics client says of its messages when it closes, and for whom it waits."""

import contextlib
import signal
import subprocess
import sys

import pytest

import p2pmsg
from p2pmsg import metrics
from tests.integration.peers import LOOPBACK, eventually
from tests.integration.statsd_tools import collecting

SMALL = p2pmsg.PublisherConfig(replay_bytes=16 * 1024)
PATIENT = p2pmsg.PublisherConfig(subscriber_timeout=3600)
COLLECTS = """
import sys
from p2pmsg.statsd import Collector
collector = Collector("udp://127.0.0.1:0", exact=sys.argv[1])
while collector.totals().counters.get("a") != 1:
    pass
print("counted", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def collector_that_falls_silent(endpoint, number):
    command, pipe = [sys.executable, "-c", COLLECTS, endpoint], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout.readline() == b"counted\n"
            process.send_signal(number)
            yield
        finally:
            process.kill()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_closing_waits_for_no_collector_that_was_killed_or_hangs_if_another_has_all(number):
    with metrics.Client(LOOPBACK, config=PATIENT, close_timeout=3600) as client:
        client.increment("a")
        with collector_that_falls_silent(client.endpoint, number):
            with collecting(exact=client.endpoint) as (collector, _):
                client.increment("a")
                client.close()
                assert client.undelivered == 0
                assert collector.totals().counters == {"a": 2}


@pytest.mark.parametrize("has_state", [False, True])
def test_what_was_evicted_before_a_collector_had_it_is_undelivered(caplog, tmp_path, has_state):
    client = metrics.Client(LOOPBACK, interval=0, config=SMALL)
    for _ in range(2000):
        client.increment("a")
    state = tmp_path / "state" if has_state else None
    with collecting(exact=client.endpoint, state=state) as (collector, _):
        client.wait_for_collectors(timeout=60)
        client.close(60)
        totals = collector.totals()
    assert client.sent == 2000
    assert totals.lost > 0
    assert client.undelivered == totals.lost == 2000 - totals.counters["a"]
    assert f"{totals.lost} of 2000 messages of deltas went nowhere: evicted" in caplog.text


def test_what_one_collector_came_too_late_for_is_delivered_where_another_has_it():
    client = metrics.Client(LOOPBACK, interval=0, config=SMALL)
    with collecting(exact=client.endpoint) as (early, _):
        client.wait_for_collectors(timeout=60)
        for _ in range(1500):
            client.increment("a")
        eventually(lambda: early.totals().counters.get("a") == 1500)
        with collecting(exact=client.endpoint) as (late, _):
            client.wait_for_collectors(2, timeout=60)
            client.close(60)
            assert late.totals().lost > 0
            assert early.totals().is_exact
    assert client.undelivered == 0
