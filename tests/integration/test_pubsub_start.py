"""Where a subscriber starts: joined live, while messages are published at speed."""

import threading
import time
from datetime import UTC, datetime

import pytest

import p2pmsg
from tests.integration.peers import (
    TOPIC,
    check_exact,
    check_ledger,
    eventually,
    ranges,
    small_frames,
    take,
    take_all,
    take_to,
)

SECOND_NS = 10**9
BASE_NS = 1_700_000_000 * SECOND_NS


class Pump:
    """Publishes at speed in a thread, until it is stopped."""

    def __init__(self, publisher, **columns):
        self.publisher = publisher
        self.columns = columns
        self.published = 0
        self._ends = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self._ends.is_set():
            for _ in range(20):
                assert self.publisher.publish(TOPIC, self.published) == self.published
                self.published += 1
            time.sleep(0.0002)

    def stop(self):
        self._ends.set()
        self.thread.join()
        return self.published


@pytest.fixture
def pumping(make_publisher, opened):
    def start(**options):
        publisher = make_publisher(**options)
        pump = Pump(publisher)
        opened.callback(pump.stop)
        eventually(lambda: pump.published > 2000)
        return publisher, pump

    return start


@pytest.mark.parametrize("start", ["earliest", 0])
def test_all_from_the_beginning_on_while_more_comes(pumping, make_subscriber, start):
    publisher, pump = pumping()
    subscriber = make_subscriber(publisher.endpoint, start=start)
    messages = take(subscriber, 10_000)
    messages = take_to(subscriber, pump.stop() - 1, messages)
    check_exact(messages)
    check_ledger(subscriber, delivered=pump.published, outstanding=0, lost=0)


def test_latest_begins_somewhere_and_then_has_no_hole(pumping, make_subscriber):
    publisher, pump = pumping()
    before = pump.published
    subscriber = make_subscriber(publisher.endpoint)
    messages = take(subscriber, 5_000)
    messages = take_to(subscriber, pump.stop() - 1, messages)
    assert messages[0].sequence >= before - 1000  # an open batch at most
    check_exact(messages, range(messages[0].sequence, pump.published))
    (ledger,) = check_ledger(subscriber, outstanding=0, lost=0).streams
    assert ledger.start == messages[0].sequence


def test_latest_after_wait_for_subscribers_misses_nothing(pumping, make_subscriber):
    publisher, pump = pumping()
    subscriber = make_subscriber(publisher.endpoint, joins=publisher)
    joined_at = pump.published
    messages = take_to(subscriber, pump.stop() - 1)
    assert messages[0].sequence <= joined_at
    check_exact(messages, range(messages[0].sequence, pump.published))


def test_a_sequence_that_is_kept(pumping, make_subscriber):
    publisher, pump = pumping()
    subscriber = make_subscriber(publisher.endpoint, start=1234)
    messages = take(subscriber, 5_000)
    messages = take_to(subscriber, pump.stop() - 1, messages)
    check_exact(messages, range(1234, pump.published))


def test_a_sequence_that_is_to_come(pumping, make_subscriber):
    publisher, pump = pumping()
    start = pump.published + 3_000
    subscriber = make_subscriber(publisher.endpoint, start=start)
    messages = [subscriber.receive(10)]
    messages = take_to(subscriber, pump.stop() - 1, messages)
    check_exact(messages, range(start, pump.published))
    check_ledger(subscriber, published=pump.published - start, outstanding=0, lost=0)


def test_below_what_is_kept_the_evicted_range_is_reported_exactly(pumping, make_subscriber):
    publisher, pump = pumping(replay_bytes=20_000, config=small_frames())
    eventually(lambda: publisher.stats().streams[TOPIC][0] > 1000)
    count = pump.stop()
    publisher.flush()
    earliest = publisher.stats().streams[TOPIC][0]
    reports = []
    subscriber = make_subscriber(publisher.endpoint, start=100, on_gap=reports.append)
    messages = take_all(subscriber, count)
    check_exact(messages, range(earliest, count))
    assert ranges(reports) == [(100, earliest, "evicted")]
    stats = check_ledger(subscriber, published=count - 100, lost=earliest - 100)
    assert ranges(stats.losses) == ranges(reports)
    assert (reports[0].topic, reports[0].session) == (TOPIC, publisher.session)


