"""Subscribers and publishers that are killed again and again, at any moment, and started again.

Every message must come; again may come only what had not been committed. `P2PMSG_SEEDS=10` kills
ten times as often.
"""

import random
import time
from collections import Counter

import pytest

from tests.endpoints import lasting_endpoint
from tests.integration.peers import eventually

KILLS = pytest.mark.rounds(6, 150)


class Notes:
    """What a consumer has written down, through all its incarnations."""

    def __init__(self, path):
        self.path = path

    def lines(self):
        text = self.path.read_text() if self.path.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()  # the last one is being written

    def last(self):
        got = [line for line in self.lines() if line.startswith("got")]
        return int(got[-1].split()[1]) if got else -1

    def check(self, commit):
        """Check the ledger, and return how many messages came, and how many of them again."""
        following = floor = lives = repeated = 0
        fresh = False
        for line in self.lines():
            what, *words = line.split()
            if what == "begin":
                fresh, lives = True, lives + 1
                continue
            at = int(words[0])
            if what == "committed":
                floor = max(floor, at)
                continue
            assert words[1] in (str(at), "first"), line
            if fresh:
                assert floor <= at <= following, (line, floor, following)
                if commit == "message":
                    assert at >= following - 50, (line, following)  # the batch in hand
                repeated += following - at
                following, fresh = at, False
            assert at == following, (line, following)
            following = at + 1
        return following, repeated, lives


class Nursery:
    """Starts and kills children at once, since each is forked from one that is there."""

    def __init__(self, child):
        self.child = child

    def start(self, role, *arguments):
        self.child.order(" ".join(map(str, (role, *arguments))))
        return int(self.child.line())

    def kill(self, *pids):
        self.child.order(" ".join(map(str, ("kill", *pids))))
        assert self.child.line() == "killed"


@KILLS
@pytest.mark.parametrize("commit", ["explicit", "message", 0.02])
def test_nothing_is_missing_after_kills(tmp_path, make_child, make_publisher, commit, rounds):
    rng = random.Random(str(commit))
    endpoint = lasting_endpoint()
    notes = Notes(tmp_path / "notes")
    nursery = Nursery(make_child("nursery", module="cursor_children"))

    def feed():
        return nursery.start("feed", endpoint, tmp_path / "log")

    def consume():
        seed = rng.randrange(10**6)
        cursor = tmp_path / "a.cursor"
        return nursery.start("consume", endpoint, cursor, notes.path, commit, seed)

    feeder, consumer = feed(), consume()
    eventually(lambda: notes.last() > 100)
    killed = Counter()
    who_all = ["publisher", "subscriber", "both"]
    for turn in range(rounds):
        time.sleep(rng.random() * 0.25)
        who = who_all[turn] if turn < 3 else rng.choice(who_all)
        killed[who] += 1
        if who == "publisher":
            nursery.kill(feeder)
            feeder = feed()
        elif who == "subscriber":
            nursery.kill(consumer)
            consumer = consume()
        else:
            nursery.kill(feeder, consumer)
            if rng.random() < 0.5:
                feeder, consumer = feed(), consume()
            else:
                consumer, feeder = consume(), feed()
    nursery.kill(feeder)

    head = head_of(make_publisher, endpoint, tmp_path / "log")
    eventually(lambda: notes.last() == head - 1)
    nursery.kill(consumer)
    received, repeated, lives = notes.check(commit)
    assert received == head
    assert len(killed) == 3
    assert lives > 1
    assert repeated < head


def head_of(make_publisher, endpoint, directory):
    """Return where the log ends, and serve it on."""
    from p2pmsg import LogConfig

    publisher = make_publisher(endpoint, log=LogConfig(directory))
    return publisher.publish("t", "first") + 1


@KILLS
def test_a_subscriber_that_is_killed_misses_nothing_without_a_log(
    tmp_path, make_child, make_publisher, rounds
):
    rng = random.Random(1)
    publisher = make_publisher()
    notes = Notes(tmp_path / "notes")
    nursery = Nursery(make_child("nursery", module="cursor_children"))
    for turn in range(rounds):
        arguments = (tmp_path / "a.cursor", notes.path, "explicit", turn)
        consumer = nursery.start("consume", publisher.endpoint, *arguments)
        stop = time.monotonic() + rng.random() * 0.2
        # The first one begins for certain; the others may be killed before.
        while time.monotonic() < stop or (turn == 0 and notes.last() < 0):
            publisher.publish("t", publisher.stats().published)
            time.sleep(0.0005)
        nursery.kill(consumer)
    consumer = nursery.start("consume", publisher.endpoint, *arguments)
    head = publisher.stats().published
    eventually(lambda: notes.last() == head - 1)
    nursery.kill(consumer)
    received, _, lives = notes.check("explicit")
    assert (received, lives > 1) == (head, True)
