"""What `on_gap` makes of messages that cannot be repaired: exact ranges, and on behind them."""

import logging
import struct
import time

import pytest

import p2pmsg
from tests.integration.inside import unheard_requests
from tests.integration.peers import (
    TOPIC,
    check_exact,
    check_ledger,
    eventually,
    ranges,
    take,
    take_all,
)

PREFIX = TOPIC.encode() + b"\0"


class DropRange:
    """Drops DATA frames of certain sequences on the data path."""

    def __init__(self, *sequences):
        self.sequences = set(sequences)

    def __call__(self, prefix):
        if not prefix.startswith(PREFIX) or prefix[len(PREFIX) + 3] != 1:
            return False
        (sequence,) = struct.unpack_from("!Q", prefix, len(PREFIX) + 14)
        return sequence in self.sequences


@pytest.fixture
def lossy(make_publisher, make_subscriber, make_proxy):
    """A publisher that keeps two messages, and a subscriber that loses certain ones."""

    def make(*lost, replay_bytes=2_500, **options):
        publisher = make_publisher(replay_bytes=replay_bytes, name="source")
        proxy = make_proxy(publisher, drop=DropRange(*lost))
        return publisher, make_subscriber(proxy.endpoint, joins=publisher, **options), proxy

    return make


def publish(publisher, start, stop):
    """Publish frames of one message each, 1,000 bytes and more."""
    for n in range(start, stop):
        publisher.publish(TOPIC, n, headers={"padding": bytes(1000)})
        publisher.flush()


LOST = [(3, 5, "evicted"), (9, 10, "evicted")]
REST = [0, 1, 2, 5, 6, 7, 8, *range(10, 20)]


def publish_past(publisher, proxy):
    """Publish past what is kept before the subscriber sees any of it."""
    proxy.stall()
    publish(publisher, 0, 20)
    proxy.resume()


def test_wait_logs_the_loss_and_goes_on(lossy, caplog):
    publisher, subscriber, proxy = lossy(3, 4, 9)
    with caplog.at_level(logging.WARNING, "p2pmsg"):
        publish_past(publisher, proxy)
        messages = take_all(subscriber, 20)
    check_exact(messages, REST)
    stats = check_ledger(subscriber, delivered=17, lost=3, outstanding=0)
    assert ranges(stats.losses) == LOST
    assert proxy.frames_dropped == 3
    logged = [record.getMessage() for record in caplog.records]
    assert sum("lost" in text and "'trades'" in text for text in logged) == 2


def test_raise_names_the_loss_and_the_iterator_goes_on(lossy):
    publisher, subscriber, proxy = lossy(3, 4, 9, on_gap="raise")
    publish_past(publisher, proxy)
    messages, reports = [], []
    iterator = iter(subscriber)
    while len(messages) < 17:
        try:
            messages.append(next(iterator))
        except p2pmsg.MessagesLostError as error:
            reports.append((len(messages), error.report))
            assert "lost" in str(error)
            assert "evicted" in str(error)
    check_exact(messages, REST)
    assert ranges(report for _, report in reports) == LOST
    assert [at for at, _ in reports] == [3, 7]  # each in its place in the order
    report = reports[0][1]
    assert (report.topic, report.publisher, report.count) == (TOPIC, "source", 2)
    assert report.session == publisher.session
    check_ledger(subscriber, delivered=17, lost=3, outstanding=0)


@pytest.mark.parametrize("how", ["receive", "receive_many", "for"])
def test_raise_with_every_way_of_receiving(lossy, how):
    publisher, subscriber, proxy = lossy(3, 4, 9, on_gap="raise")
    publish_past(publisher, proxy)
    messages, losses = [], 0
    while len(messages) < 17:
        try:
            if how == "for":
                for message in subscriber:
                    messages.append(message)
                    if len(messages) == 17:
                        break
            elif how == "receive":
                messages.append(subscriber.receive(10))
            else:
                messages += subscriber.receive_many(timeout=10)
        except p2pmsg.MessagesLostError:
            losses += 1
    check_exact(messages, REST)
    assert losses == 2


