"""A MoldUDP64 publisher with a log: requests beyond its buffer, and a session that goes on."""

import contextlib
import itertools
import re
import shutil
import signal
import sys

import pytest

import p2pmsg
from p2pmsg import LogConfig
from tests.integration.peers import check_ledger, start_child, take
from tests.integration.test_udp_multicast import free_port

pytest.importorskip("recovery.log")

_group = itertools.count(1)
LITTLE = 4096


@pytest.fixture
def place():
    return f"mold://239.255.10.{next(_group)}:{free_port()}?interface=127.0.0.1"


@pytest.fixture
def make_feed(opened, place, tmp_path):
    def make(session="S1", **options):
        options.setdefault("log", LogConfig(tmp_path / "log"))
        feed = p2pmsg.MoldPublisher(f"{place}&request=127.0.0.1:0", session=session, **options)
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


def publish_until_killed(place, directory):
    with p2pmsg.MoldPublisher(place, session="S1", log=LogConfig(directory)) as feed:
        for start in itertools.count(1, 10):
            feed.publish_many(values(start, start + 10))
            print(start + 9, flush=True)


def test_a_killed_publisher_goes_on_with_all_that_it_had_sent(
    opened, make_feed, make_subscriber, place, tmp_path
):
    child = start_child(
        "publish_until_killed", f"{place}&request=127.0.0.1:0", tmp_path / "log",
        module="test_udp_mold_log",
    )  # fmt: skip
    opened.callback(child.finish)
    while (sent := int(child.line())) < 5000:
        pass
    child.signal(signal.SIGKILL)
    child.wait()
    second = make_feed(replay_bytes=LITTLE)
    following = second.publish(b"the last")
    assert following > sent
    late = make_subscriber(reader_of(place, second), start="earliest")
    messages = take(late, following)
    check(messages[:-1], 1, following)
    assert messages[-1].value == b"the last"


def test_the_log_is_a_log_like_any_other(make_feed, tmp_path):
    from recovery.log import LogReader

    feed = make_feed()
    feed.publish_many(values(1, 101))
    feed.close(0.0)
    with contextlib.closing(LogReader(tmp_path / "log")) as log:
        (stream,) = log.streams()
        frames = log.follow(stream.session, stream.topic, 1)
        found = [p2pmsg.decode_frame(kept.frame) for kept in frames]
    assert stream.topic == "mold"
    assert [value for batch in found for value in batch.values] == values(1, 101)


def test_a_log_of_another_session_is_refused(make_feed):
    make_feed("MON").close(0.0)
    with pytest.raises(p2pmsg.ConfigError, match="log must be one of the session 'TUE'"):
        make_feed("TUE")


def test_a_log_that_fails_says_what_was_accepted(make_feed, tmp_path):
    feed = make_feed(log=LogConfig(tmp_path / "log", segment_bytes=64 * 1024))
    feed.publish(b"first")
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(p2pmsg.LogFailedError) as failure:
        feed.publish_many([bytes(1000)] * 5000)
    accepted = int(re.match(r"(\d+) of 5000 messages", failure.value.__notes__[0])[1])
    assert 0 < accepted < 5000
    assert feed.stats().published == 1 + accepted
    with pytest.raises(p2pmsg.LogFailedError):
        feed.close(0.0)


if __name__ == "__main__":
    publish_until_killed(*sys.argv[2:])
