"""Each job is done or a dead letter, and jobs of one key neither overlap nor overtake.

A failing run is named by profile and seed. `P2PMSG_SEEDS=10` runs ten times as many.
"""

import pytest

from tests.simulation.queue_world import Profile, World

AHEAD = Profile(
    jobs=400, workers=2, keys=400, prefetch=1, prefetch_ceiling=64, crash=0.002, hang=0.002, cuts=2,
    stalls=1, stops=1,
)  # fmt: skip
PROFILES = {
    "calm": Profile(reject=0.0),
    "rejects": Profile(reject=0.4, discard=0.05),
    "slow": Profile(slow=True, prefetch=16, threads=2),
    "ahead": AHEAD,
    "crashes": Profile(crash=0.05),
    "poison": Profile(poison=0.05, crash=0.02),
    "hangs": Profile(hang=0.08, threads=2),
    "cuts": Profile(cuts=6, crash=0.01),
    "silence": Profile(stalls=3, stops=3),
    "mischief": Profile(mischief=0.3, cuts=2, leaves=2),
    "pusher": Profile(pusher_crashes=3, cuts=2, crash=0.02),
    "system": Profile(system_crashes=3, pusher_crashes=1, cuts=1, hang=0.2, slow=True),
    "synced": Profile(system_crashes=3, pusher_crashes=1, synced=True),
    "hostile": Profile(hostile=5, cuts=2, pusher_crashes=1),
    "shorter": Profile(shortenings=4, cuts=2, stalls=4, stops=3, hang=0.2, slow=True),
    "all": Profile(
        jobs=30, workers=4, reject=0.1, crash=0.03, hang=0.03, discard=0.02, poison=0.02,
        mischief=0.1, cuts=3, stalls=2, stops=2, leaves=2, pusher_crashes=2, threads=2,
    ),
}  # fmt: skip


LONG = {"system": 5, "ahead": 5, "shorter": 10, "hostile": 3}
"""Profiles of which a run takes so many times as long as of others: they get as many seeds less."""


@pytest.mark.rounds(5, 600)
@pytest.mark.parametrize("name", PROFILES)
def test_no_job_is_forgotten_and_keys_keep_their_order(name, rounds):
    hostile_count = 0
    profile, most_held = PROFILES[name], 0
    for seed in range(max(1, rounds // LONG.get(name, 1))):
        try:
            world = World(profile, seed)
            history = world.run()
        except AssertionError as error:
            raise AssertionError(f"profile {name}, seed {seed}: {error}") from error

        assert history.acked, seed
        hostile_count += history.hostile_count
        most_held = max(most_held, history.most_held)
    assert bool(hostile_count) == bool(profile.hostile)
    if profile.prefetch_ceiling:
        assert most_held > 4 * profile.prefetch  # which fast workers were given more than


def forget(history, keyed):
    history.acked.discard(min(history.acked))


def begin_late(history, keyed):
    keyed[0][2] = keyed[-1][3] + 1


def end_late(history, keyed):
    keyed[0][3] = keyed[1][2] + 1


@pytest.mark.parametrize(
    ("tamper", "found"),
    [(forget, "forgotten"), (begin_late, "out of order"), (end_late, "with two workers")],
)
def test_the_checker_finds(tamper, found):
    history = World(PROFILES["calm"], 1).run()
    tamper(history, [hold for hold in history.holds if history.keys[hold[0]] == "k1"])

    with pytest.raises(AssertionError, match=found):
        history.check(set())
