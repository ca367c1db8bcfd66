"""With relays the promise holds, and what a relay has received is lost by nobody who has it.

A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as many.
"""

from dataclasses import dataclass
from random import Random

import pytest

from recovery import RangeSet
from tests.simulation.faults import simulate

RUN_S = 0.4


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Who is connected to whom, and what happens to them."""

    chain: int = 1
    both: bool = False
    """Whether the subscriber is connected to the publisher, too."""
    log: bool = False
    gone: bool = False
    """Whether the publisher dies permanently."""
    publisher_restarts: bool = False
    relay_restarts: bool = False
    options: dict = None


LOSSY = {"loss": 0.1, "duplication": 0.02, "reordering": 0.1}
KILLS = {"join_kills": 0.03, "restart_delay": 0.04, "loss": 0.1, "repair_timeout": 4.0}
SHAPES = {
    "relay only": Shape(options=LOSSY),
    "publisher and relay": Shape(both=True, options=LOSSY),
    "chain of two": Shape(chain=2, options=LOSSY),
    "publisher dies permanently": Shape(gone=True, options=LOSSY),
    "publisher dies permanently, both": Shape(gone=True, both=True, options=LOSSY),
    "publisher dies permanently, chain": Shape(gone=True, chain=2, options={"loss": 0.05}),
    "publisher begins again": Shape(publisher_restarts=True, both=True, options={"loss": 0.05}),
    "relay restarts": Shape(relay_restarts=True, options={"loss": 0.05}),
    "relay restarts on its log": Shape(relay_restarts=True, log=True, options={"loss": 0.05}),
    "dies at a join": Shape(both=True, options=KILLS),
    "dies at a join, relay only": Shape(options=KILLS),
    "dies at a join, chain": Shape(chain=2, options=KILLS),
    "dies at a join permanently": Shape(both=True, options={**KILLS, "gone_for_good": 0.5}),
    "dies at a join permanently, relays with logs": Shape(
        chain=2, log=True, options={**KILLS, "gone_for_good": 0.5}
    ),
    "everything, with a log": Shape(
        gone=True, relay_restarts=True, log=True, both=True,
        options={**LOSSY, "cuts_per_s": 3, "partitions_per_s": 1, "partition_time": 0.1},
    ),
    "everything, without": Shape(
        gone=True, relay_restarts=True, both=True, chain=2, options={**LOSSY, "cuts_per_s": 3},
    ),
}  # fmt: skip


def build(shape, seed):
    rng = Random(seed)
    simulation = simulate(seed, messages_per_s=150, **shape.options)
    publisher = simulation.add_publisher()
    places = [publisher]
    for _ in range(shape.chain):
        places = [simulation.add_relay(places, log=shape.log)]
    if shape.both:
        places = [publisher, *places]
    simulation.add_subscriber(places, start="earliest")
    simulation.run(rng.uniform(0, RUN_S / 2))
    simulation.add_subscriber(places, start=rng.choice(["earliest", "latest", 3]))
    if shape.publisher_restarts:
        simulation.run(rng.uniform(0, RUN_S / 4))
        publisher.crash()
        simulation.run(rng.uniform(0.0, 0.05))
        publisher.start()
    if shape.relay_restarts:
        relay = rng.choice(simulation.relays)
        simulation.run(rng.uniform(0, RUN_S / 4))
        relay.crash()
        simulation.run(rng.uniform(0.0, 0.1))
        relay.revive()
    simulation.run(rng.uniform(0, RUN_S))
    if shape.gone:
        publisher.leave_for_good()
        simulation.run(rng.uniform(0, RUN_S / 2))
    return simulation


@pytest.mark.rounds(1, 200)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_promise_holds_with_relays(shape, rounds):
    delivered = 0
    for seed in range(rounds):
        simulation = build(shape, seed)
        simulation.heal()
        assert simulation.drain(60.0), f"seed {seed} does not settle"
        simulation.check(quiet=0.0)
        delivered += simulation.delivered
        if not (shape.gone or shape.publisher_restarts or "join_kills" in shape.options):
            assert not simulation.lost, (seed, simulation.lost)
    assert delivered > 10 * rounds


@pytest.mark.rounds(10, 100)
@pytest.mark.parametrize("both", [False, True], ids=["relay only", "publisher and relay"])
def test_what_a_relay_keeps_is_not_given_up_while_it_is_away(both, rounds):
    """It is away for up to 28 s of the 30 that it may be; a gap is otherwise given up after 10."""
    missing = 0
    for seed in range(rounds):
        rng = Random(seed)
        simulation = simulate(seed, messages_per_s=150, loss=0.3)
        publisher = simulation.add_publisher()
        relay = simulation.add_relay([publisher], log=True)
        places = [publisher, relay] if both else [relay]
        subscriber = simulation.add_subscriber(places, start="earliest")
        simulation.run(rng.uniform(0.1, 0.4))
        line = subscriber.core.lines[-1]
        assert simulation.run_until(lambda line=line: line.relay is not None, 10.0), seed
        publisher.leave_for_good()
        relay.crash()
        missing += sum(stream.receiver.missing for stream in subscriber.core.streams)
        simulation.run(rng.uniform(15.0, 28.0))
        relay.revive()
        simulation.heal()
        assert simulation.drain(60.0), f"seed {seed} does not settle"
        simulation.check(quiet=0.0)
    assert missing


@pytest.mark.rounds(1, 60)
@pytest.mark.parametrize("log", [False, True], ids=["no logs", "logs"])
def test_what_the_first_relay_of_a_chain_keeps_is_not_given_up_while_the_others_restart(
    log, rounds
):
    """The publisher is gone; the others are away for longer than a gap is waited for."""
    for seed in range(rounds):
        rng = Random(seed)
        simulation = simulate(seed, messages_per_s=150, loss=0.3)
        publisher = simulation.add_publisher()
        first = simulation.add_relay([publisher])
        second = simulation.add_relay([first], log=log)
        third = simulation.add_relay([second], log=log)
        simulation.add_subscriber([third], start="earliest")
        simulation.run(rng.uniform(0.1, 0.4))
        publisher.leave_for_good()
        others = [second, third]
        for relay in rng.sample(others, 2):
            relay.crash()
            simulation.run(rng.uniform(0.0, 0.1))
        for relay in rng.sample(others, 2):
            simulation.run(rng.uniform(3.0, 11.0))
            relay.revive()
        simulation.add_subscriber([third], start="earliest")
        simulation.heal()
        assert simulation.drain(60.0), f"seed {seed} does not settle"
        simulation.check(quiet=0.0)
        for session, served in first.relay.sessions.items():
            for topic, stream in served.streams.items():
                kept = kept_by(first, session, topic)
                for relay in others:
                    got = relay.relay.sessions[session].streams[topic]
                    assert got.next == stream.next, seed
                    check_kept(kept, got.losses, f"seed {seed}, {relay.name}")
                for subscriber in simulation.subscribers:
                    received = subscriber.core.peers[session].streams[topic].receiver
                    assert received.head == stream.next, seed
                    check_kept(kept, received.lost_ranges, f"seed {seed}, {subscriber.name}")


DEAD = {
    "a subscriber hears no relay": [("r0", "s0")],
    "a relay hears no publisher": [("p0", "r0")],
    "a relay hears no relay": [("r0", "r1")],
    "nobody hears anybody": [("p0", "r0"), ("r0", "r1"), ("r0", "s0"), ("r1", "s1")],
    "a subscriber hears neither": [("p0", "s2"), ("r0", "s2")],
}


@pytest.mark.rounds(1, 40)
@pytest.mark.parametrize("gone", [False, True], ids=["", "publisher gone"])
@pytest.mark.parametrize("dead", DEAD.values(), ids=DEAD)
def test_all_is_accounted_for_where_a_data_path_stays_dead(dead, gone, rounds):
    """Only the recovery channel works there, and each says over it how far its streams go."""
    for seed in range(rounds):
        simulation = simulate(seed, messages_per_s=20)
        publisher = simulation.add_publisher()
        first = simulation.add_relay([publisher])
        second = simulation.add_relay([first])
        for places in ([first], [second], [publisher, first]):
            simulation.add_subscriber(places, start="earliest")
        assert simulation.drain(30.0), seed
        before = simulation.published
        for place, receiver in dead:
            simulation.deafen(place, receiver)
        simulation.run(8.0)
        if gone:
            simulation.run(4.0)
            publisher.leave_for_good()
        simulation.heal()
        assert simulation.published > before, seed
        assert simulation.drain(60.0), f"seed {seed} does not settle"
        simulation.check(quiet=0.0)
        assert not simulation.lost, (seed, simulation.lost)


def kept_by(relay, session, topic):
    """Return what a relay keeps of a stream."""
    served = relay.relay.sessions.get(session)
    if served is None or topic not in served.streams:
        return RangeSet()
    kept = RangeSet([served.head(topic)])
    for loss in served.streams[topic].losses:
        kept.remove(loss.start, loss.stop)
    return kept


def check_kept(kept, losses, name):
    """Check that nothing was lost that a relay keeps."""
    for loss in losses:
        assert not kept.overlap(loss.start, loss.stop), (name, loss)


def test_it_is_quiet_once_all_is_well():
    simulation = build(SHAPES["publisher and relay"], 1)
    simulation.heal()
    assert simulation.drain(60.0)
    simulation.run(0.5)
    before = simulation.frames_sent
    simulation.run(5.0)
    noise = {kind: n - before.get(kind, 0) for kind, n in simulation.frames_sent.items()}
    loud = {kind: count for kind, count in noise.items() if count}
    assert set(loud) <= {"HEARTBEAT", "JOINED", "SESSIONS_REQUEST", "SESSIONS"}
    assert loud["SESSIONS"] <= 2 * 6  # two subscribers, once a second


CUTS = {
    "publisher gone": {"gone": True},
    "publisher gone, chain": {"gone": True, "chain": True},
    "publisher gone, killed again": {"gone": True, "again": True},
    "publisher there": {"gone": False},
    "another relay has it": {"gone": True, "other": True},
}


def cut_relay(seed, *, gone, chain=False, again=False, other=False):
    """Return a simulation, the relay whose log was cut, and the next sequences it had."""
    rng = Random(seed)
    simulation = simulate(seed, messages_per_s=150, loss=0.05)
    publisher = simulation.add_publisher()
    others = [simulation.add_relay([publisher])] if other else []
    relay = simulation.add_relay([publisher, *others], log=True)
    last = simulation.add_relay([relay], log=rng.random() < 0.5) if chain else relay
    simulation.add_subscriber([relay], start="earliest")
    simulation.run(rng.uniform(0.2, 0.5))
    for _ in range(600):  # the relay's first frames may be lost
        if relay.relay.sessions:
            break
        simulation.run(0.1)
    if gone:
        publisher.leave_for_good()
    simulation.run(rng.uniform(0.3, 0.4))  # until the relay has written how far it is
    had = {
        (session, topic): stream.next
        for session, served in relay.relay.sessions.items()
        for topic, stream in served.streams.items()
    }
    relay.crash()
    newest = max(name for name in relay.disk.names() if name.endswith(".log"))
    relay.disk.write(newest, relay.disk.read(newest)[: -rng.randrange(100, 5000)])
    relay.forgot = True
    if again:
        relay.revive()
        simulation.run(rng.uniform(0.0, 3.0))
        relay.crash()
    if chain and rng.random() < 0.5:
        last.crash()  # perhaps it knows nothing any more
    simulation.add_subscriber([last], start="earliest")
    simulation.add_subscriber([last], start="latest")
    simulation.heal()
    return simulation, relay, had


@pytest.mark.rounds(3, 150)
@pytest.mark.parametrize("shape", CUTS.values(), ids=CUTS)
def test_what_only_a_relays_log_had_is_reported_lost_when_that_is_cut(shape, rounds):
    cut = lost = elsewhere = 0
    for seed in range(rounds):
        simulation, relay, had = cut_relay(seed, **shape)
        cut += len(relay.relay.cut)
        assert simulation.drain(90.0), f"seed {seed} does not settle"
        simulation.check(quiet=0.0)
        _, late, latest = simulation.subscribers
        for (session, topic), stop in had.items():
            ledger = late.core.peers[session].streams[topic].receiver
            assert ledger.head >= stop, seed
            assert ledger.handed + ledger.lost == ledger.head - ledger.start, seed
            reasons = {loss.reason.value for loss in ledger.lost_ranges if loss.start < stop}
            assert reasons <= {"crash", "publisher_gone", "timeout"}, seed
            lost += ledger.lost
            if not shape["gone"]:
                assert ledger.lost == 0, f"seed {seed}: the publisher keeps everything"
            if shape.get("other"):
                kept = kept_by(simulation.relays[0], session, topic)
                check_kept(kept, ledger.lost_ranges, f"seed {seed}, another relay")
                elsewhere += kept.size
            if not shape.get("chain"):
                assert latest.core.peers[session].streams[topic].receiver.lost == 0, seed
    assert cut
    if shape.get("other"):
        assert elsewhere > rounds
    elif shape["gone"]:
        assert lost
