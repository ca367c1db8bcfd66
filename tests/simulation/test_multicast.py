"""The promise over datagrams to a group, and RFC 5401's back-off of many that lost the same."""

from dataclasses import replace
from statistics import mean

import pytest

from tests.simulation.crowd import lose_one
from tests.simulation.faults import simulate
from tests.simulation.profiles import MULTICAST, build, run

RUN_S = 0.12
QUIET_EVERY = 12
"""That a network comes to rest takes longer to see than all the rest."""


@pytest.mark.rounds(2, 500)
@pytest.mark.parametrize("profile", MULTICAST.values(), ids=MULTICAST)
def test_the_promise_holds_in_a_multicast(profile, rounds):
    short = replace(profile, run_time=max(RUN_S, profile.run_time / 4))
    published = 0
    for seed in range(rounds):
        simulation = build(short, seed)
        run(simulation, short, quiet=2.0 if seed % QUIET_EVERY == 0 else 0.0)
        published += simulation.published
    assert published > 10 * rounds


@pytest.mark.rounds(1, 120)
@pytest.mark.parametrize("name", ["logs", "logs, little buffer", "logs, synced always"])
def test_nothing_is_lost_with_a_process_that_has_a_log(name, rounds):
    profile = MULTICAST[name]
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile)

        assert simulation.published, seed
        assert not simulation.lost, (seed, simulation.lost)


@pytest.mark.parametrize("receivers", [1, 4, 100, 10_000])
def test_few_of_them_ask(receivers):
    outcomes = [lose_one(receivers, seed) for seed in range(20)]
    assert mean(outcome.nacks for outcome in outcomes) <= 4
    assert all(outcome.repairs == 1 for outcome in outcomes)
    assert max(outcome.repaired_ms for outcome in outcomes) < 15


def test_a_publisher_that_does_not_know_how_many_there_are_is_asked_more_often():
    """So that it reports them is worth its bytes."""
    known = mean(lose_one(1000, seed).nacks for seed in range(20))
    unknown = mean(lose_one(1000, seed, group_size=10).nacks for seed in range(20))
    assert unknown > 2 * known


def test_without_a_back_off_all_of_them_ask():
    outcome = lose_one(1000, 1, backoff=0.0)
    assert outcome.nacks == 1000
    assert outcome.repairs == 1


@pytest.mark.parametrize("loss", [0.05, 0.5])
def test_all_get_it_although_repairs_are_lost(loss):
    for seed in range(20):
        outcome = lose_one(100, seed, repair_loss=loss)
        assert outcome.repairs < 20


@pytest.mark.parametrize("seed", range(4))
def test_keys_that_were_lost_with_a_connection_are_asked_for_when_it_returns(seed):
    """Where nothing is published, few datagrams show that the next key is used."""
    profile = MULTICAST["sealed"]
    simulation = build(profile, seed, rotations_per_s=0, loss=0.0)
    run(simulation, replace(profile, joiners=()))
    (publisher,), (subscriber, _) = simulation.publishers, simulation.subscribers
    publisher.rotate_keys()
    subscriber.cut(0, recovery=True)
    assert simulation.run_until(lambda: publisher.is_idle, 0.5)
    assert simulation.run_until(lambda: publisher.is_read_by(subscriber.core), 5.0)
    assert publisher.multicast.keys.rotations == 1


def test_a_rotation_does_not_wait_for_one_that_is_gone():
    profile = MULTICAST["sealed"]
    simulation = build(profile, 1, rotations_per_s=0, loss=0.0)
    run(simulation, replace(profile, joiners=()))
    (publisher,), (subscriber, other) = simulation.publishers, simulation.subscribers
    before = simulation.frames_sent["KEYS"]
    subscriber.leave_for_good()
    publisher.rotate_keys()
    assert simulation.run_until(lambda: publisher.is_idle, 0.02)
    assert publisher.is_read_by(other.core)
    simulation.run(5.0)
    assert simulation.frames_sent["KEYS"] == before + 1  # the other's: one that is gone gets none


@pytest.mark.rounds(2, 100)
def test_a_session_ends_when_its_publisher_comes_back_without_it(rounds):
    """Also where the subscriber was stopped when the other one began."""
    for seed in range(rounds):
        simulation = simulate(seed, multicast="open", messages_per_s=100, loss=0.05)
        publisher, subscriber = simulation.add_publisher(), simulation.add_subscriber()
        simulation.run(0.5)
        publisher.crash()
        subscriber.stop_process(3.0 * (seed % 2))
        simulation.run(0.5)
        publisher.start()
        simulation.run(10.0)
        simulation.heal()
        assert simulation.drain(30.0), seed
        former, later = subscriber.core.peers.values()
        assert (former.gone, later.session) == (True, publisher.session), seed
        simulation.check(quiet=0.0)
