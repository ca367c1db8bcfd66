"""Over UDP with a local log and a durable cursor: both ends may be started again."""

import itertools
import shutil
import signal

import pytest

from p2pmsg import LogConfig
from p2pmsg.testing import lose_datagrams
from tests.endpoints import free_port, lasting_endpoint
from tests.integration.cursors import committed
from tests.integration.peers import TOPIC, check_ledger, eventually, take
from tests.integration.peers import check_exact as check_sequences

pytest.importorskip("recovery.log")

LITTLE = 65_536
_group = itertools.count(1)


@pytest.fixture
def endpoint():
    return f"udp://239.255.9.{next(_group)}:{free_port()}?interface=127.0.0.1"


def publish(publisher, numbers):
    """Publish numbers one by one and in one call, by turns."""
    numbers = list(numbers)
    for at in range(0, len(numbers), 500):
        part = numbers[at : at + 500]
        for number in part[:100]:
            publisher.publish(TOPIC, number)
        if part[100:]:
            publisher.publish_many(TOPIC, part[100:])


def check_exact(messages, first=0):
    """Check that the values are the sequences from `first` on, in order and without a hole."""
    check_sequences(messages, range(first, first + len(messages)))


@pytest.mark.parametrize(
    ("fsync", "part"),
    [
        ("interval", 0),
        ("always", 0.2),
        pytest.param("never", 0.2, marks=pytest.mark.long),
        pytest.param("interval", 0.2, marks=pytest.mark.long),
        pytest.param("always", 0, marks=pytest.mark.long),
        pytest.param("never", 0, marks=pytest.mark.long),
    ],
)
def test_a_publisher_goes_on_in_its_session(
    tmp_path, make_publisher, make_subscriber, endpoint, fsync, part
):
    log = LogConfig(tmp_path, fsync=fsync)
    first = make_publisher(endpoint, log=log, name="feed")
    subscriber = make_subscriber(endpoint, joins=first)
    lose_datagrams(subscriber, part)
    session = first.session
    publish(first, range(2000))
    check_exact(take(subscriber, 2000))
    first.close()

    second = make_publisher(endpoint, log=log, name="feed")
    assert second.session == session
    second.wait_for_subscribers(1, timeout=60)
    publish(second, range(2000, 4000))
    check_exact(take(subscriber, 2000), 2000)
    second.publish("opened since", 0)
    assert subscriber.receive(60).topic == "opened since"
    check_ledger(subscriber, delivered=4001, outstanding=0, lost=0)
    stats = second.stats()
    assert stats.log is not None
    assert stats.published == 4001
    assert sum(stats.repaired.values()) == stats.messages_repaired
    if not part:  # the receiver knows that the marks count from the start
        eventually(lambda: second.stats().multicast.receivers_waited_for == 1)
    else:
        assert stats.repaired["buffer"] >= stats.multicast.messages_repaired


def test_what_a_killed_publisher_sent_comes_from_its_log(
    tmp_path, make_publisher, make_subscriber, make_child, endpoint
):
    child = make_child("publish_logged", endpoint, tmp_path, "never")
    session = int(child.line().split()[-1])
    subscriber = make_subscriber(endpoint, start="earliest")
    for _ in range(20):
        subscriber.receive(60)
    lose_datagrams(subscriber, 1.0)
    count = int(child.line())
    while count < 20_000:
        count = int(child.line())
    child.signal(signal.SIGKILL)
    child.wait()

    second = make_publisher(endpoint, log=LogConfig(tmp_path), name=endpoint[:80])
    assert second.session == session
    lose_datagrams(subscriber, 0)
    head = second.publish("t", "the last")
    assert head >= count
    messages = take(subscriber, head + 1 - 20)
    assert [message.sequence for message in messages] == list(range(20, head + 1))
    assert messages[-1].value == "the last"
    assert subscriber.stats().lost == 0


@pytest.mark.parametrize("part", [0, 0.2], ids=["clean", "20 % lost"])
def test_a_subscriber_resumes_on_its_cursor(make_publisher, resume, endpoint, part):
    publisher = make_publisher(endpoint)
    publish(publisher, range(500))
    first = resume(publisher, joins=publisher, start="earliest")
    lose_datagrams(first, part)
    publish(publisher, range(500, 1000))
    check_exact(take(first, 1000))
    first.commit()
    assert committed(first) == 1000
    publish(publisher, range(1000, 1500))
    take(first, 200)  # not committed: they come again
    first.close()
    publish(publisher, range(1500, 3000))
    publisher.publish("opened since", 0)

    again = resume(publisher, joins=publisher, start="latest")
    lose_datagrams(again, part)
    publish(publisher, range(3000, 4000))
    messages = take(again, 3001)
    check_exact([message for message in messages if message.topic == TOPIC], 1000)
    assert [message.value for message in messages if message.topic != TOPIC] == [0]
    stats = again.stats()
    assert (stats.lost, stats.outstanding) == (0, 0)
    assert stats.cursor is not None
    assert [line.endpoint for line in stats.lines] == [publisher.endpoint]
    assert stats.lines[0].frames > 0


@pytest.mark.parametrize("place", ["any", "fixed"])
@pytest.mark.parametrize("count", [50, 2500], ids=["below", "passed"])
def test_messages_of_a_restored_snapshot_are_delivered_however_far_it_is_by_then(
    tmp_path, make_publisher, make_subscriber, endpoint, count, place
):
    """A whole machine goes back to a snapshot, and publishes at once: nobody warns its log."""
    kept, copy = tmp_path / "log", tmp_path / "copy"
    recovery = lasting_endpoint() if place == "fixed" else "tcp://127.0.0.1:0"

    def restart():
        log = LogConfig(kept, moved=True)
        return make_publisher(endpoint, log=log, name="feed", recovery_endpoint=recovery)

    reports = []
    first = restart()
    subscriber = make_subscriber(endpoint, joins=first, on_gap=reports.append)
    publish(first, range(1000))
    first.flush()
    shutil.copytree(kept, copy)
    publish(first, range(1000, 2000))
    check_exact(take(subscriber, 2000))
    first.close()
    shutil.rmtree(kept)
    shutil.copytree(copy, kept)

    second = restart()
    assert second.session == first.session
    publish(second, range(5000, 5000 + count))
    assert [m.value for m in take(subscriber, count)] == list(range(5000, 5000 + count))
    (report,) = reports
    assert (report.stop, report.reason.value) == (2000, "rewound")
    stats = subscriber.stats()
    assert (stats.streams_rewound, stats.lost, stats.balanced) == (1, 0, True)
