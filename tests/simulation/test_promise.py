"""Every message is delivered once and in order, or reported lost, under all circumstances.

Processes die at each step of a join, many join at once, publishers close, strangers forge frames.
A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as many.
"""

from collections import Counter
from dataclasses import replace

import pytest

from p2pmsg.publisher import heads
from p2pmsg.subscriber import gaps
from tests.simulation.faults import narrow, simulate
from tests.simulation.profiles import MULTICAST, PROFILES, Profile, build, run
from tests.simulation.stranger import Stranger


@pytest.mark.rounds(2, 200)
@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_promise_holds(profile, rounds):
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile)

        assert simulation.published, seed


@pytest.mark.internal
@pytest.mark.rounds(1, 100)
@pytest.mark.parametrize("name", ["50 % lost", "many topics in little space", "everything"])
def test_the_promise_holds_where_streams_wait_for_their_turn(name, rounds, monkeypatch):
    monkeypatch.setattr(gaps, "TURNS_MAX", 1)
    for seed in range(rounds):
        run(build(PROFILES[name], seed), PROFILES[name])


NEVER_AGAIN = {
    "tcp": {},
    "frames lost": {"loss": 0.1},
    "little kept": {"replay_bytes": 2000},
    "logs": {"log": True},
    "cursors": {"cursor": True},
    "multicast": {"multicast": "open"},
    "multicast, frames lost": {"multicast": "open", "loss": 0.1},
    "sealed": {"multicast": "sealed", "rotations_per_s": 1},
}


@pytest.mark.rounds(1, 50)
@pytest.mark.parametrize("options", NEVER_AGAIN.values(), ids=NEVER_AGAIN)
def test_all_is_accounted_for_where_a_data_path_stays_dead(options, rounds):
    """Only the recovery channel works from then on, and says how far the streams go."""
    for seed in range(rounds):
        simulation = simulate(seed, messages_per_s=20, **options)
        publisher = simulation.add_publisher()
        for start in ("earliest", "latest"):
            simulation.add_subscriber(start=start)
        assert simulation.drain(30.0), seed  # all have joined
        before = simulation.published
        for subscriber in simulation.subscribers:
            simulation.deafen(publisher.name, subscriber.name)
        simulation.run(8.0)
        simulation.heal()
        assert simulation.published > before, seed
        assert simulation.drain(60.0), seed
        simulation.check(quiet=0.0)


@pytest.mark.rounds(1, 30)
@pytest.mark.parametrize("options", [{}, {"loss": 0.05}, {"multicast": "sealed"}])
def test_a_path_on_which_no_data_comes_any_more_is_noticed_while_it_flows(options, rounds):
    """Only announcements and heartbeats are small enough."""
    for seed in range(rounds):
        simulation = simulate(
            seed,
            messages_per_s=1000,
            topics=1,
            bytes_max=600,
            **{"multicast": "open", **options},
        )
        publisher = simulation.add_publisher()
        subscriber = simulation.add_subscriber()
        simulation.run(0.3)
        largest = 100 if "multicast" in options else 70
        narrow(simulation, publisher.name, subscriber.name, largest, 60.0)
        simulation.run(8.0)
        waiting = []
        for _ in range(8):  # it is asked for what is there every three seconds
            simulation.run(0.5)
            waiting.append(simulation.published - simulation.delivered)
        assert min(waiting) < 2500, seed  # where it were not noticed: 7,000 at least
        simulation.heal()
        assert simulation.drain(60.0), seed
        simulation.check(quiet=0.0)


SLOW_PATHS = {
    "a fifth is free": (20_000, 60),
    "half is free": (20_000, 30),
    "three quarters are free": (40_000, 60),
}
"""Bytes a second, and messages a second."""


