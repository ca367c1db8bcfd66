"""Logs of publishers, relays and Mold publishers that come back shorter than they were."""

import contextlib
import os
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest

import p2pmsg
from p2pmsg import LogConfig, PublisherConfig
from tests.endpoints import free_port, lasting_endpoint
from tests.integration.peers import eventually, take

SMALL = PublisherConfig(frame_bytes=2048)
COUNT = 2000


def shorten(directory):
    """Cut 2 KB off the newest segment, as a disk does that lost its last pages."""
    newest = max(Path(directory).glob("*.log"))
    size = newest.stat().st_size
    assert size > 8192
    os.truncate(newest, size - 2048)


class Feed:
    """A publisher with a log, a relay of it to be killed, and a subscriber that had everything."""

    def __init__(self, tmp_path, make_child, make_publisher, make_subscriber):
        self.make_child, self.log = make_child, tmp_path / "relay"
        self.place = lasting_endpoint()
        self.publisher = make_publisher(
            lasting_endpoint(), name="feed", log=LogConfig(tmp_path / "feed"), config=SMALL
        )
        self.relay = self.start_relay()
        self.publisher.wait_for_subscribers(1, timeout=60)
        for number in range(COUNT):
            self.publisher.publish("t", [number, b"x" * 50])
        self.publisher.flush()
        self.early = make_subscriber(self.place, start=0)
        assert self.sequences(self.early, COUNT) == list(range(COUNT))

    def start_relay(self, deadline_ms="30000"):
        source = self.publisher.endpoint
        child = self.make_child("relay", source, self.place, str(self.log), deadline_ms)
        child.line()
        return child

    def lose_the_end(self):
        # What it had within the last 0.2 s nobody would know of.
        eventually(lambda: self.noted_heads() == [(COUNT,)])
        self.relay.signal(signal.SIGKILL)
        self.relay.wait()
        shorten(self.log)

    def noted_heads(self):
        """Return which heads a relay's file has; a relay has it open."""
        for end in ("", "-wal"):
            shutil.copy(self.log / f"relay.sqlite{end}", self.log.parent / f"copy{end}")
        with contextlib.closing(sqlite3.connect(self.log.parent / "copy")) as file:
            return file.execute("SELECT next FROM head").fetchall()

    @staticmethod
    def sequences(subscriber, count):
        return [message.sequence for message in take(subscriber, count)]


@pytest.fixture
def feed(tmp_path, make_child, make_publisher, make_subscriber):
    return Feed(tmp_path, make_child, make_publisher, make_subscriber)


def test_a_relay_gets_again_what_its_log_has_lost(feed, make_subscriber):
    feed.lose_the_end()
    feed.start_relay()
    for number in range(100):
        feed.publisher.publish("t", number)
    assert feed.sequences(feed.early, 100) == list(range(COUNT, COUNT + 100))
    late = make_subscriber(feed.place, start=0)
    assert feed.sequences(late, COUNT + 100) == list(range(COUNT + 100))
    for subscriber in (feed.early, late):
        stats = subscriber.stats()
        assert (stats.lost, stats.balanced) == (0, True)


@pytest.fixture
def place():
    return f"mold://239.255.12.1:{free_port()}?interface=127.0.0.1&request=127.0.0.1:0"


def goes_on(place, log, last):
    """Whether no sequence is used again: it goes on after the last, or the log is refused."""
    try:
        with p2pmsg.moldudp64.MoldPublisher(place, session="S1", log=LogConfig(log)) as publisher:
            return publisher.publish(b"next") > last
    except p2pmsg.ConfigError as error:
        return "log" in str(error)


def publish(place, log):
    with p2pmsg.moldudp64.MoldPublisher(place, session="S1", log=LogConfig(log)) as publisher:
        return publisher.publish_many([b"x" * 50] * COUNT)[1]


def test_a_mold_session_whose_closed_log_was_cut_uses_no_sequence_again(tmp_path, place):
    last = publish(place, tmp_path)
    shorten(tmp_path)

    assert goes_on(place, tmp_path, last)


def test_a_mold_session_out_of_a_copy_uses_no_sequence_again(tmp_path, place):
    log, copy = tmp_path / "log", tmp_path / "copy"
    publish(place, log)
    shutil.copytree(log, copy)
    last = publish(place, log)
    shutil.rmtree(log)
    shutil.copytree(copy, log)

    assert goes_on(place, log, last)


@pytest.mark.parametrize("was_closed", [True, False])
def test_no_more_is_reported_lost_than_may_have_been_accepted(
    tmp_path, make_publisher, make_subscriber, was_closed
):
    log, found = tmp_path / "log", tmp_path / "found"
    publisher = make_publisher(log=LogConfig(log), config=SMALL)
    for number in range(1000):
        publisher.publish("t", [number, b"x" * 50])
    publisher.flush()
    if was_closed:
        publisher.close()
    shutil.copytree(log, found)  # as a killed process leaves it, unless it was closed
    shorten(found)

    again = make_publisher(log=LogConfig(found, moved=True))
    following = again.publish("t", "next")
    losses, got = [], []
    subscriber = make_subscriber(again.endpoint, start=0, on_gap=losses.append)
    while not got or got[-1].value != "next":
        got.append(subscriber.receive(60))
    kept = [message.sequence for message in got[:-1]]
    assert kept == list(range(len(kept)))
    (report,) = losses
    assert (report.start, report.stop) == (len(kept), following)
    assert str(report).startswith(f"lost at most {following - len(kept)} messages")
    assert following == 1000 if was_closed else 1000 <= following <= 6000


