"""How many jobs `push` gathers before it hands them out itself."""

import pytest

from p2pmsg.queue import batching
from p2pmsg.queue.batching import PushBatch
from p2pmsg.queue.config import PusherConfig
from p2pmsg.wire import encoder

US = 1000


class Store:
    """Takes what was gathered; it always has space."""

    in_flight = bytes = 0

    def __init__(self):
        self.runs = []

    def push_run(self, run):
        self.runs.append(run)


class Clock:
    def __init__(self, monkeypatch):
        self.now_ns = 10**9
        monkeypatch.setattr(batching.time, "monotonic_ns", lambda: self.now_ns)


def push(gather):
    """Do what `Pusher.push` does: gather, or hand out and begin again."""
    if gather.next < gather.stop:
        encoder.encode_into(None, gather.buffer, -1)
        gather.ends.append(len(gather.buffer))
        gather.next += 1
    else:
        gather.seal()
        gather.next += 1  # this one goes alone
        gather.open(10**9)


@pytest.mark.parametrize("gap_us", [10, 40, 100, 700, 3000])
def test_jobs_wait_for_about_the_linger_where_the_thread_never_comes(monkeypatch, gap_us):
    clock, store = Clock(monkeypatch), Store()
    gather = PushBatch(store, PusherConfig(in_flight_max=10**9), 0)
    opened_ns, waited_us = clock.now_ns, []
    for _ in range(5000):
        before = len(store.runs)
        push(gather)
        if len(store.runs) > before:
            waited_us.append((clock.now_ns - opened_ns) / US)
        if not gather.ends:
            opened_ns = clock.now_ns
        clock.now_ns += gap_us * US
    assert len(waited_us) > 50
    assert max(waited_us) <= 1000 + 2 * gap_us


def test_frames_are_full_where_jobs_follow_one_another_quickly(monkeypatch):
    clock, store = Clock(monkeypatch), Store()
    gather = PushBatch(store, PusherConfig(in_flight_max=10**9), 0)
    for _ in range(10_000):
        push(gather)
        clock.now_ns += 900
    sizes = [len(run.ends) for run in store.runs]
    assert sizes[:5] == [1, 2, 4, 8, 16]
    assert set(sizes[10:]) == {512}


def test_a_pusher_that_had_to_wait_for_space_is_soon_back_at_full_frames(monkeypatch):
    clock, store = Clock(monkeypatch), Store()
    gather = PushBatch(store, PusherConfig(in_flight_max=10**9), 0)
    for number in range(10_000):
        push(gather)
        clock.now_ns += 900 if number % 3000 else 5_000_000
    sizes = [len(run.ends) for run in store.runs]
    assert min(sizes[10:]) >= 256