@pytest.mark.rounds(1, 30)
@pytest.mark.parametrize("relayed", [False, True], ids=["one publisher", "a relay of two"])
@pytest.mark.parametrize("options", SLOW_PATHS.values(), ids=SLOW_PATHS)
def test_a_slow_path_is_not_filled_with_what_has_been_asked_for_already(options, relayed, rounds):
    """What was published in 20 s is missing. Where it was asked for again too soon, most came three
    times, and what was missing next came after that, so late that it was given up."""
    bytes_per_s, messages_per_s = options
    bytes_per_s *= 1 + relayed  # a relay sends heartbeats of each session
    repaired = twice = 0
    for seed in range(rounds):
        simulation = simulate(
            seed, bytes_per_s=bytes_per_s, topics=3,
                messages_per_s=messages_per_s / (1 + relayed),
                bytes_max=120, queue_frames=1000, heartbeat_loss=0.9,
        )  # fmt: skip
        server = simulation.add_publisher()
        if relayed:
            server = simulation.add_relay([server, simulation.add_publisher()])
        subscriber = simulation.add_subscriber([server])
        assert simulation.drain(60.0), seed  # joining takes its time there, too
        simulation.part(server.name, subscriber.name, 20.0)
        simulation.run(22.0)
        simulation.heal()
        assert simulation.drain(60.0), seed
        simulation.check(quiet=0.0 if relayed else 2.0)
        assert not simulation.lost, seed
        receivers = [stream.receiver for stream in subscriber.core.streams]
        repaired += sum(receiver.repaired for receiver in receivers)
        twice += sum(receiver.duplicates for receiver in receivers)
    assert repaired > rounds * 400
    assert not twice


@pytest.mark.rounds(2, 30)
@pytest.mark.parametrize("relayed", [False, True], ids=["one publisher", "a relay"])
def test_messages_come_that_take_longer_than_a_peer_may_be_silent(relayed, rounds):
    """Of 40 kB at most, over 4 kB/s: 10 s, where connections that were silent for 1 s were made
    again, and the messages began to come again."""
    for seed in range(rounds):
        simulation = simulate(
            seed, bytes_per_s=4_000, messages_per_s=0.1, bytes_max=40_000,
                queue_frames=1000, topics=2, publisher_timeout=1.0,
        )  # fmt: skip
        server = publisher = simulation.add_publisher()
        if relayed:
            server = simulation.add_relay([publisher])
        subscriber = simulation.add_subscriber([server])
        assert simulation.drain(60.0), seed
        simulation.run(60.0)
        simulation.part(server.name, subscriber.name, 6.0)
        simulation.run(60.0)
        simulation.heal()
        assert simulation.drain(200.0), seed
        assert not simulation.lost, seed
        simulation.check(quiet=0.0)  # heartbeats are rarer than such a short time-out expects


CLOSING = ("clean", "10 % lost", "50 % lost", "twice and out of order", "cuts", "reader stops",
         "reader stops, drop")  # fmt: skip


@pytest.mark.rounds(1, 120)
@pytest.mark.parametrize("name", CLOSING)
def test_one_that_says_that_it_has_everything_has_it(name, rounds):
    for seed in range(rounds):
        simulation = build(PROFILES[name], seed)
        simulation.run(0.3)
        (publisher,) = simulation.publishers
        publisher.close()
        waited_ms = 0
        while not publisher.is_complete:
            simulation.run(0.001)
            waited_ms += 1
            assert waited_ms < 30_000, f"seed {seed}: it never comes to its end"

        for subscriber in simulation.subscribers:
            settings = subscriber.core.table.settings
            if settings.subscriber not in publisher.core.requests.known.by_id():
                continue  # the publisher has not heard that it joined, so it waited for nothing
            peer = subscriber.peer_of(publisher)
            for topic, (_, following) in publisher.core.heads().items():
                place = f"seed {seed}: {subscriber.name}, {topic!r}"
                known = peer.streams[topic].receiver
                assert (known.head, known.missing) == (following, 0), place


STARTS = ("earliest", "latest", 5, "time")
KILLS = {"join_kills": 0.15, "restart_delay": 0.04, "repair_timeout": 2.0}
SLOW = {"delay": (0.002, 0.03)}
"""So that data comes between a PROBE and its ECHO."""
LOSSY = {"loss": 0.2}

