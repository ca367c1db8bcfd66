"""Many subscribers that join at the same time: what each of them costs its publisher."""

import pytest

from p2pmsg.testing import NetworkOptions, Simulation

SEEDS = pytest.mark.rounds(1, 15)
PROBES_MAX = 3
"""How many probes one subscriber sends, where nothing is lost and nobody is slow."""


def join(count, seed, run_ms=1500, **options):
    """Let `count` subscribers of all topics join a publisher at once, and come to an end."""
    simulation = Simulation(NetworkOptions(seed=seed, messages_per_s=100, **options))
    simulation.add_publisher()
    simulation.add_subscriber()
    simulation.run(100)
    for number in range(count - 1):
        simulation.add_subscriber(start="earliest" if number % 2 else "latest")
    simulation.run(run_ms)
    simulation.heal()
    assert simulation.settle(30_000)
    simulation.check()
    return simulation


@SEEDS
@pytest.mark.parametrize("count", [50, 200])
def test_each_gets_its_own_echo_and_no_other(count, rounds):
    for seed in range(rounds):
        sent = join(count, seed).frames_sent
        assert count <= sent["PROBE"] <= PROBES_MAX * count, seed
        assert count <= sent["ECHO"] <= sent["PROBE"], seed


@SEEDS
@pytest.mark.parametrize("loss", [0.2, 0.5])
def test_what_is_lost_is_asked_for_again_and_not_more_often(loss, rounds):
    """Half of the frames lost: a probe and its echo come through once in four, so it takes four
    on average; nobody is sent more echoes than it asked for."""
    for seed in range(rounds):
        sent = join(50, seed, loss=loss).frames_sent
        assert sent["ECHO"] <= sent["PROBE"], seed
        assert sent["PROBE"] <= 16 * 50, seed


@SEEDS
def test_they_join_while_one_does_not_read(rounds):
    for seed in range(rounds):
        simulation = join(50, seed, run_ms=3000, read_stops_per_s=2, queue_frames=4, stall_ms=50)
        assert simulation.published, seed
