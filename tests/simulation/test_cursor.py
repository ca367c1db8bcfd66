"""A subscriber with a cursor may die at any time: it misses nothing, and what it has committed it
does not get again.

A failing run is named by its seed. `P2PMSG_SEEDS=10` runs ten times as many.
"""

import pytest

from p2pmsg.subscriber.resume import ResumePoints
from tests.simulation.profiles import EVERYTHING, TIGHT, Profile, build, run

JOINERS = ("earliest", "latest", 5, "time")
DIES = {"cursor": True, "subscriber_crashes_per_s": 8, "restart_delay": 0.04, "loss": 0.05}

ALONE = {
    "processes crash": Profile(DIES, joiners=JOINERS),
    "processes crash often": Profile(
        {**DIES, "subscriber_crashes_per_s": 60, "restart_delay": 0.005}
    ),
    "systems crash": Profile({**DIES, "system_crashes": 1.0}, joiners=JOINERS),
    "systems crash, never synced": Profile({**DIES, "system_crashes": 0.5, "fsync": "never"}),
    "reader stops": Profile({**DIES, "read_stops_per_s": 4, "read_stop_time": 0.2}),
    "two publishers, two lines": Profile(DIES, publishers=2, lines=2),
}
"""The publisher stays, and keeps everything."""

WITHOUT_LOG = {
    "little kept": Profile({**DIES, "replay_bytes": 3000}, joiners=JOINERS),
    "publishers crash": Profile({**DIES, "publisher_crashes_per_s": 4}, joiners=JOINERS),
    "little space": Profile({**DIES, **TIGHT, "read_stops_per_s": 4}),
    "everything": Profile({**EVERYTHING, "cursor": True, "system_crashes": 0.3}, publishers=2),
}
"""Something is lost, and that is said."""

WITH_LOG = {
    "processes crash": Profile({**DIES, "publisher_crashes_per_s": 5}, joiners=JOINERS),
    "often": Profile(
        {
            **DIES,
            "publisher_crashes_per_s": 20,
            "subscriber_crashes_per_s": 20,
            "restart_delay": 0.01,
        }
    ),
    "little buffer": Profile({**DIES, "publisher_crashes_per_s": 5, "replay_bytes": 2000}),
    "subscribers' systems crash": Profile(
        {**DIES, "publisher_crashes_per_s": 5, "fsync": "always", "system_crashes": 0.5}
    ),
    "everything, two publishers": Profile({**EVERYTHING, "cursor": True}, publishers=2),
}
"""Publishers die too, and go on where they were."""


def check_nothing_is_missing(simulation, seed):
    """Check that a subscriber that began at the beginning got each message that was published."""
    for subscriber in simulation.subscribers:
        if subscriber.start.kind == "earliest":
            cursor = subscriber.cursor
            assert (cursor.delivered, cursor.lost) == (simulation.published, {}), seed


@pytest.mark.rounds(3, 200)
@pytest.mark.parametrize("profile", ALONE.values(), ids=ALONE)
def test_a_subscriber_that_dies_misses_nothing(profile, rounds):
    crashes = repeated = 0
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile)

        check_nothing_is_missing(simulation, seed)
        crashes += sum(subscriber.crashes for subscriber in simulation.subscribers)
        repeated += sum(subscriber.cursor.repeated for subscriber in simulation.subscribers)
    assert crashes >= rounds
    assert repeated >= rounds  # so the checks have had something to look at


@pytest.mark.rounds(1, 200)
@pytest.mark.parametrize("profile", WITHOUT_LOG.values(), ids=WITHOUT_LOG)
def test_what_is_missing_is_reported(profile, rounds):
    for seed in range(rounds):
        simulation = build(profile, seed)
        run(simulation, profile)


@pytest.mark.rounds(1, 200)
@pytest.mark.parametrize("profile", WITH_LOG.values(), ids=WITH_LOG)
def test_with_a_log_both_sides_may_die(profile, rounds):
    pytest.importorskip("recovery.log")
    for seed in range(rounds):
        simulation = build(profile, seed, log=True)
        run(simulation, profile)

        assert simulation.published, seed
        check_nothing_is_missing(simulation, seed)


@pytest.mark.rounds(3, 30)
def test_what_was_committed_does_not_come_again(rounds):
    for seed in range(rounds):
        simulation = build(ALONE["processes crash"], seed)
        run(simulation, ALONE["processes crash"])
        for subscriber in simulation.subscribers:
            subscriber.commit()
            subscriber.crash()
            before = subscriber.cursor.delivered, subscriber.cursor.repeated
            subscriber.revive()
            simulation.drain(10.0)
            assert (subscriber.cursor.delivered, subscriber.cursor.repeated) == before, seed
            assert subscriber.streams
        simulation.check()


@pytest.mark.rounds(5, 30)
def test_an_old_cursor_reports_the_exact_loss(rounds):
    said = 0
    for seed in range(rounds):
        simulation = build(Profile(starts=()), seed, cursor=True, replay_bytes=3000)
        (publisher,) = simulation.publishers
        simulation.run(0.05)
        subscriber = simulation.add_subscriber(start="earliest")
        simulation.run(0.05)
        subscriber.commit()
        subscriber.crash()
        positions = {key: covered.next for key, covered in subscriber.cursor.covered.items()}
        earlier = subscriber.cursor.lost["evicted"]
        simulation.run(0.4)
        publisher.stop_publishing()
        simulation.run(0.1)  # who would crash while it resumes has another loss
        heads = publisher.core.heads()
        subscriber.revive()
        simulation.heal()
        simulation.drain(10.0)
        simulation.check()
        wanted = sum(
            max(0, heads[topic][0] - following) for (_, topic), following in positions.items()
        )
        new = sum(
            earliest
            for topic, (earliest, _) in heads.items()
            if (publisher.session, topic) not in positions
        )
        assert subscriber.cursor.lost["evicted"] - earlier == wanted + new, seed
        said += wanted
    assert said > 0


def forgets_a_commit(monkeypatch):
    """Let a new incarnation begin in front of what was committed."""
    monkeypatch.setattr("recovery.cursor.CursorFile.advance", lambda *_, **__: 0)


def forgets_to_note_the_session(monkeypatch):
    """Let messages be delivered before their session is noted."""
    monkeypatch.setattr("p2pmsg.subscriber.resume.ResumePoints.note", lambda *_: None)


def begins_later(monkeypatch):
    """Let a new incarnation leave a message out."""
    real = ResumePoints.start_of

    def start_of(self, session, topic, of_new):
        known = real(self, session, topic, of_new)
        return None if known is None else known + 1

    monkeypatch.setattr(ResumePoints, "start_of", start_of)


@pytest.mark.parametrize("fault", [forgets_a_commit, forgets_to_note_the_session, begins_later])
def test_the_checks_find_what_is_wrong(monkeypatch, fault):
    fault(monkeypatch)
    found = 0
    for seed in range(10):
        simulation = build(ALONE["processes crash"], seed)
        try:
            run(simulation, ALONE["processes crash"])
        except AssertionError as error:
            assert f"seed {seed}:" in str(error)
            found += 1
        if found == 3:
            return
    pytest.fail(f"found by {found} of 10 seeds")
