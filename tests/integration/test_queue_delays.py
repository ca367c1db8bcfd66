"""Delays of jobs while the wall clock is set, and over restarts with another time."""

import time

import pytest

import p2pmsg
from tests.endpoints import lasting_endpoint
from tests.integration.peers import LOOPBACK, eventually

HOUR_S = 3600
S = 10**9


class WallClock:
    """The wall clock, which can be set."""

    def __init__(self, monkeypatch):
        self._real = time.time_ns
        self.offset_s = 0
        monkeypatch.setattr(time, "time_ns", self.time_ns)

    def time_ns(self):
        return self._real() + self.offset_s * S


@pytest.fixture
def clock(monkeypatch):
    return WallClock(monkeypatch)


@pytest.mark.parametrize("hours", [3, -3])
def test_a_delay_is_kept_after_the_clock_was_set(clock, hours):
    with p2pmsg.Pusher(LOOPBACK) as pusher, p2pmsg.Puller(pusher.endpoint) as puller:
        clock.offset_s = hours * HOUR_S
        began_ns = time.monotonic_ns()
        pusher.push("later", delay=0.2)
        job = puller.receive(60)
        assert time.monotonic_ns() - began_ns >= 0.2 * S
        assert 0 <= job.last_delivered_ns - job.pushed_ns < HOUR_S * S
        job.reject("no", delay=0.1)
        clock.offset_s = 0
        puller.receive(60).ack()


def test_a_retry_comes_soon_after_a_restart_with_the_clock_set_back(clock, tmp_path):
    place, log = lasting_endpoint(), tmp_path / "log"
    with p2pmsg.Pusher(place, log=log) as pusher, p2pmsg.Puller(place) as puller:
        pusher.push("again")
        puller.receive(60).reject("no", delay=0.3)
        eventually(lambda: pusher.stats().failed)
        puller.close()
        pusher.close(timeout=0.0)
    clock.offset_s = -3 * HOUR_S
    with p2pmsg.Pusher(place, log=log) as pusher, p2pmsg.Puller(place) as puller:
        job = puller.receive(60)
        assert (job.value, job.delivery_count) == ("again", 2)
        job.ack()