ENDPOINT = "ipc://{}/feed"


def publisher(tmp_path):
    # As where a whole machine goes back to a snapshot: it does not know its log for a copy.
    log = p2pmsg.LogConfig(tmp_path / "log", moved=True)
    return p2pmsg.Publisher(ENDPOINT.format(tmp_path), name="feed", log=log)


def restored(tmp_path, first):
    """Publish 100, copy the log, publish 100 more, and put the copy in the log's place."""
    with publisher(tmp_path) as one:
        first(one, range(100))
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with publisher(tmp_path) as one:
        first(one, range(100, 200))
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")


def take_values(subscriber, count):
    return [subscriber.receive(timeout=60).value for _ in range(count)]


@pytest.mark.parametrize("count", [50, 250], ids=["below", "passed"])
@pytest.mark.parametrize("policy", ["raise", "report"])
def test_a_live_subscriber_learns_it_and_gets_the_new_messages(tmp_path, policy, count):
    reports = []
    on_gap = "raise" if policy == "raise" else reports.append
    with p2pmsg.Subscriber(ENDPOINT.format(tmp_path), start="earliest", on_gap=on_gap) as sub:

        def send(one, values):
            one.publish_many("t", list(values))
            assert take_values(sub, len(values)) == list(values)

        restored(tmp_path, send)
        with publisher(tmp_path) as one:
            one.publish_many("t", [f"new {n}" for n in range(count)])
            if policy == "raise":
                with pytest.raises(p2pmsg.errors.MessagesLostError) as caught:
                    sub.receive(timeout=60)
                reports.append(caught.value.report)
            assert take_values(sub, count) == [f"new {n}" for n in range(count)]
            (report,) = reports
            assert isinstance(report, p2pmsg.errors.RewoundReport)
            assert (report.start, report.stop, report.reason.value) == (100, 200, "rewound")
            stats = sub.stats()
            assert (stats.streams_rewound, stats.delivered, stats.lost) == (1, 200 + count, 0)
            assert stats.balanced


def test_it_learns_it_of_one_that_was_killed_before_it_said_how_far_it_was(tmp_path, make_child):
    reports, place, log = [], ENDPOINT.format(tmp_path), tmp_path / "log"
    with p2pmsg.Subscriber(place, start="earliest", on_gap=reports.append) as subscriber:
        with publisher(tmp_path) as one:
            one.publish_many("t", list(range(100)))
            assert take_values(subscriber, 100) == list(range(100))
        shutil.copytree(log, tmp_path / "copy")
        child = make_child("publish_joined", place, str(log), "100")
        assert take_values(subscriber, 100) == list(range(100))
        child.signal(signal.SIGKILL)
        child.wait()
        shutil.rmtree(log)
        shutil.copytree(tmp_path / "copy", log)
        with publisher(tmp_path) as one:
            one.publish_many("t", [f"new {n}" for n in range(250)])
            assert take_values(subscriber, 250) == [f"new {n}" for n in range(250)]
    (report,) = reports
    assert (report.start, report.stop, report.reason.value) == (100, 200, "rewound")


def test_one_that_starts_further_on_learns_of_no_publisher_that_went_back(tmp_path):
    with p2pmsg.Subscriber(ENDPOINT.format(tmp_path), start=1000) as subscriber:
        for _ in range(2):
            with publisher(tmp_path) as one:
                one.wait_for_subscribers(1, timeout=60)
                one.publish_many("t", list(range(10)))
        assert subscriber.stats().streams_rewound == 0


def test_a_relay_keeps_what_it_has_and_says_so(tmp_path, caplog):
    with p2pmsg.Relay(ENDPOINT.format(tmp_path), f"ipc://{tmp_path}/relay") as relay:

        def send(one, values):
            before = relay.stats().received
            one.publish_many("t", list(values))
            eventually(lambda: relay.stats().received == before + len(values))

        restored(tmp_path, send)
        with publisher(tmp_path) as one:
            one.publish_many("t", [f"new {n}" for n in range(50)])
            eventually(lambda: "Those that this relay has keep them here" in caplog.text)
            with p2pmsg.Subscriber(f"ipc://{tmp_path}/relay", start="earliest") as sub:
                assert take_values(sub, 200) == list(range(200))


@pytest.mark.parametrize("kind", ["publisher", "relay"])
def test_a_copy_is_said_to_be_a_relays_only_where_it_is(tmp_path, caplog, kind):
    """A publisher's was, too: its former session is another one than the copy begins."""
    place = ENDPOINT.format(tmp_path)

    def opened(name):
        log = p2pmsg.LogConfig(tmp_path / name)
        if kind == "publisher":
            return p2pmsg.Publisher(place, log=log)
        return p2pmsg.Relay([f"{place}-source"], place, log=log)

    with p2pmsg.Publisher(f"{place}-source") as source, opened("log") as one:
        if kind == "publisher":
            source = one
        source.publish("t", 1)
        with p2pmsg.Subscriber(place, start="earliest") as subscriber:
            assert take_values(subscriber, 1) == [1]
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with p2pmsg.Publisher(f"{place}-source"), opened("copy"):
        pass
    assert "is a copy of the directory that was written" in caplog.text
    assert ("is a relay's: what it received" in caplog.text) == (kind == "relay")
