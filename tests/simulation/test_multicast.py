"""The promise, over datagrams to a group. A failing run is named by its seed."""

from dataclasses import replace

import pytest

from tests.simulation.profiles import MULTICAST, build, run

SEEDS = pytest.mark.rounds(20, 500)
RUN_MS = 120
QUIET_EVERY = 12
"""That a network comes to rest takes longer to see than all the rest."""


@SEEDS
@pytest.mark.parametrize("profile", MULTICAST.values(), ids=MULTICAST)
def test_the_promise_holds_in_a_multicast(profile, rounds):
    short = replace(profile, run_ms=max(RUN_MS, profile.run_ms // 4))
    published = 0
    for seed in range(rounds):
        simulation = build(short, seed)
        run(simulation, short, quiet_ms=2000.0 if seed % QUIET_EVERY == 0 else 0.0)
        published += simulation.published
    assert published > 10 * rounds


@pytest.mark.rounds(8, 120)
@pytest.mark.parametrize("name", ["logs", "logs, little buffer", "logs, synced always"])
def test_nothing_is_lost_with_a_process_that_has_a_log(name, rounds):
    profile = MULTICAST[name]
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile)

        assert simulation.published, seed
        assert not simulation.lost, (seed, simulation.lost)
