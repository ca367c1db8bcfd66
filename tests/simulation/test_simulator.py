"""The simulator itself: the same seed gives the same run, and the checks find what is wrong."""

from dataclasses import replace

import pytest

from p2pmsg.config import SubscriberConfig
from p2pmsg.control import Nack
from p2pmsg.publisher.heartbeats import HeartbeatSender
from p2pmsg.wire import Kind, control_frame
from recovery import Loss, LossReason
from tests.simulation.profiles import CLEAN, EVERYTHING, PROFILES, Profile, build, run
from tests.simulation.simulator import NetworkOptions, Simulation
from tests.simulation.simulator.subscriber import SimulatedSubscriber


def trace_of(profile, seed):
    simulation = build(profile, seed)
    run(simulation, profile)
    return simulation.trace


@pytest.mark.parametrize("name", ["reader stops", "newest values, everything", "everything"])
def test_the_same_seed_gives_the_same_trace(name):
    assert trace_of(PROFILES[name], 5) == trace_of(PROFILES[name], 5)


def test_another_seed_gives_another_trace():
    assert trace_of(CLEAN, 1) != trace_of(CLEAN, 2)


def test_a_clean_network_loses_nothing_and_repairs_nothing():
    simulation = build(CLEAN, 0)
    run(simulation, CLEAN)

    assert simulation.delivered == 2 * simulation.published > 0
    assert simulation.lost == {}
    assert "NACK" not in simulation.frames_sent


def test_the_log_gets_a_line_for_everything_that_happens():
    lines = []
    simulation = Simulation(NetworkOptions(seed=3), log=lines.append)
    simulation.add_publisher()
    simulation.add_subscriber()
    simulation.run(0.1)

    assert any("WELCOME" in line for line in lines)
    assert any("s0 reads p0-topic-" in line for line in lines)


NO_HEARTBEATS = {"handle_timer": lambda *_, **__: None, "next_deadline_ns": lambda _: None}


def tails_lost(count):
    """Seeds at which a stream's end was lost silently, at 5 % loss.

    A line that says nothing is probed after a while; that would show the tail, too, but late.
    """
    never_probed = SubscriberConfig(publisher_timeout=1000000.0)
    found = set()
    for seed in range(count):
        simulation = build(Profile({"loss": 0.05}, starts=()), seed)
        for start in ("earliest", "latest"):
            simulation.add_subscriber(start=start, config=never_probed)
        simulation.run(0.3)
        # The last messages go out while frames are still lost; then nothing more happens.
        for publisher in simulation.publishers:
            publisher.stop_publishing()
        simulation.run(0.06)
        simulation.heal()
        simulation.drain(4.0)
        try:
            simulation.check()
        except AssertionError as error:
            found.add(seed)
            if f"seed {seed}:" not in str(error) or "silently" not in str(error):
                raise
    return found


@pytest.mark.internal
@pytest.mark.rounds(8, 60)
def test_a_lost_tail_is_noticed_by_heartbeats_and_only_by_them(rounds, monkeypatch):
    assert tails_lost(rounds) == set()
    for name, nothing in NO_HEARTBEATS.items():
        monkeypatch.setattr(HeartbeatSender, name, nothing)
    assert len(tails_lost(rounds)) >= 1


@pytest.mark.internal
def test_a_line_that_says_nothing_is_probed_which_shows_a_lost_tail_too(monkeypatch):
    """Without heartbeats, and with welcomes that are not lost."""
    for name, nothing in NO_HEARTBEATS.items():
        monkeypatch.setattr(HeartbeatSender, name, nothing)
    profile = Profile({"loss": 0.05, "heartbeat_loss": 0.9})
    for seed in range(20):
        run(build(profile, seed), profile)


def twice(number, output):
    return [output] if number % 50 else [output, output]


def missing(number, output):
    return [output] if number % 50 else []


def shifted(number, output):
    """Deliver the content of the message before."""
    if number >= 50 and not isinstance(output, Loss):
        output.sequence += 1
    return [output]


def made_up_loss(number, output):
    if number != 50 or isinstance(output, Loss):
        return [output]
    return [Loss(output.sequence, output.sequence + len(output), LossReason.TIMEOUT)]


TAMPERINGS = {
    "delivered twice": (twice, "went on at"),
    "not delivered": (missing, "went on at"),
    "another content": (shifted, "never published"),
    "a loss made up": (made_up_loss, "before its deadline"),
}


@pytest.mark.internal
@pytest.mark.parametrize(("tamper", "message"), TAMPERINGS.values(), ids=TAMPERINGS)
def test_the_checks_find(tamper, message, monkeypatch):
    def hand_over(self, stream, output, real=SimulatedSubscriber.hand_over):
        self.handed = getattr(self, "handed", 0) + 1
        for changed in tamper(self.handed, output):
            real(self, stream, changed)

    monkeypatch.setattr(SimulatedSubscriber, "hand_over", hand_over)

    with pytest.raises(AssertionError, match=message) as raised:
        run(build(CLEAN, 17), CLEAN)

    assert "seed 17" in str(raised.value)


def test_the_checks_find_a_buffer_that_grows_beyond_its_bound():
    simulation = build(CLEAN, 2)
    simulation.run(0.1)
    core = simulation.publishers[0].core
    core.replay.bytes_held += 2**30
    simulation.run(0.0)

    with pytest.raises(AssertionError, match="keeps"):
        simulation.check()


def test_the_checks_find_a_network_that_does_not_calm_down():
    simulation = build(CLEAN, 2)
    run(simulation, CLEAN)
    subscriber = simulation.subscribers[0]
    session, peer = next(iter(subscriber.core.peers.items()))
    nack = control_frame(Kind.NACK, session, Nack(next(iter(peer.streams)), [(0, 1)]))

    def chatter():
        subscriber.core.requests.append((session, nack))
        subscriber.pump()
        simulation.network.after(0.05, chatter)

    chatter()
    with pytest.raises(AssertionError, match="not quiet"):
        simulation.check()


def test_all_faults_happen_under_everything():
    profile = Profile({**EVERYTHING, "receive_bytes": 64 * 1024}, publishers=2, run_time=2.0)
    simulation = build(replace(profile), 1)
    run(simulation, profile)

    sent = simulation.frames_sent
    assert sent["NACK"]
    assert sum(publisher.crashes for publisher in simulation.publishers)
    assert sum(subscriber.crashes for subscriber in simulation.subscribers)
