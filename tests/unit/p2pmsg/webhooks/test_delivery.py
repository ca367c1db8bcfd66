"""What is sent to an endpoint when, and what may be committed, by a manual clock."""

import pytest

from p2pmsg import webhooks
from p2pmsg.webhooks.delivery import Delivery, Failure, Item

S = 1_000_000_000
DOWN = Failure("connection refused")
LIMITS = ("batch_max", "window", "parked_max")
WRONG = Failure("answered 500", 500)


class Exact:
    """A source of randomness for waits that are neither longer nor shorter."""

    def random(self):
        return 0.5


class Endpoint:
    """A delivery with a clock, and a shell that persists at once."""

    def __init__(self, **rules):
        self.now = 1000 * S
        limits = {name: rules.pop(name) for name in LIMITS if name in rules}
        settings = webhooks.Endpoint("http://a.example.com/", **({"concurrency": 1} | rules))
        self.core = Delivery(settings, Exact(), **limits)
        self.letters = {}
        self.reports = []
        self.committed = {}
        self.sequences = {}

    def offer(self, count=1, topic="t", key=None, size=10):
        for _ in range(count):
            sequence = self.sequences.get(topic, 0)
            self.sequences[topic] = sequence + 1
            item = Item(f"{topic}{sequence}", topic, key, size, sequence)
            self.core.offer(item, self.now)
        self.work()

    def take(self):
        items = self.core.take(self.now)
        return items or None

    def work(self):
        while self.core.effects:
            effect = self.core.effects.popleft()
            if effect.kind in ("park", "dead"):
                self.letters[effect.item.id] = effect.kind
                self.core.persisted(effect, self.now)
            elif effect.kind == "unpark":
                del self.letters[effect.item.id]
            else:
                self.reports.append(effect.kind)
        for item in self.core.committable():
            assert item.content > self.committed.get(item.stream, -1)
            self.committed[item.stream] = item.content

    def good(self, items):
        self.core.succeeded(items, self.now)
        self.work()

    def bad(self, items, failure=WRONG):
        self.core.failed(items, self.now, failure)
        self.work()

    def wait(self):
        """Move on to the next deadline; return how many seconds that took."""
        deadline = self.core.next_deadline_ns()
        seconds = max(0, deadline - self.now) / S
        self.now = max(self.now, deadline)
        return seconds

    def ids(self, items):
        return [item.id for item in items]


def test_the_schedule_is_that_of_standard_webhooks():
    end = Endpoint(order="none")
    end.offer()
    waits = []
    for _ in range(10):
        waits.append(round(end.wait()))
        end.bad(end.take())

    assert waits == [0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]
    assert end.letters == {"t0": "dead"}
    assert end.committed == {"t": 0}
    assert end.core.stats.dead == 1


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_holds_the_endpoint_and_uses_up_no_attempt(status):
    end = Endpoint(order="none", concurrency=2)
    end.offer(2)
    end.bad(end.take(), Failure("busy", status, 77.0))

    assert end.take() is None
    assert end.wait() == 77
    assert [item.attempts for item in end.take()] == [0]


def test_the_breaker_opens_probes_and_closes():
    end = Endpoint(order="none", concurrency=8)
    end.offer(8)
    for items in [end.take() for _ in range(5)]:
        end.bad(items, DOWN)
    assert end.reports == ["opened"]
    assert end.take() is None

    waits = []
    for _ in range(8):
        waits.append(round(end.wait()))
        probe = end.take()
        assert end.take() is None
        end.bad(probe, DOWN)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    end.wait()
    end.good(end.take())
    assert end.reports == ["opened", "closed"]
    end.now += 3 * S
    while items := end.take():
        end.good(items)
    assert end.core.waiting == 0
    assert end.committed == {"t": 7}


def test_a_probe_before_its_time_uses_up_no_attempt():
    end = Endpoint(order="stream")
    end.offer()
    end.bad(end.take(), DOWN)
    end.wait()
    end.bad(end.take(), DOWN)  # the second of two: it opens
    attempts = []
    for _ in range(5):
        end.wait()
        probe = end.take()
        end.bad(probe, DOWN)
        attempts.append(probe[0].attempts)
    assert attempts == [2] * 5


def test_one_message_that_is_refused_does_not_open_the_breaker():
    end = Endpoint(order="none")
    end.offer()
    for _ in range(9):
        end.wait()
        end.bad(end.take())
    assert end.reports == []
