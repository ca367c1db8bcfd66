"""What the tests of cursors share."""

from tests.integration.peers import TOPIC


def publish(publisher, count, topic=TOPIC, *, first=0):
    """Publish the sequences from `first` on, as values."""
    publisher.publish_many(topic, list(range(first, first + count)))


def committed(subscriber, topic=TOPIC):
    return next(s.committed for s in subscriber.stats().streams if s.topic == topic)
