"""A publisher's log comes back shorter: its new messages reach everybody all the same.

It was restored from a copy, or its last segment was cut, and goes on in the same session, so that
sequences are used again. A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as
many.
"""

from random import Random

import pytest

from p2pmsg.testing import InvariantError, NetworkOptions, Simulation

pytest.importorskip("recovery.log")

SEEDS = pytest.mark.rounds(6, 120)
AWAY_MS = 1500
"""Nothing is published for so long, so that nobody's position is overtaken before he is there."""
SHAPES = {
    "restored from a copy": {"copy": True},
    "cut": {"copy": False},
    "synced always": {"copy": True, "options": {"fsync": "always"}},
    "two lines": {"copy": True, "lines": 2},
    "multicast": {"copy": True, "options": {"multicast": True}},
    "cursors": {"copy": True, "options": {"cursor": True}},
    "cursors, away": {"copy": True, "options": {"cursor": True}, "away": True},
    "slow reader": {"copy": True, "options": {"read_ms": 15, "receive_bytes": 64 * 1024}},
}


def build(seed, *, copy, lines=1, options=None, away=False):
    rng = Random(seed)
    simulation = Simulation(
        NetworkOptions(seed=seed, log=True, loss=0.05, messages_per_s=250, **options or {})
    )
    publisher = simulation.add_publisher()
    for start in ("earliest", "latest"):
        simulation.add_subscriber([publisher] * lines, start=start)
    simulation.run(rng.uniform(50, 300))
    if copy:
        publisher.copy_log()
    simulation.run(rng.uniform(50, 300))
    if away:
        for subscriber in simulation.subscribers:
            subscriber.commit()
            subscriber.crash()
    publisher.stop_publishing()
    publisher.crash_to_copy(0 if copy else rng.randrange(500, 5000))
    simulation.run(rng.uniform(0, 50))
    publisher.start()
    simulation.run(rng.uniform(0, 300))
    for subscriber in simulation.subscribers:
        subscriber.revive()
    simulation.run(AWAY_MS)
    publisher.publish_again()
    simulation.run(rng.uniform(200, 600))
    return simulation


@SEEDS
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_new_messages_with_old_sequences_are_delivered_and_said_to_be_new(shape, rounds):
    rewound = 0
    for seed in range(rounds):
        simulation = build(seed, **shape)
        simulation.heal()
        simulation.settle(30_000)
        simulation.check(quiet_ms=0)
        sessions = {publisher.session for publisher in simulation.publishers}
        assert len(sessions) == 1
        rewound += sum(subscriber.witness.rewound for subscriber in simulation.subscribers)
    if shape["copy"]:  # an opener may notice a cut
        assert rewound > rounds


def test_the_checks_find_messages_that_nobody_got(monkeypatch):
    monkeypatch.setattr("p2pmsg.subscriber_lines.find_rewound", lambda *_: None)
    found = 0
    for seed in range(10):
        simulation = build(seed, copy=True)
        simulation.heal()
        simulation.settle(5000)
        try:
            simulation.check(quiet_ms=0)
        except InvariantError as error:
            assert f"seed {seed}:" in str(error)
            found += 1
    assert found >= 5