KILLED_AT_JOIN = {
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
    "multicast": Profile({**KILLS, **LOSSY, "multicast": "open"}, joiners=STARTS),
    "multicast, cursors": Profile(
        {**KILLS, **LOSSY, "multicast": "open", "cursor": True}, joiners=STARTS
    ),
    "multicast, never come back": Profile(
        {**KILLS, **LOSSY, "multicast": "open", "gone_for_good": 0.5}, joiners=STARTS, publishers=2
    ),
}
KILLED_AT_JOIN_LOGGED = {
    "logs": Profile({**KILLS, **LOSSY, "log": True}, joiners=STARTS),
    "logs, systems crash": Profile(
        {**KILLS, **LOSSY, "log": True, "system_crashes": 0.5, "fsync": "never"}, joiners=STARTS
    ),
    "logs and cursors": Profile({**KILLS, **LOSSY, "log": True, "cursor": True}, joiners=STARTS),
    "logs, gone permanently": Profile(
        {**KILLS, **LOSSY, "log": True, "cursor": True, "gone_for_good": 0.3},
        joiners=STARTS, publishers=2,
    ),
}  # fmt: skip


@pytest.mark.rounds(1, 300)
@pytest.mark.parametrize("profile", KILLED_AT_JOIN.values(), ids=KILLED_AT_JOIN)
def test_what_was_kept_is_accounted_for_whichever_dies_at_a_join(profile, rounds):
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile, quiet=0.0)


@pytest.mark.rounds(1, 300)
@pytest.mark.parametrize("profile", KILLED_AT_JOIN_LOGGED.values(), ids=KILLED_AT_JOIN_LOGGED)
def test_what_was_kept_is_accounted_for_whichever_dies_at_a_join_with_a_log(profile, rounds):
    pytest.importorskip("recovery.log")
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile, quiet=0.0)


PROBES_MAX = 3
"""How many probes one subscriber sends, where nothing is lost and nobody is slow."""


def join(count, seed, run_time=1.5, **options):
    """Let `count` subscribers of all topics join a publisher at once, and come to an end."""
    simulation = simulate(seed, messages_per_s=100, **options)
    simulation.add_publisher()
    simulation.add_subscriber()
    simulation.run(0.1)
    for number in range(count - 1):
        simulation.add_subscriber(start="earliest" if number % 2 else "latest")
    simulation.run(run_time)
    simulation.heal()
    assert simulation.drain(30.0)
    simulation.check()
    return simulation


@pytest.mark.rounds(1, 15)
@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.long)])
def test_each_gets_its_own_echo_and_no_other(count, rounds):
    for seed in range(rounds):
        sent = join(count, seed).frames_sent
        assert count <= sent["PROBE"] <= PROBES_MAX * count, seed
        assert count <= sent["ECHO"] <= sent["PROBE"], seed


@pytest.mark.rounds(1, 15)
@pytest.mark.parametrize("loss", [0.2, pytest.param(0.5, marks=pytest.mark.long)])
def test_what_is_lost_is_asked_for_again_and_not_more_often(loss, rounds):
    """Half of the frames lost: a probe and its echo come through once in four, so it takes four
    on average; nobody is sent more echoes than it asked for."""
    for seed in range(rounds):
        sent = join(50, seed, loss=loss).frames_sent
        assert sent["ECHO"] <= sent["PROBE"], seed
        assert sent["PROBE"] <= 16 * 50, seed


SHARED = {
    "two lines": {"lines": 2},
    "cut connections": {"options": {"cuts_per_s": 4}},
    "cursors": {"options": {"cursor": True, "subscriber_crashes_per_s": 4, "restart_delay": 0.02}},
    "multicast": {"options": {"multicast": "open", "loss": 0.05, "reordering": 0.2}},
}


