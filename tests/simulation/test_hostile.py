"""The promise, with a stranger who forges frames of every kind and never joins.

Forged data with the very next sequences of a stream are not among them: without keys those are
believed where they have the publisher's address.
"""

from collections import Counter
from dataclasses import replace

import pytest

from p2pmsg.subscriber.confirmation import Confirmation
from tests.simulation.profiles import MULTICAST, PROFILES, build, run

SEEDS = pytest.mark.rounds(5, 150)
FORGED = 100.0
GROUPS = (
    "clean", "5 % lost", "20 % lost", "twice and out of order", "large messages", "slow network",
    "far network", "partitions", "publisher crashes", "subscriber crashes", "reader stops",
    "few gaps allowed", "everything in little room", "two lines to each publisher",
    "joins midway", "skip", "logs", "logs, little buffer", "cursors",
    "everything, logs and cursors", "parity, everything",
)  # fmt: skip
CHANNELS = ("clean", "10 % lost", "cuts", "everything", "everything in little room", "joins midway")


def run_forged(profile, seed):
    simulation = build(profile, seed, forged_per_s=FORGED)
    run(simulation, profile, quiet_ms=0.0 if seed % 4 else 2000.0)
    return simulation


@SEEDS
@pytest.mark.parametrize("name", GROUPS)
def test_a_stranger_to_a_group_changes_no_ledger_and_gets_no_answer(name, rounds):
    profile = replace(MULTICAST[name], run_ms=200)
    forged = Counter()
    for seed in range(rounds):
        simulation = run_forged(profile, seed)
        forged += simulation.stranger.forged
        assert simulation.published, seed
    wanted = {"HEARTBEAT", "DATA", "WELCOME", "NACK", "JOINED"}
    assert wanted <= set(forged)


@SEEDS
@pytest.mark.parametrize("name", CHANNELS)
def test_a_stranger_on_the_recovery_channel_changes_no_ledger(name, rounds):
    for seed in range(rounds):
        simulation = run_forged(PROFILES[name], seed)
        assert simulation.published, seed
        assert simulation.stranger.forged["NACK"] + simulation.stranger.forged["JOINED"]


@SEEDS
@pytest.mark.parametrize("name", ["5 % lost", "large messages", "logs"])
def test_subscribers_that_send_no_token_are_repaired_over_the_recovery_channel(
    name, rounds, monkeypatch
):
    """Those of earlier releases; their NACKs by UDP are as good as a stranger's."""
    monkeypatch.setattr(Confirmation, "receive_admitted", lambda *_: None)
    refused = 0
    for seed in range(rounds):
        simulation = build(MULTICAST[name], seed)
        run(simulation, MULTICAST[name])
        for publisher in simulation.publishers:
            group = publisher.multicast
            refused += group.invalid["token"]
            assert (group.nacks, group.window.receivers) == (0, 0)
        assert not simulation.lost.get("timeout"), seed
    assert refused > rounds
