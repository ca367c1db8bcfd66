"""A publisher's log comes back shorter: its new messages reach everybody all the same.

It was restored from a copy, or its last segment was cut, and goes on in the same session, so that
sequences are used again. A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as
many.
"""

from collections import Counter
from functools import partial
from random import Random

import pytest

from recovery import Loss
from tests.simulation.faults import simulate

AWAY_S = 1.5
"""Nothing is published for so long, so that nobody's position is overtaken before he is there."""
SHAPES = {
    "restored from a copy": {"copy": True},
    "cut": {"copy": False},
    "synced always": {"copy": True, "options": {"fsync": "always"}},
    "two lines": {"copy": True, "lines": 2},
    "multicast": {"copy": True, "options": {"multicast": "open"}},
    "multicast, at once": {"copy": True, "options": {"multicast": "open"}, "away_s": 0.05},
    "sealed, at once": {
        "copy": True,
        "options": {"multicast": "sealed"},
        "away_s": 0.05,
    },
    "multicast, cut": {"copy": False, "options": {"multicast": "open"}, "away_s": 0.05},
    "cursors": {"copy": True, "options": {"cursor": True}},
    "cursors, away": {"copy": True, "options": {"cursor": True}, "away": True},
    "slow reader": {"copy": True, "options": {"read_time": 0.015, "receive_bytes": 64 * 1024}},
}


def crash_to(publisher, files=None, cut_bytes=0):
    """Let it die with a log that is a former copy, or has lost the end of its last segment."""
    publisher.crash()
    files = files or publisher.disk.copy()
    if cut_bytes:
        last = max(name for name in files if name.endswith(".log"))
        files[last] = files[last][:-cut_bytes]
    publisher.disk.restore(files)
    publisher.is_rewound = True


def build(seed, *, copy, lines=1, options=None, away=False, away_s=AWAY_S):
    rng = Random(seed)
    simulation = simulate(seed, log=True, loss=0.05, messages_per_s=250, **options or {})
    publisher = simulation.add_publisher()
    for start in ("earliest", "latest"):
        simulation.add_subscriber([publisher] * lines, start=start)
    simulation.run(rng.uniform(0.05, 0.3))
    files = publisher.disk.copy() if copy else None
    simulation.run(rng.uniform(0.05, 0.3))
    if away:
        for subscriber in simulation.subscribers:
            subscriber.commit()
            subscriber.crash()
    publisher.stop_publishing()
    crash_to(publisher, files, 0 if copy else rng.randrange(500, 5000))
    simulation.run(rng.uniform(0.0, 0.05))
    publisher.start()
    simulation.run(rng.uniform(0.0, 0.3))
    for subscriber in simulation.subscribers:
        subscriber.revive()
    simulation.run(away_s)
    publisher.publish_again()
    simulation.run(rng.uniform(0.2, 0.6))
    return simulation


@pytest.mark.rounds(1, 120)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_new_messages_with_old_sequences_are_delivered_and_said_to_be_new(shape, rounds):
    rewound = 0
    for seed in range(rounds):
        simulation = build(seed, **shape)
        simulation.heal()
        simulation.drain(30.0)
        simulation.check(quiet=0.0)
        sessions = {publisher.session for publisher in simulation.publishers}
        assert len(sessions) == 1
        rewound += sum(subscriber.oracle.rewound for subscriber in simulation.subscribers)
    if shape["copy"]:  # an opener may notice a cut
        assert rewound > rounds


@pytest.mark.internal
def test_the_checks_find_messages_that_nobody_got(monkeypatch):
    monkeypatch.setattr("p2pmsg.subscriber.joining.find_rewound", lambda *_: [])
    found = 0
    for seed in range(10):
        simulation = build(seed, copy=True)
        simulation.heal()
        simulation.drain(5.0)
        try:
            simulation.check(quiet=0.0)
        except AssertionError as error:
            assert f"seed {seed}:" in str(error)
            found += 1
    assert found >= 5


def passed(seed, seen=None, *, reconnects=False):
    """Let a publisher go back and pass, before its subscribers meet it again, where they were.

    With `reconnects` their connections end with it, so that new ones begin with its welcome.
    """
    rng = Random(seed)
    loss = 0.0 if reconnects else 0.05
    simulation = simulate(seed, log=True, loss=loss, messages_per_s=250)
    publisher = simulation.add_publisher()
    for start in ("earliest", "latest"):
        subscriber = simulation.add_subscriber([publisher], start=start)
        if seen is not None:
            watch(subscriber, seen)
    simulation.run(rng.uniform(0.05, 0.3))
    files = publisher.disk.copy()
    simulation.run(rng.uniform(0.05, 0.3))
    publisher.stop_publishing()
    simulation.run(rng.uniform(0.1, 1.0))  # so that it says up to where it has come
    for subscriber in simulation.subscribers:
        away = rng.uniform(0.9, 2.0)
        simulation.network.part(publisher.name, subscriber.name, away)
        if reconnects:
            simulation.network.after(away, partial(subscriber.cut, 0, recovery=False))
    crash_to(publisher, files)
    publisher.start()
    publisher.publish_again()
    simulation.run(rng.uniform(2.1, 2.5))
    return simulation


def watch(subscriber, seen):
    """Count how often an application gets each message; another incarnation gives it another
    time."""
    take = subscriber.oracle.take

    def note(stream, output, *, now_ns):
        if not isinstance(output, Loss):
            for message in output:
                place = id(subscriber), stream.topic, message.sequence, message.timestamp_ns
                seen[place] += 1
        take(stream, output, now_ns=now_ns)

    subscriber.oracle.take = note


@pytest.mark.rounds(1, 150)
@pytest.mark.parametrize("reconnects", [False, True], ids=["parted", "reconnected"])
def test_a_publisher_that_has_passed_the_position_again_is_known_to_have_gone_back(
    reconnects, rounds
):
    rewound = 0
    for seed in range(rounds):
        seen = Counter()
        simulation = passed(seed, seen, reconnects=reconnects)
        simulation.heal()
        assert simulation.drain(30.0), f"seed {seed} does not settle"
        simulation.check(quiet=0.0)
        rewound += sum(subscriber.oracle.rewound for subscriber in simulation.subscribers)
        if reconnects:  # else what came before another incarnation was heard of may come again
            assert set(seen.values()) == {1}, seed
    assert rewound > 2 * rounds


@pytest.mark.internal
def test_the_checks_find_a_publisher_that_passed_unseen(monkeypatch):
    monkeypatch.setattr("p2pmsg.subscriber.joining.take_incarnation", lambda *_: None)
    found = 0
    for seed in range(8):
        simulation = passed(seed)
        simulation.heal()
        simulation.drain(5.0)
        try:
            simulation.check(quiet=0.0)
        except AssertionError:
            found += 1
        if found == 4:
            return
    pytest.fail(f"found by {found} of 8 seeds")
