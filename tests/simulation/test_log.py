"""With a log the promise holds through crashes, and a process that dies loses nothing at all.

A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as many.
"""

import pytest

from tests.simulation.profiles import EVERYTHING, TIGHT, Profile, build, run

CRASHES = {"log": True, "publisher_crashes_per_s": 5, "restart_delay": 0.05, "loss": 0.05}
JOINERS = ("earliest", "latest", 5, "time")
PROCESS = {
    "processes crash": Profile(CRASHES),
    "processes crash, little buffer": Profile({**CRASHES, "replay_bytes": 2000}, joiners=JOINERS),
    "processes crash, synced always": Profile({**CRASHES, "fsync": "always"}),
    "reader stops": Profile({**CRASHES, **TIGHT, "read_stops_per_s": 4, "read_stop_time": 0.2}),
}
SYSTEM = {
    "systems crash": Profile({**CRASHES, "system_crashes": 1.0}),
    "systems crash, never synced": Profile(
        {**CRASHES, "system_crashes": 0.5, "fsync": "never"}, joiners=JOINERS
    ),
    "systems crash, synced always": Profile({**CRASHES, "system_crashes": 1.0, "fsync": "always"}),
    "everything": Profile({**EVERYTHING, "log": True, "system_crashes": 0.3}, publishers=2),
}


@pytest.mark.rounds(2, 500)
@pytest.mark.parametrize("name", [*PROCESS, *SYSTEM])
def test_the_promise_holds_through_crashes(name, rounds):
    """Where only processes crash, nothing is lost."""
    profile = PROCESS.get(name) or SYSTEM[name]
    reasons = set()
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile)

        assert simulation.published, seed
        assert name in SYSTEM or not simulation.lost, (seed, simulation.lost)
        reasons |= set(simulation.lost)
    if name == "systems crash, never synced" and rounds >= 20:
        assert "crash" in reasons
