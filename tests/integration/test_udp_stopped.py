"""A receiver whose process stops for seconds (SIGSTOP); its publisher goes on at a steady rate."""

import itertools
import json
import signal
import threading
import time

import pytest

import p2pmsg
from tests.integration.test_udp_multicast import GROUP, free_port

RATE_S = 2000
LAST = -1
"""The value after which a child ends."""
TINY_BYTES = 64 * 1024
"""What it asks for as its kernel's buffer: some 60 datagrams, which 2 s overrun for certain."""
_group = itertools.count(1)


class Feed:
    """A publisher, and a child that reads it and is stopped and let go on."""

    def __init__(self, make_publisher, make_child, *, repair_timeout=10.0, **options):
        endpoint = GROUP.format(100 + next(_group), free_port())
        self.publisher = make_publisher(endpoint, stall_ms=200, **options)
        self.child = make_child(
            "read_to", endpoint, TINY_BYTES, repair_timeout, LAST, module="udp_children"
        )
        self.count = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def begin(self):
        assert self.child.line() == "there"
        self.publisher.wait_for_subscribers(1, timeout=20)
        self._thread.start()
        assert self.child.line() == "reads"

    def end(self):
        self._ended.set()
        self._thread.join()
        self.publisher.publish("t", b"%08d" % LAST)
        return json.loads(self.child.line())

    def _publish(self):
        start_s = time.monotonic()
        while not self._ended.is_set():
            self.publisher.publish("t", b"%08d" % self.count + bytes(100))
            self.count += 1
            ahead_s = start_s + self.count / RATE_S - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)


def check_whole(told, count):
    """Check that each message was delivered once, in order, or reported lost, and which."""
    position = 0
    for start, stop, *_ in told["story"]:
        assert start == position
        position = stop
    assert position == count + 1
    losses = []
    for start, stop, reason in (entry for entry in told["story"] if len(entry) == 3):
        if losses and losses[-1][1:] == [start, reason]:
            losses[-1][1] = stop
        else:
            losses.append([start, stop, reason])
    assert losses == told["losses"]
    assert sum(stop - start for start, stop, _ in losses) == told["lost"]
    assert told["delivered"] + told["lost"] == told["published"] == count + 1
    assert told["balanced"]
    return losses


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stopped_s", [2.0, pytest.param(5.0, marks=pytest.mark.long)])
def test_who_stops_for_seconds_misses_nothing_that_is_kept(
    make_publisher, make_child, tmp_path, stopped_s
):
    pytest.importorskip("recovery.log")
    log = p2pmsg.LogConfig(tmp_path)
    feeds = {
        "the buffer reaches far enough": Feed(make_publisher, make_child),
        "the log does": Feed(make_publisher, make_child, replay_bytes=100_000, log=log),
        "it waits for repairs for less": Feed(
            make_publisher, make_child, repair_timeout=0.4 * stopped_s
        ),
        "neither does": Feed(make_publisher, make_child, replay_bytes=100_000),
    }
    for feed in feeds.values():
        feed.begin()
    time.sleep(0.3)
    before = {what: feed.count for what, feed in feeds.items()}
    for feed in feeds.values():
        feed.child.signal(signal.SIGSTOP)
    time.sleep(stopped_s)
    for what, feed in feeds.items():
        feed.child.signal(signal.SIGCONT)
        assert feed.count - before[what] > 1000, what
    time.sleep(0.3)

    for what, feed in feeds.items():
        told = feed.end()
        losses = check_whole(told, feed.count)
        assert told["repaired"] > 0, what
        assert told["kernel_drops"][0] > 0, what
        if what != "neither does":
            assert losses == [], what
            continue
        assert {reason for _, _, reason in losses} == {"evicted"}
        # What is lost is from where it stopped on, and no more than came meanwhile.
        assert min(start for start, _, _ in losses) > before[what] - RATE_S
        assert 0 < told["lost"] < feed.count - before[what] + RATE_S
