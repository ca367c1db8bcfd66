"""MoldUDP64 feeds: request servers that are away or dead, late lines, and the end of a session."""

import contextlib
import socket
import threading
import time

import pytest

import p2pmsg
from p2pmsg.mold import codec
from p2pmsg.testing.kernel_loss import lose_datagrams
from tests.integration.mold import (
    Group,
    itch_messages,
    make_feed,
    place,
    playing,
    publish_in_packets,
    reader_of,
)
from tests.integration.peers import check_ledger, eventually, ranges, take

pytestmark = pytest.mark.long

__all__ = ["make_feed", "place"]


def say_end(feed):
    """Say that the session is over, and serve it for a second more; return the thread."""
    thread = threading.Thread(target=feed.close, args=(1.0,))
    thread.start()
    return thread


def test_a_loop_over_a_feed_ends_with_its_session(make_feed, make_subscriber, place):
    first = make_feed("MON")
    subscriber = make_subscriber(reader_of(place, first), start="earliest", on_end="stop")
    first.publish_many([b"1", b"2", b"3"])
    ending = say_end(first)
    assert [message.value for message in subscriber] == [b"1", b"2", b"3"]
    ending.join()
    second = make_feed("TUE")
    second.publish_many([b"4", b"5"])
    say_end(second)
    assert [message.value for message in subscriber] == [b"4", b"5"]
    check_ledger(subscriber, lost=0)


@pytest.mark.parametrize("call", ["receive", "receive_many"])
def test_receiving_says_that_a_session_is_over(make_feed, make_subscriber, place, call):
    feed = make_feed("MON")
    subscriber = make_subscriber(reader_of(place, feed), start="earliest", on_end="stop")
    feed.publish_many([b"1", b"2"])
    say_end(feed)
    take(subscriber, 2)
    with pytest.raises(p2pmsg.errors.SessionEndedError) as caught:
        getattr(subscriber, call)(timeout=60)
    end = caught.value.end
    assert (end.publisher, end.topic, end.stop, end.announced) == ("MON", "mold", 3, True)
    assert "'MON'" in str(caught.value)
    with pytest.raises(TimeoutError):  # once; then it waits for the next session
        getattr(subscriber, call)(timeout=0.3)


def test_a_callable_is_called_between_the_sessions_and_after_the_losses(
    make_subscriber, place, opened
):
    said = []
    subscriber = make_subscriber(place, start="earliest", on_gap=said.append, on_end=said.append)
    group = Group(opened, place)
    monday, tuesday = b"MON".ljust(10), b"TUE".ljust(10)
    group.send(1, b"1", name=monday)
    group.end(4, name=monday)
    said.append(subscriber.receive(60).value)

    def losses_are_logged():  # before another session takes its place
        with pytest.raises(TimeoutError):
            subscriber.receive(0)
        return len(said) > 1

    eventually(losses_are_logged)
    group.send(1, b"2", name=tuesday)
    said.append(subscriber.receive(60).value)
    first, loss, end, second = said
    assert (first, ranges([loss]), second) == (b"1", [(2, 4, "timeout")], b"2")
    assert (end.publisher, end.stop, end.announced) == ("MON", 4, True)


def test_what_a_session_lacks_is_asked_for_when_the_next_one_has_begun(
    make_subscriber, place, opened, silent_server
):
    server = silent_server()
    where = f"{place}&request=127.0.0.1:{server.getsockname()[1]}"
    ends = []
    subscriber = make_subscriber(where, start="earliest", on_end=ends.append)
    group = Group(opened, place)
    monday, tuesday = b"MON".ljust(10), b"TUE".ljust(10)
    group.send(3, b"3", name=monday)
    group.end(4, name=monday)
    group.send(1, b"4", name=tuesday)
    assert subscriber.receive(60).value == b"4"
    with contextlib.suppress(TimeoutError):
        while server.recv(100):
            pass  # what was asked before it began
    got = []

    def answered():
        with contextlib.suppress(TimeoutError):
            _, address = server.recvfrom(100)
            server.sendto(codec.packet(monday, 1, [b"1", b"2"]), address)
        with contextlib.suppress(TimeoutError):
            got.append(subscriber.receive(0.01).value)
        return len(got) == 3

    eventually(answered)
    assert got == [b"1", b"2", b"3"]
    eventually(lambda: not subscriber.stats().outstanding)
    with pytest.raises(TimeoutError):
        subscriber.receive(0)
    assert [(end.publisher, end.stop, end.announced) for end in ends] == [("MON", 4, True)]
    check_ledger(subscriber, lost=0)


