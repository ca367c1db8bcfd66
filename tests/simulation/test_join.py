"""Somebody dies at a step of a join: what the publisher had kept is delivered or reported lost.

The steps are a WELCOME, PROBE, ECHO or JOINED, data that comes before the ECHO, and the cursor's
note of the session. A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as many.
"""

import pytest

from tests.simulation.profiles import Profile, build, run

SEEDS = pytest.mark.rounds(10, 300)
STARTS = ("earliest", "latest", 5, "time")
KILLS = {"join_kills": 0.15, "restart_ms": 40, "repair_timeout_ms": 2000}
SLOW = {"delay_min_ms": 2, "delay_max_ms": 30}
"""So that data comes between a PROBE and its ECHO."""
LOSSY = {"loss": 0.2}

PROFILES = {
    "publishers and subscribers": Profile({**KILLS, **LOSSY}, joiners=STARTS),
    "slow network": Profile({**KILLS, **SLOW}, joiners=STARTS),
    "little kept": Profile({**KILLS, **LOSSY, "replay_bytes": 3000}, joiners=STARTS),
    "publishers never come back": Profile(
        {**KILLS, **LOSSY, "gone_for_good": 0.5}, joiners=STARTS, publishers=2
    ),
    "cursors": Profile({**KILLS, **LOSSY, "cursor": True}, joiners=STARTS),
    "cursors, never come back": Profile(
        {**KILLS, **SLOW, "cursor": True, "gone_for_good": 0.5}, joiners=STARTS, publishers=2
    ),
    "two lines": Profile({**KILLS, **LOSSY}, joiners=STARTS, lines=2),
    "multicast": Profile({**KILLS, **LOSSY, "multicast": True}, joiners=STARTS),
    "multicast, cursors": Profile(
        {**KILLS, **LOSSY, "multicast": True, "cursor": True}, joiners=STARTS
    ),
    "multicast, never come back": Profile(
        {**KILLS, **LOSSY, "multicast": True, "gone_for_good": 0.5}, joiners=STARTS, publishers=2
    ),
}
LOGGED = {
    "logs": Profile({**KILLS, **LOSSY, "log": True}, joiners=STARTS),
    "logs, systems crash": Profile(
        {**KILLS, **LOSSY, "log": True, "system_crashes": 0.5, "fsync": "never"}, joiners=STARTS
    ),
    "logs and cursors": Profile({**KILLS, **LOSSY, "log": True, "cursor": True}, joiners=STARTS),
    "logs, gone for good": Profile(
        {**KILLS, **LOSSY, "log": True, "cursor": True, "gone_for_good": 0.3},
        joiners=STARTS, publishers=2,
    ),
}  # fmt: skip


@SEEDS
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_what_was_kept_is_accounted_for_whoever_dies_at_a_join(profile, rounds):
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile, quiet_ms=0)


@SEEDS
@pytest.mark.parametrize("profile", LOGGED.values(), ids=LOGGED)
def test_what_was_kept_is_accounted_for_whoever_dies_at_a_join_with_a_log(profile, rounds):
    pytest.importorskip("recovery.log")
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile, quiet_ms=0)
