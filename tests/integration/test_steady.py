"""A subscriber to which more comes than it takes."""

import time
from itertools import islice

import pytest

from p2pmsg import SubscriberConfig

READERS = {
    "receive_many": lambda subscriber, iterator, size: subscriber.receive_many(size, 60),
    "iterate": lambda subscriber, iterator, size: list(islice(iterator, size)),
}


@pytest.fixture
def flood(make_child, make_subscriber):
    """Subscribe to somebody who publishes faster than it is read; return both."""

    def start(*topics, **options):
        child = make_child("flood", *topics)
        return child, make_subscriber(child.line(), **options)

    return start


@pytest.mark.long
@pytest.mark.parametrize("how", ["receive_many", pytest.param("iterate", marks=pytest.mark.long)])
def test_a_busy_subscriber_still_does_what_is_due(flood, how):
    """Its keep-alives go out: the publisher forgets who is silent for longer than a second."""
    child, subscriber = flood("a", config=SubscriberConfig(publisher_timeout=0.5))
    iterator, expected = iter(subscriber), 0
    end = time.monotonic() + 1.6
    while time.monotonic() < end:
        for message in READERS[how](subscriber, iterator, 2000):
            assert message.sequence == expected
            expected += 1
    assert child.lines.empty()  # or else it would have said that it is alone