def test_on_end_is_checked(place):
    with pytest.raises(p2pmsg.ConfigError, match="on_end"):
        p2pmsg.Subscriber(place, on_end="never")


def test_a_feed_that_begins_again_under_its_name_is_delivered_again(
    make_child, make_subscriber, place, caplog
):
    """As when an exchange's simulator is started a second time in a day."""
    messages = itch_messages()
    said = []
    first = make_child("mold", f"{place}&request=127.0.0.1:0", "SIM")
    server = first.line()
    subscriber = make_subscriber(f"{place}&request={server}", start="earliest", on_end=said.append)
    first.order("publish")
    assert [message.value for message in take(subscriber, len(messages))] == messages
    first.finish()
    time.sleep(0.6)  # as long as a process takes to start
    second = p2pmsg.moldudp64.MoldPublisher(f"{place}&request={server}", session="SIM")
    try:
        publish_in_packets(second, messages)
        again = take(subscriber, len(messages))
    finally:
        second.close(0.0)
    assert [message.value for message in again] == messages
    assert [message.sequence for message in again] == list(range(1, len(messages) + 1))
    assert len({message.session for message in again}) == 1
    assert {message.publisher for message in again} == {"SIM"}
    (end,) = said
    assert (end.stop, end.announced) == (len(messages) + 1, False)
    eventually(lambda: "has begun again" in caplog.text)  # said after what it delivers
    stats = check_ledger(subscriber, lost=0, outstanding=0)
    assert len({ledger.session for ledger in stats.streams}) == 2
    eventually(lambda: subscriber.stats().publishers == ["SIM"])


@pytest.fixture
def silent_server(opened):
    """Make a request server that never answers: a bound socket."""

    def make():
        made = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind(("127.0.0.1", 0))
        made.settimeout(0.05)
        return made

    return make


def test_a_request_server_that_is_not_found_is_no_end_of_the_feed(
    make_feed, make_subscriber, place, caplog
):
    messages = itch_messages()
    feed = make_feed()
    where = reader_of(place + "&request=no-such-host.invalid:17001", feed)
    subscriber = make_subscriber(where, start="earliest")
    lose_datagrams(subscriber, 0.05)
    with playing(feed, messages):
        got = take(subscriber, len(messages))
    assert [message.value for message in got] == messages
    stats = check_ledger(subscriber, lost=0)
    assert sum(stats.repaired.values()) > 0
    warnings = eventually(
        lambda: [r for r in caplog.records if "no-such-host.invalid" in r.getMessage()]
    )
    assert len(warnings) == 1


def test_of_two_servers_one_dead_the_other_repairs_all(
    make_feed, make_subscriber, place, silent_server, caplog
):
    feed = make_feed()
    dead = silent_server()
    where = reader_of(f"{place}&request=127.0.0.1:{dead.getsockname()[1]}", feed)
    subscriber = make_subscriber(where, start="earliest")
    lose_datagrams(subscriber, 0.2)
    values = [b"%05d" % number for number in range(3000)]

    def play():
        for value in values:
            feed.publish(value)
            time.sleep(0.0002)

    playing = threading.Thread(target=play)
    playing.start()
    assert [message.value for message in take(subscriber, len(values))] == values
    playing.join()
    eventually(lambda: "does not answer" in caplog.text)


def test_without_a_request_server_a_loss_is_reported_soon(make_subscriber, place, opened):
    """And not after `repair_timeout`, which is a minute here."""
    subscriber = make_subscriber(place, start="earliest", repair_timeout=60)
    group = Group(opened, place)
    for start in range(1, 1000, 10):
        group.send(start, *[b"%d" % number for number in range(start, start + 9)])
    group.heartbeat(1001)
    got = take(subscriber, 900)
    assert [message.sequence for message in got] == [n for n in range(1, 1001) if n % 10]
    eventually(lambda: not subscriber.stats().outstanding)
    check_ledger(subscriber, lost=100)


def test_a_feed_closes_while_a_name_is_looked_up(place):
    subscriber = p2pmsg.Subscriber(place + "&request=no-such-host.invalid:17001")
    subscriber.close()
