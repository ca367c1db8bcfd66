"""A publisher with a log continues after it was killed, and serves what the buffer has evicted."""

import errno
import json
import shutil
import signal

import pytest

import p2pmsg
from p2pmsg import LogConfig, PublisherConfig
from p2pmsg.errors import LogFailedError
from recovery import LossReason
from recovery.log import LogReader
from tests.endpoints import lasting_endpoint
from tests.integration.peers import LOOPBACK, eventually

SMALL = PublisherConfig(frame_bytes=4096)


def take(subscriber, count, topic="t"):
    """Receive `count` messages of a topic; their values."""
    values = []
    while len(values) < count:
        message = subscriber.receive(60)
        assert message.topic == topic
        values.append(message.value)
    return values


@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
def test_a_publisher_goes_on_in_its_session(tmp_path, make_publisher, make_subscriber, fsync):
    log = LogConfig(tmp_path / "log", fsync=fsync)
    first = make_publisher(endpoint := lasting_endpoint(), log=log)
    session = first.session
    subscriber = make_subscriber(endpoint, joins=first)
    for number in range(100):
        assert first.publish("t", number) == number
    assert take(subscriber, 100) == list(range(100))
    first.close()

    second = make_publisher(endpoint, log=log)
    assert second.session == session
    assert second.publish("t", 100) == 100
    assert second.publish_many("t", list(range(101, 1000))) == (101, 999)
    assert take(subscriber, 900) == list(range(100, 1000))
    second.publish("u", "new")
    assert take(subscriber, 1, "u") == ["new"]
    stats = subscriber.stats()
    assert (stats.lost, stats.duplicates, stats.outstanding) == (0, 0, 0)
    assert stats.delivered == 1001


def test_what_the_buffer_has_forgotten_comes_from_the_log(
    tmp_path, make_publisher, make_subscriber
):
    publisher = make_publisher(log=LogConfig(tmp_path), replay_bytes=32_768, config=SMALL)
    for number in range(20_000):
        publisher.publish("t", number)
    publisher.flush()
    assert publisher.stats().messages_evicted > 5_000

    subscriber = make_subscriber(publisher.endpoint, start="earliest")
    assert take(subscriber, 20_000) == list(range(20_000))
    # The publisher counts an answer once it is sent, and the subscriber may be as fast.
    eventually(lambda: (source := publisher.stats().repaired)["log"] + source["buffer"] >= 20_000)
    assert publisher.stats().repaired["log"] > 5_000
    assert subscriber.stats().lost == 0


def test_a_log_that_cannot_be_opened_leaves_nothing_bound(tmp_path, make_publisher):
    (tmp_path / "file").write_text("no directory")
    endpoint = make_publisher().endpoint
    port_taken = p2pmsg.BindError
    with pytest.raises(port_taken):
        p2pmsg.Publisher(endpoint, log=LogConfig(tmp_path / "log"))
    make_publisher(log=LogConfig(tmp_path / "log"))  # the lock was given back
    with pytest.raises((OSError, p2pmsg.P2PError)):
        p2pmsg.Publisher(LOOPBACK, log=LogConfig(tmp_path / "file"))


@pytest.mark.parametrize("policy", ["raise", "continue"])
def test_a_full_disk_is_reported_and_what_was_written_stays(
    tmp_path, make_child, make_publisher, make_subscriber, policy
):
    endpoint = lasting_endpoint()
    child = make_child("fill_log", endpoint, tmp_path, policy)
    child.line()
    subscriber = make_subscriber(endpoint, start="earliest")
    child.order("go")
    said = json.loads(child.line())
    if policy == "raise":
        assert said["errno"] in (errno.EFBIG, errno.ENOSPC)
        assert "log" in said["error"]
    else:
        assert said["error"] is None
        assert said["failed"]
        assert said["accepted"] == 3000
    assert take(subscriber, said["flushed"]) == list(range(said["flushed"]))
    child.order("end")
    assert child.wait() == 0

    after = make_publisher(log=LogConfig(tmp_path), config=SMALL)
    if policy == "raise":
        assert after.publish("t", "next") == said["accepted"]
        late = make_subscriber(after.endpoint, start="earliest")
        assert take(late, said["accepted"] + 1) == [*range(said["accepted"]), "next"]
    else:
        assert after.session != said["session"]  # its later sequences are in no log


def test_a_directory_that_vanishes_is_reported(tmp_path, make_publisher):
    log = LogConfig(tmp_path / "log", segment_bytes=64 * 1024)
    publisher = make_publisher(log=log)
    publisher.publish("t", b"first")
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(LogFailedError, match="log"):
        for _ in range(1000):
            publisher.publish("t", bytes(4096))
            publisher.flush()
    with pytest.raises(LogFailedError):
        publisher.close(timeout=0.0)


def ranges_in(directory):
    """The sequences of the frames that a log serves."""
    reader = LogReader(directory)
    found = [(record.start, record.stop) for record in reader.records()]
    reader.close()
    return found


def test_a_hole_that_a_crash_left_is_lost_for_that_reason_and_no_other(
    tmp_path, make_publisher, make_subscriber, make_child
):
    endpoint = lasting_endpoint()
    child = make_child("publish_logged", endpoint, tmp_path, "never")
    child.line()
    while int(child.line()) < 2_000:
        pass
    child.signal(signal.SIGKILL)
    child.wait()
    (path,) = tmp_path.glob("*.log")
    held = ranges_in(tmp_path)
    data = bytearray(path.read_bytes())
    # As where the system died and one page of many had not been written.
    data[len(data) // 2 : len(data) // 2 + 4096] = bytes(4096)
    path.write_bytes(data)
    left = ranges_in(tmp_path)
    gone = [each for each in held if each not in left]
    assert len(gone) > 1

    publisher = make_publisher(endpoint, log=LogConfig(tmp_path))
    begun = publisher.publish("t", "after")
    reports = []
    subscriber = make_subscriber(endpoint, start="earliest", on_gap=reports.append)
    received = []
    while received[-1:] != [begun]:
        received.append(subscriber.receive(60).sequence)
    served = [s for start, stop in left for s in range(start, stop)]
    rest = received[len(served) :]  # what only the tail had when the kill came, and `begun`
    assert received == served + list(range(rest[0], begun + 1))
    losses = [(report.start, report.stop, report.reason) for report in reports]
    ends = [(gone[0][0], gone[-1][1]), (held[-1][1], rest[0])]  # the latter may be empty
    assert losses == [(*each, LossReason.CRASH) for each in ends if each[0] < each[1]]
    stats = subscriber.stats()
    assert stats.delivered + stats.lost == begun + 1
