"""A MoldUDP64 publisher with a log: requests, restarts, kills, and a disk that fails."""

import itertools
import os
import resource
import signal
import struct
from contextlib import suppress

import pytest

import p2pmsg
from p2pmsg import LogConfig
from tests.endpoints import free_port
from tests.integration.peers import check_ledger, start_child, take

_group = itertools.count(1)
LITTLE = 4096


@pytest.fixture
def place():
    return f"mold://239.255.10.{next(_group)}:{free_port()}?interface=127.0.0.1"


@pytest.fixture
def make_feed(opened, place, tmp_path):
    def make(session="S1", **options):
        options.setdefault("log", LogConfig(tmp_path / "log"))
        feed = p2pmsg.moldudp64.MoldPublisher(
            f"{place}&request=127.0.0.1:0", session=session, **options
        )
        opened.callback(feed.close, 0.0)
        return feed

    return make


def reader_of(place, feed):
    return f"{place}&request=127.0.0.1:{feed.request_address[1]}"


def values(start, stop):
    return [b"%06d" % number for number in range(start, stop)]


def check(messages, start, stop):
    assert [message.sequence for message in messages] == list(range(start, stop))
    assert [message.value for message in messages] == values(start, stop)


@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
def test_what_the_buffer_has_forgotten_is_answered_from_the_log(
    make_feed, make_subscriber, place, tmp_path, fsync
):
    feed = make_feed(replay_bytes=LITTLE, log=LogConfig(tmp_path / "log", fsync=fsync))
    for start in range(1, 5001, 100):
        feed.publish_many(values(start, start + 100))
    assert feed.stats().replay_bytes <= LITTLE
    late = make_subscriber(reader_of(place, feed), start="earliest")
    check(take(late, 5000), 1, 5001)
    check_ledger(late, lost=0)
    stats = feed.stats()
    assert (stats.unanswered, stats.log.failed) == (0, None)
    assert stats.log.bytes > 30_000


def test_a_session_goes_on_where_it_was(make_feed, make_subscriber, place):
    first = make_feed()
    first.publish_many(values(1, 1001))
    first.close(0.0)
    second = make_feed()
    assert second.publish_many(values(1001, 2001)) == (1001, 2000)
    late = make_subscriber(reader_of(place, second), start="earliest")
    check(take(late, 2000), 1, 2001)
    check_ledger(late, lost=0)


def test_a_log_of_another_session_is_refused(make_feed):
    make_feed("MON").close(0.0)
    with pytest.raises(p2pmsg.ConfigError, match="log must be one of the session 'TUE'"):
        make_feed("TUE")


_RETURNED = struct.Struct("!Q")
ROUNDS = 2


@pytest.fixture
def asked_place(place):
    return f"{place}&request=127.0.0.1:0"


def messages_of(directory):
    from recovery.log import LogReader

    reader = LogReader(directory)
    try:
        kept = [(record.start, record.stop) for record in reader.records()]
    finally:
        reader.close()
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(kept))
    return kept[-1][1] if kept else 1


@pytest.mark.parametrize(
    "fsync",
    ["always", *(pytest.param(how, marks=pytest.mark.long) for how in ("interval", "never"))],
)
def test_a_killed_publisher_loses_nothing_that_publish_returned_for(
    opened, asked_place, tmp_path, fsync
):
    following, count = 1, 0
    for _ in range(ROUNDS):
        child = start_child("mold_returned", asked_place, tmp_path, fsync)
        opened.callback(child.finish)
        said = b""
        while len(said) < 8 * 100:
            said += os.read(child.process.stdout.fileno(), 65_536)
        child.signal(signal.SIGKILL)
        while data := os.read(child.process.stdout.fileno(), 65_536):
            said += data
        child.wait()
        returned = [last for (last,) in _RETURNED.iter_unpack(said[: len(said) // 8 * 8])]
        count += len(returned)
        assert returned[0] >= following, "a sequence was given twice"
        following = messages_of(tmp_path)
        assert following > returned[-1], f"{returned[-1] - following + 1} messages are gone"
    assert count >= 100 * ROUNDS


def test_a_message_that_is_not_on_the_disk_is_not_accepted(asked_place, tmp_path, monkeypatch):
    """With fsync="always"; the sync that failed was swallowed, and only the next call raised."""
    log = LogConfig(tmp_path, fsync="always")
    feed = p2pmsg.moldudp64.MoldPublisher(asked_place, session="S1", log=log)
    assert feed.publish(b"first") == 1
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(p2pmsg.errors.LogFailedError) as failure:
        feed.publish(b"second")
    assert failure.value.__notes__ == ["0 of 1 messages were accepted"]
    with pytest.raises(p2pmsg.errors.LogFailedError):
        feed.publish(b"third")
    assert feed.stats().published == 1
    monkeypatch.undo()
    with pytest.raises(p2pmsg.errors.LogFailedError, match="forced to the disk"):
        feed.close(0.0)


def refuse(fd):
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize("disk_fails", [False, True])
def test_what_had_no_space_is_not_counted_nor_what_then_does_not_get_to_the_disk(
    asked_place, tmp_path, monkeypatch, disk_fails
):
    """With fsync="always": what was appended before the disk was full still has to get there."""
    log = LogConfig(tmp_path, fsync="always")
    feed = p2pmsg.moldudp64.MoldPublisher(asked_place, session="S1", log=log)
    feed.publish(b"first")
    size = sum(file.stat().st_size for file in tmp_path.glob("*.log"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, limits[1]))
    try:
        with monkeypatch.context() as patch, pytest.raises(p2pmsg.errors.LogFailedError) as failure:
            for name in ("fsync", "fdatasync") if disk_fails else ():
                patch.setattr(os, name, refuse)
            feed.publish_many([bytes(1000)] * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    count = 0 if disk_fails else feed.stats().published - 1
    assert failure.value.__notes__ == [f"{count} of 20 messages were accepted"]
    assert feed.stats().published == 1 + count
    assert (0 < count < 20) is not disk_fails
    with suppress(p2pmsg.errors.LogFailedError):
        feed.close(0.0)
    assert messages_of(tmp_path) >= 2 + count
