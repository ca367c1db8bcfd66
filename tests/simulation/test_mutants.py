"""A mistake in what the exit counts is found within a few seeds, in each way of taking messages."""

import copy
from dataclasses import replace

import pytest

from p2pmsg.errors import ConfigError
from p2pmsg.message import Message
from p2pmsg.subscriber.conflation import Newest
from p2pmsg.subscriber.ready import ReadyQueue
from tests.simulation import test_relay
from tests.simulation.profiles import PROFILES, Profile, build, run

SEEDS_MAX = 5
LOSSY = Profile({"loss": 0.1}, run_time=0.2)
RESUMED = {
    "cursor": True, "subscriber_crashes_per_s": 15, "restart_delay": 0.02, "read_time": 0.004,
}  # fmt: skip
"""Positions are what a cursor has, and the next incarnation begins with."""
CONFLATED = PROFILES["newest values"]


def takes_all(queue, before, taken):
    return taken is not None and taken[1] is None and len(queue.entries) < before


def takes_a_part(queue, before, taken):
    return taken is not None and taken[1] is None and len(queue.entries) == before


def takes_a_loss(queue, before, taken):
    return taken is not None and taken[1] is not None


def takes_a_message(queue, before, taken):
    return isinstance(taken, Message)


def takes_a_batch(queue, before, taken):
    return taken is not None and not isinstance(taken, Message)


def always(queue, before, taken):
    return True


WAYS = {
    "all of a frame": ("take", takes_all, LOSSY, ("count", "bytes")),
    "a part of a frame": ("take", takes_a_part, LOSSY, ("position", "count", "bytes", "rest")),
    "a loss": ("take", takes_a_loss, PROFILES["skip"], ("position",)),
    "a conflated batch": ("take", always, CONFLATED, ("position", "count", "bytes", "conflated")),
    "a single message": ("take_frame", takes_a_message, LOSSY, ("count",)),
    "a batch at once": ("take_frame", takes_a_batch, LOSSY, ()),
    "put back": ("put_back", always, LOSSY, ("count", "bytes", "one lost", "rest")),
    "folded": ("fold", always, CONFLATED, ("bytes",)),
    "a relay's": ("pop", always, None, ("bytes",)),
}
MUTANTS = [(way, what) for way, (*_, faults) in WAYS.items() for what in faults]
FIELDS = {"position": "delivered_to", "count": "delivered_count", "conflated": "conflated"}


def mutant(real, applies, what):
    """Return a method that leaves one thing as it was before, or loses what is first then."""

    def method(self, *args, **options):
        first = args[0] if args and not isinstance(args[0], int) else None
        stream = first if first is not None else self.entries[0][0] if self.entries else None
        before, held = len(self.entries), self.bytes_held
        former = None if stream is None else copy.copy(stream)
        if what == "one lost" and args[2] > 1:
            args = (*args[:2], args[2] - 1)
        result = real(self, *args, **options)
        if stream is None or not applies(self, before, result):
            return result
        if what in FIELDS:
            setattr(stream, FIELDS[what], getattr(former, FIELDS[what]))
        elif what == "bytes":
            self.bytes_held = held
        elif what == "rest" and self.entries:
            self.entries.popleft()
        return result

    return method


def simulate(profile, seed):
    if profile is not None:
        run(build(profile, seed), profile, quiet=0.0)
        return
    simulation = test_relay.build(test_relay.SHAPES["relay only"], seed)
    simulation.heal()
    simulation.drain(10.0)
    simulation.check(quiet=0.0)


@pytest.mark.internal
@pytest.mark.parametrize(("way", "what"), MUTANTS)
def test_a_mistake_is_found(way, what, monkeypatch):
    name, applies, profile, _ = WAYS[way]
    profiles = [profile]
    if what == "position":
        options = {**profile.options, **RESUMED}
        profiles.append(replace(profile, options=options, run_time=0.8))
    monkeypatch.setattr(ReadyQueue, name, mutant(getattr(ReadyQueue, name), applies, what))
    for seed in range(SEEDS_MAX):
        for each in profiles:
            try:
                simulate(each, seed)
            except (AssertionError, ConfigError):  # or its commit is refused
                return
    pytest.fail(f"not found by {SEEDS_MAX} seeds")


@pytest.mark.internal
def test_old_values_in_the_place_of_new_ones_are_found(monkeypatch):
    def add(self, batch, has_misfits, real=Newest.add):
        real(self, list(batch)[::-1], has_misfits)

    monkeypatch.setattr(Newest, "add", add)
    with pytest.raises(AssertionError):
        for seed in range(SEEDS_MAX):
            simulate(CONFLATED, seed)
