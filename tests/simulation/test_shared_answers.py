"""A publisher gives one answer to many that ask: nobody takes an old one for the present state."""

import pytest

from p2pmsg.publisher import heads
from p2pmsg.testing import NetworkOptions, Simulation

SEEDS = pytest.mark.rounds(5, 300)
SHAPES = {
    "two lines": {"lines": 2},
    "cut connections": {"options": {"cuts_per_s": 4}},
    "cursors": {"options": {"cursor": True, "subscriber_crashes_per_s": 4, "restart_ms": 20}},
    "multicast": {"options": {"multicast": True, "loss": 0.05, "reordering": 0.2}},
    "forged datagrams": {"options": {"multicast": True, "forged_per_s": 20}},
}


@SEEDS
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_publisher_seems_to_have_gone_back(shape, rounds, monkeypatch):
    """As with thousands of topics, whose heads are told again for half a second."""
    monkeypatch.setattr(heads, "CACHED_HEADS_MIN", 1)
    monkeypatch.setattr(heads, "CACHE_NS_PER_HEAD", 200_000_000)
    for seed in range(rounds):
        options = NetworkOptions(seed=seed, messages_per_s=500, **shape.get("options", {}))
        simulation = Simulation(options)
        publisher = simulation.add_publisher()
        for number in range(4):
            start = "latest" if number % 2 else "earliest"
            simulation.add_subscriber([publisher] * shape.get("lines", 1), start=start)
            simulation.run(50)
        simulation.run(500)
        simulation.heal()
        assert simulation.settle(30_000), seed
        simulation.check(quiet_ms=0)
