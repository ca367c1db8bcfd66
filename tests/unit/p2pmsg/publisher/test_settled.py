"""A batch that grows no more leaves: who publishes pauses, and nobody comes to share its frame."""

import pytest

from p2pmsg.config import PublisherConfig
from p2pmsg.publisher.core import PublisherCore

MS = 1_000_000
US = 1_000


def core(**options):
    config = PublisherConfig(gather_after=0, **options)
    return PublisherCore(name="feed", session=9, recovery="memory://r", config=config, now_ns=0)


def publish(publisher, count, *, topic="t", now_ns, value=b"v" * 100):
    for _ in range(count):
        publisher.publish(topic, value, None, None, None, now_ns=now_ns, wall_ns=1)


def test_what_has_not_grown_since_the_last_look_is_settled():
    publisher = core()
    publish(publisher, 200, now_ns=MS)  # as busy, it may wait for 200 µs
    assert publisher.settled(now_ns=MS + 50 * US) == []
    assert publisher.settled(now_ns=MS + 100 * US) == ["t"]
    assert publisher.lingering(now_ns=MS + 100 * US) == []


def test_what_still_grows_waits_until_it_has_lingered():
    publisher = core()
    publish(publisher, 200, now_ns=MS)
    for look in range(1, 4):
        publish(publisher, 1, now_ns=MS + 50 * look * US)
        assert publisher.settled(now_ns=MS + 50 * look * US) == []
    publish(publisher, 1, now_ns=MS + 198 * US)
    assert publisher.settled(now_ns=MS + 210 * US) == ["t"]


def test_each_stream_is_looked_at_by_itself():
    publisher = core()
    for topic in "ab":
        publish(publisher, 200, topic=topic, now_ns=MS)
    publisher.settled(now_ns=MS)
    publish(publisher, 1, topic="b", now_ns=MS + 50 * US)
    assert publisher.settled(now_ns=MS + 50 * US) == ["a"]


def test_another_batch_is_another_one():
    publisher = core()
    publish(publisher, 200, now_ns=MS)
    publisher.settled(now_ns=MS)
    publisher.seal("t", now_ns=MS)
    publish(publisher, 200, now_ns=MS)
    assert publisher.settled(now_ns=MS + 10 * US) == []


def test_where_sending_is_slow_what_is_still_waits_all_the_same():
    """A frame to a thousand subscribers takes a millisecond: others may come in that time."""
    publisher = core()
    publish(publisher, 1, now_ns=MS)
    for _ in range(2):
        publisher.note_sent(MS, MS + 600 * US)  # so for 600 µs
    publish(publisher, 20, now_ns=MS + 700 * US)
    looks = [publisher.settled(now_ns=MS + at * US) for at in (800, 900, 1_000, 1_190, 1_210)]
    assert looks == [[], [], [], [], ["t"]]
    assert not publisher.is_gathering(16, now_ns=MS + 1_190 * US)
    assert publisher.is_gathering(16, now_ns=MS + 1_210 * US)


def test_what_the_log_did_not_take_is_not_tried_at_each_look():
    publisher = core()
    publish(publisher, 20, now_ns=MS)
    publisher.open_batches["t"].opened_ns = MS + 100 * MS  # as `seal_if_possible` leaves it
    assert [publisher.settled(now_ns=MS + at * MS) for at in (1, 2, 50, 99)] == [[]] * 4
    assert not publisher.is_gathering(16, now_ns=MS + 99 * MS)
    assert publisher.settled(now_ns=MS + 101 * MS) == ["t"]


@pytest.mark.parametrize(("count", "watched"), [(100, True), (1_000, False)])
def test_a_stream_that_fills_its_frames_is_not_to_be_watched(count, watched):
    publisher = core()
    for burst in range(20):  # frames grow to what the stream fills
        publish(publisher, count, now_ns=(burst + 1) * MS)
        publisher.flush(now_ns=(burst + 1) * MS)
    publish(publisher, 1, now_ns=20 * MS)
    assert publisher.has_begun("t") is watched
    assert publisher.is_gathering(16, now_ns=20 * MS) is watched
    publish(publisher, 1, now_ns=20 * MS)
    assert not publisher.has_begun("t")


def test_many_open_batches_are_not_watched():
    publisher = core()
    for number in range(20):
        publish(publisher, 2, topic=f"t{number}", now_ns=MS)
    assert publisher.is_gathering(20, now_ns=MS)
    assert not publisher.is_gathering(19, now_ns=MS)
    publisher.flush(now_ns=MS)
    assert not publisher.is_gathering(20, now_ns=MS)
