"""Ctrl-C and signal handlers in calls of a collector: nothing that it received is lost by them."""

import itertools
import os
import subprocess
import sys

import pytest

from p2pmsg.statsd import (
    Collector,
    aggregate,
    codes,
    columns,
    line_templates,
    series,
    sockets,
    values,
)  # fmt: skip
from p2pmsg.statsd import (
    collector as collector_module,
)
from p2pmsg.sync import lock
from tests.integration.peers import ROOT, eventually
from tests.integration.statsd_tools import UDP, Keep, collecting, open_client
from tests.integration.strikes import Strike
from transports import signals

pytestmark = pytest.mark.long

INSIDE = (
    aggregate, codes, collector_module, columns, line_templates, lock, series, signals, sockets,
    values,
)  # fmt: skip
LINES = b"a:1|c\nb:2|c|@0.5\nt:5|ms\nodd\ng:+1|g\n%s:1|s\nnew%s:1|c"


class Feeding:
    """Sends lines, and waits until they are read; they are not added up yet."""

    def __init__(self, collector):
        self.collector, self.sent = collector, 0
        self.client = open_client(collector.endpoints[0])

    def send(self):
        self.sent += 1
        number = b"%d" % self.sent
        self.client.send(LINES % (number, number))
        counts = self.collector._aggregator.counts
        eventually(lambda: counts["packets"] == self.sent)

    def check(self, keep):
        """Check that the first flush has each line once."""
        flush = keep.flushes[0]
        assert flush["c", "a"]["count"] == self.sent
        assert flush["c", "b"]["count"] == 4 * self.sent
        assert flush["ms", "t"]["count"] == self.sent
        assert flush["g", "g"]["value"] == self.sent
        assert sum(key.startswith("new") for _, key in flush) == self.sent
        assert self.collector.stats().bad_lines == self.sent
        assert self.collector.stats().read_failures == 0


@pytest.mark.parametrize("call", ["stats", "totals"])
def test_ctrl_c_anywhere_in_a_call_loses_nothing_and_counts_nothing_twice(call):
    struck = 0
    with collecting() as (collector, keep):
        feeding = Feeding(collector)
        for number in range(1, 400):
            feeding.send()
            strike = Strike(INSIDE, number, starts=True)
            with strike:
                getattr(collector, call)()
            struck += strike.struck
            if strike.left > 0:
                break
        collector.flush(60)
        feeding.client.close()
    feeding.check(keep)
    assert struck >= (50 if call == "stats" else 0)


def test_a_close_that_ctrl_c_ended_goes_on_at_the_next_call():
    for place in itertools.count(1, 2):
        keep = Keep()
        collector = Collector(UDP, outputs=[keep], interval=3600)
        feeding = Feeding(collector)
        feeding.send()
        strike = Strike((collector_module, sockets), place, starts=True)
        with strike:
            collector.close()
        collector.close()
        feeding.client.close()
        feeding.check(keep)
        if not strike.struck:
            break
    assert place > 5


ENDED = """
import os, signal, threading, time
from p2pmsg.statsd import Collector
from p2pmsg.statsd.outputs.base import Output

class Slow(Output):
    name = "slow"
    def begin(self, snapshot):
        time.sleep(1.0)
        print("flushed", flush=True)
    def write(self, row):
        pass

with Collector("udp://127.0.0.1:0", exact=["ipc://{folder}/nobody"], outputs=[Slow()], interval=60):
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
"""


@pytest.mark.long
def test_a_close_that_ctrl_c_ended_is_finished_when_the_program_ends(tmp_path):
    program = ENDED.replace("{folder}", str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-W", "always", "-c", program],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert ended.stdout == "flushed\n"
    assert ended.stderr.endswith("KeyboardInterrupt\n"), ended.stderr