@pytest.mark.internal
@pytest.mark.rounds(1, 300)
@pytest.mark.parametrize("shape", SHARED.values(), ids=SHARED)
def test_no_publisher_seems_to_have_gone_back(shape, rounds, monkeypatch):
    """As with thousands of topics, whose heads are said again for half a second."""
    monkeypatch.setattr(heads, "CACHED_HEADS_MIN", 1)
    monkeypatch.setattr(heads, "CACHE_NS_PER_HEAD", 200_000_000)
    for seed in range(rounds):
        simulation = simulate(seed, messages_per_s=500, **shape.get("options", {}))
        publisher = simulation.add_publisher()
        for number in range(4):
            start = "latest" if number % 2 else "earliest"
            simulation.add_subscriber([publisher] * shape.get("lines", 1), start=start)
            simulation.run(0.05)
        simulation.run(0.5)
        simulation.heal()
        assert simulation.drain(30.0), seed
        simulation.check(quiet=0.0)


FORGED = 100.0
FORGED_GROUPS = ("clean", "5 % lost", "publisher crashes", "logs", "parity, everything")
FORGED_CHANNELS = (
    "clean", "10 % lost", "cuts", "everything", "everything in little space", "joins midway",
)  # fmt: skip


def run_forged(profile, seed):
    simulation = build(profile, seed)
    stranger = Stranger(simulation, FORGED)
    run(simulation, profile, quiet=0.0 if seed % 4 else 2.0)
    assert simulation.published, seed
    return stranger.forged


@pytest.mark.rounds(2, 150)
@pytest.mark.parametrize("name", FORGED_GROUPS)
def test_a_stranger_gets_no_answer_from_the_publisher_to_a_group(name, rounds):
    profile = replace(MULTICAST[name], run_time=0.2)
    forged = Counter()
    for seed in range(rounds):
        forged += run_forged(profile, seed)
    assert forged.keys() >= {"NACK", "JOINED", "MARKED"}


SEALED_GROUPS = (
    "sealed", "20 % lost", "twice and out of order", "large messages", "slow network",
    "publisher crashes", "reader stops", "two lines to each publisher", "logs, little buffer",
    "everything, logs and cursors", "parity, everything",
)  # fmt: skip


SIGNED_GROUPS = ("sealed", "twice and out of order", "large messages", "publisher crashes")
FORGED_WITHOUT_KEY = {"replayed", "changed", "cut", "forged", "readable"}
FORGED_BY_MEMBERS = {"unsigned", "own signature", "its signature", "sealed again"}


@pytest.mark.rounds(1, 120)
@pytest.mark.parametrize(
    ("multicast", "name"),
    [*(("sealed", name) for name in SEALED_GROUPS), *(("signed", name) for name in SIGNED_GROUPS)],
)
def test_who_hears_a_sealed_group_changes_no_ledger_and_gets_no_answer(multicast, name, rounds):
    """A stranger repeats, changes and cuts what it hears, and forges the next messages.

    Where datagrams are signed, so does a member, which has the group's key.
    """
    profile = replace(MULTICAST[name], run_time=0.2)
    forged, rotations, refused = Counter(), 0, 0
    for seed in range(rounds):
        simulation = build(profile, seed, multicast=multicast, rotations_per_s=20)
        stranger = Stranger(simulation, FORGED)
        run(simulation, profile, quiet=0.0 if seed % 4 else 2.0)
        forged += stranger.forged
        rotations += sum(one.multicast.keys.rotations for one in simulation.publishers)
        refused += sum(one.core.invalid["signature"] for one in simulation.subscribers if one.core)
        assert simulation.published, seed
    assert set(forged) >= FORGED_WITHOUT_KEY
    assert rotations
    if multicast == "signed":
        assert set(forged) >= FORGED_BY_MEMBERS
        assert refused


@pytest.mark.rounds(1, 150)
@pytest.mark.parametrize("name", FORGED_CHANNELS)
def test_a_stranger_on_the_recovery_channel_changes_no_ledger(name, rounds):
    forged = Counter()
    for seed in range(rounds):
        forged += run_forged(PROFILES[name], seed)
    assert forged["NACK"] + forged["JOINED"] >= 2 * rounds
