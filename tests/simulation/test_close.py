"""A publisher that closes may go when all say that they have everything: then they do."""

import pytest

from tests.simulation.profiles import PROFILES, build

SEEDS = pytest.mark.rounds(12, 120)
NAMES = ("clean", "10 % lost", "50 % lost", "twice and out of order", "cuts", "reader stops",
         "reader stops, drop")  # fmt: skip


@SEEDS
@pytest.mark.parametrize("name", NAMES)
def test_whoever_says_that_it_has_everything_has_it(name, rounds):
    for seed in range(rounds):
        simulation = build(PROFILES[name], seed)
        simulation.run(300)
        (publisher,) = simulation.publishers
        publisher.close()
        waited_ms = 0
        while not publisher.is_complete:
            simulation.run(1)
            waited_ms += 1
            assert waited_ms < 30_000, f"seed {seed}: it never comes to its end"

        for subscriber in simulation.subscribers:
            joiner = subscriber.core.joiner
            if joiner.settings.subscriber not in publisher.core.requests.subscribers:
                continue  # the publisher has not heard that it joined, so it waited for nothing
            peer = subscriber.peer_of(publisher)
            for topic, (_, following) in publisher.core.heads().items():
                place = f"seed {seed}: {subscriber.name}, {topic!r}"
                known = peer.streams[topic].receiver
                assert (known.head, known.missing) == (following, 0), place