def test_a_callable_gets_the_report_in_its_place(lossy):
    order = []
    publisher, subscriber, proxy = lossy(
        3, 4, 9, on_gap=lambda report: order.append((report.start, report.stop))
    )
    publish_past(publisher, proxy)
    while len(order) < 19:
        order.append(subscriber.receive(10).sequence)
    assert order == [0, 1, 2, (3, 5), 5, 6, 7, 8, (9, 10), *range(10, 20)]


def test_a_callable_that_raises_does_not_end_the_iterator(lossy):
    def refuse(report):
        raise KeyError(report.start)

    publisher, subscriber, proxy = lossy(3, 4, 9, on_gap=refuse)
    publish_past(publisher, proxy)
    messages, errors = [], []
    iterator = iter(subscriber)
    while len(messages) < 17:
        try:
            messages.append(next(iterator))
        except KeyError as error:
            errors.append(error.args[0])
    check_exact(messages, REST)
    assert errors == [3, 9]


def test_a_callable_may_ask_for_stats_and_close(lossy):
    seen = []

    def close(report):
        seen.append(check_ledger(subscriber).lost)
        subscriber.close()

    publisher, subscriber, proxy = lossy(3, 4, 9, on_gap=close)
    publish_past(publisher, proxy)
    check_exact(list(subscriber))
    assert seen in ([2], [3])  # the second loss may not be known yet
    check_ledger(subscriber, delivered=3)


def test_skip_does_not_wait_for_what_could_be_repaired(lossy):
    publisher, subscriber, _ = lossy(3, 4, 9, on_gap="skip", replay_bytes=10**6)
    publish(publisher, 0, 20)
    check_exact(take(subscriber, 17), REST)
    stats = check_ledger(subscriber, delivered=17, lost=3, outstanding=0)
    assert ranges(stats.losses) == [(3, 5, "skipped"), (9, 10, "skipped")]
    assert stats.nacks_sent == 0


def test_skip_reports_a_lost_tail_too(lossy):
    publisher, subscriber, _ = lossy(8, 9, on_gap="skip", replay_bytes=10**6)
    publish(publisher, 0, 10)
    check_exact(take_all(subscriber, 10), range(8))
    assert ranges(subscriber.stats().losses) == [(8, 10, "skipped")]


def test_what_is_repaired_is_no_loss(lossy):
    publisher, subscriber, _ = lossy(3, 4, 9, 19, on_gap="raise", replay_bytes=10**6)
    publish(publisher, 0, 20)
    check_exact(take(subscriber, 20))
    stats = check_ledger(subscriber, delivered=20, outstanding=0, lost=0)
    assert stats.repaired == {"buffer": 4}
    assert stats.repair_latency.count >= 1
    eventually(lambda: [r.messages for r in publisher.stats().requesters] == [4])


def test_the_deadline_passes_where_nobody_answers(make_publisher, make_subscriber, make_proxy):
    publisher = make_publisher(recovery_endpoint="tcp://127.0.0.1:0")
    proxy = make_proxy(publisher, drop=DropRange(3, 4))
    subscriber = make_subscriber(
        proxy.endpoint, joins=publisher, on_gap="raise", repair_timeout=0.3
    )
    begun = time.monotonic()
    with unheard_requests(publisher):
        publish(publisher, 0, 10)
        check_exact(take(subscriber, 3))
        with pytest.raises(p2pmsg.MessagesLostError) as lost:
            subscriber.receive(10)
    assert time.monotonic() - begun >= 0.3
    assert ranges([lost.value.report]) == [(3, 5, "timeout")]
    check_exact(take(subscriber, 5), range(5, 10))
    check_ledger(subscriber, delivered=8, outstanding=0, lost=2)
