"""Every message is delivered once and in order, or reported lost, under whatever circumstances.

A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as many.
"""

import pytest

from p2pmsg.subscriber import gaps
from tests.simulation.profiles import PROFILES, build, run

SEEDS = pytest.mark.rounds(16, 200)


@SEEDS
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_promise_holds(profile, rounds):
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile)

        assert simulation.published, seed


@pytest.mark.rounds(4, 25)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_promise_holds_where_streams_wait_for_their_turn(profile, rounds, monkeypatch):
    monkeypatch.setattr(gaps, "TURNS_MAX", 1)
    for seed in range(rounds):
        run(build(profile, seed), profile)