def test_below_what_is_kept_while_more_is_published_and_evicted(pumping, make_subscriber):
    publisher, pump = pumping(replay_bytes=100_000)
    eventually(lambda: publisher.stats().streams[TOPIC][0] > 1000)
    reports = []
    subscriber = make_subscriber(publisher.endpoint, start=0, on_gap=reports.append)
    messages = take(subscriber, 10_000)
    messages = take_to(subscriber, pump.stop() - 1, messages)
    lost = {n for report in reports for n in range(report.start, report.stop)}
    assert reports[0].start == 0
    assert {report.reason for report in reports} == {p2pmsg.LossReason.EVICTED}
    check_exact(messages, sorted(set(range(pump.published)) - lost))
    check_ledger(subscriber, delivered=len(messages), lost=len(lost), outstanding=0)


def test_earliest_begins_with_what_is_kept_and_calls_nothing_lost(pumping, make_subscriber):
    publisher, pump = pumping(replay_bytes=20_000, config=small_frames())
    eventually(lambda: publisher.stats().streams[TOPIC][0] > 1000)
    count = pump.stop()
    publisher.flush()
    earliest = publisher.stats().streams[TOPIC][0]
    subscriber = make_subscriber(publisher.endpoint, start="earliest", on_gap="raise")
    check_exact(take(subscriber, count - earliest), range(earliest, count))
    check_ledger(subscriber, lost=0, outstanding=0)


@pytest.mark.parametrize(
    ("second", "first"),
    [(-5, 0), (0, 0), (0.000001, 1), (0.5, 500_000), (1, 1_000_000), (1.999999, 1_999_999)],
)
def test_a_time(make_publisher, make_subscriber, second, first):
    publisher = make_publisher(replay_bytes=2**28)
    count = 2_000_000
    times = range(BASE_NS, BASE_NS + count * 1000, 1000)  # one a microsecond
    publisher.publish_many(TOPIC, [0] * count, timestamps_ns=times)
    start = datetime.fromtimestamp(BASE_NS // SECOND_NS + second, UTC)
    subscriber = make_subscriber(publisher.endpoint, start=start)
    assert subscriber.receive(10).sequence == first


def test_a_time_behind_all_is_latest(make_publisher, make_subscriber):
    publisher = make_publisher()
    publisher.publish(TOPIC, 0)
    subscriber = make_subscriber(
        publisher.endpoint, start=datetime.fromtimestamp(2**32, UTC), joins=publisher
    )
    publisher.publish(TOPIC, 1)
    assert subscriber.receive(10).value == 1


def test_a_time_while_more_comes(pumping, make_subscriber):
    publisher, pump = pumping()
    at = pump.published
    moment = datetime.now(UTC)
    eventually(lambda: pump.published > at + 2000)
    subscriber = make_subscriber(publisher.endpoint, start=moment)
    messages = take_to(subscriber, pump.stop() - 1)
    assert messages[0].sequence <= at + 1000
    assert messages[0].timestamp_ns >= moment.timestamp() * 1e9 - 1e6
    check_exact(messages, range(messages[0].sequence, pump.published))


def test_several_topics_each_start_in_their_own_place(make_publisher, make_subscriber):
    publisher = make_publisher()
    for topic in range(20):
        publisher.publish_many(f"topic {topic}", range(10 * topic + 1))
    subscriber = make_subscriber(publisher.endpoint, start=50, joins=publisher)
    for topic in range(20):
        publisher.publish_many(f"topic {topic}", range(10 * topic + 1, 300))
    messages = take(subscriber, 20 * 250)
    for topic in range(20):
        own = [message for message in messages if message.topic == f"topic {topic}"]
        check_exact(own, range(50, 300))
