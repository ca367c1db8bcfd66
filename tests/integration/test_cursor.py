"""A subscriber with a cursor: what is committed when, and where the next one begins."""

import threading
import time
from pathlib import Path

import pytest

from p2pmsg import MessagesLostError
from tests.integration.cursors import committed, publish
from tests.integration.inside import commits_of
from tests.integration.peers import (
    TOPIC,
    check_exact,
    check_ledger,
    check_silence,
    eventually,
    ranges,
    small_frames,
    take,
)
from tests.places import lasting_place


def test_it_resumes_behind_what_was_committed(make_publisher, resume):
    publisher = make_publisher()
    publish(publisher, 100)
    with resume(publisher, start="earliest") as subscriber:
        take(subscriber, 40)
        assert committed(subscriber) is None
        subscriber.commit()
        assert committed(subscriber) == 40
        take(subscriber, 20)  # processed, and not committed
    with resume(publisher) as subscriber:
        messages = take(subscriber, 60)
        check_exact(messages, range(40, 100))
        subscriber.commit(messages[29])
        assert committed(subscriber) == 70
    with resume(publisher) as subscriber:
        check_exact(take(subscriber, 30), range(70, 100))
        check_ledger(subscriber, delivered=30, lost=0, outstanding=0)


def test_a_commit_is_of_a_stream_or_of_all(make_publisher, resume):
    publisher = make_publisher()
    for topic in ("a", "b"):
        publish(publisher, 10, topic)
    with resume(publisher, start="earliest") as subscriber:
        messages = [subscriber.receive(10) for _ in range(20)]
        of_a = [message for message in messages if message.topic == "a"]
        subscriber.commit(of_a[6])
        assert (committed(subscriber, "a"), committed(subscriber, "b")) == (7, None)
        subscriber.commit(of_a[3])  # it does not go back
        assert committed(subscriber, "a") == 7
        subscriber.commit()
        assert (committed(subscriber, "a"), committed(subscriber, "b")) == (10, 10)


def test_a_batch_and_a_part_of_it_can_be_committed(make_publisher, resume):
    publisher = make_publisher()
    publish(publisher, 100)
    with resume(publisher, start="earliest") as subscriber:
        batch = subscriber.receive_many(50, timeout=10)
        batch = batch if len(batch) > 1 else subscriber.receive_many(50, timeout=10)
        subscriber.commit(batch[:20])
        assert committed(subscriber) == batch.sequence + 20
        subscriber.commit(batch)
        assert committed(subscriber) == batch.sequence + len(batch)
        message = subscriber.receive(10)  # of the same frame
        subscriber.commit()
        assert committed(subscriber) == message.sequence + 1


@pytest.mark.parametrize("how", ["receive", "iterate", "one at a time"])
def test_with_message_the_one_in_hand_comes_again(make_publisher, resume, how):
    publisher = make_publisher()
    with resume(publisher, start=0, commit="message", joins=publisher) as subscriber:
        if how != "one at a time":
            publish(publisher, 10)
        if how == "iterate":
            for message in subscriber:
                assert committed(subscriber) == (message.sequence or None)
                if message.sequence == 5:
                    break
        else:
            for number in range(6):
                if how == "one at a time":
                    publisher.publish(TOPIC, number)
                assert subscriber.receive(10).sequence == number
                assert committed(subscriber) == (number or None)
        subscriber.close()
        assert committed(subscriber) == 5
    if how == "one at a time":
        publish(publisher, 4)
    with resume(publisher, commit="message") as subscriber:
        assert subscriber.receive(10).sequence == 5


def test_leaving_a_with_block_commits_the_last_one_unless_it_failed(make_publisher, resume):
    publisher = make_publisher()
    publish(publisher, 10)
    with resume(publisher, start="earliest", commit="message") as subscriber:
        take(subscriber, 3)
    with (
        pytest.raises(ZeroDivisionError),
        resume(publisher, commit="message") as subscriber,
    ):
        for message in subscriber:
            assert message.sequence >= 3
            if message.sequence == 6:
                1 / 0  # noqa: B018
    with resume(publisher, commit="message") as subscriber:
        assert subscriber.receive(10).sequence == 6


def test_with_message_a_whole_batch_is_in_hand(make_publisher, resume):
    publisher = make_publisher()
    publish(publisher, 100)
    with resume(publisher, start="earliest", commit="message") as subscriber:
        take(subscriber, 10)
        batch = subscriber.receive_many(50, timeout=10)
        assert committed(subscriber) == 10
        subscriber.close()
        assert committed(subscriber) == 10
    with resume(publisher, commit="message") as subscriber:
        assert subscriber.receive(10).sequence == batch.sequence


@pytest.mark.parametrize("how", ["receive", "iterate", "receive_many", "one at a time"])
def test_by_interval_all_but_what_is_in_hand_is_committed(make_publisher, resume, how):
    publisher = make_publisher()
    with resume(publisher, start=0, commit=20, joins=publisher) as subscriber:
        if how == "one at a time":
            for number in range(30):
                publisher.publish(TOPIC, number)
                subscriber.receive(10)
            processed = 29
        else:
            publish(publisher, 100)
            take(subscriber, 10)
            if how == "receive_many":
                processed = subscriber.receive_many(20, timeout=10).sequence
            elif how == "iterate":
                message = next(iter(subscriber))
                processed = message.sequence
            else:
                processed = subscriber.receive(10).sequence
        eventually(lambda: committed(subscriber) == processed)
        with pytest.raises(TimeoutError):
            while True:
                subscriber.receive(0.05)
        head = subscriber.stats().streams[0].head
        eventually(lambda: committed(subscriber) == head)


def test_by_interval_it_commits_as_often_as_was_said(make_publisher, resume):
    """What a kill may repeat is what was returned since the last interval ended."""
    publisher = make_publisher()
    hour_ns = 3600 * 10**9
    subscriber = resume(publisher, start=0, commit=hour_ns / 1e6, joins=publisher)
    commits = commits_of(subscriber)
    now_ns = time.monotonic_ns() + hour_ns
    commits.handle_timer(now_ns)
    now_ns += hour_ns
    publish(publisher, 100)
    for turn in range(1, 10):
        for _ in range(10):
            subscriber.receive(10)
        commits.handle_timer(now_ns - 1)
        assert committed(subscriber) in (None, 0, 10 * turn - 11)
        commits.handle_timer(now_ns)
        assert committed(subscriber) == 10 * turn - 1  # but for the one in hand
        now_ns += hour_ns


def test_by_interval_the_thread_looks_twice_in_each(make_publisher, resume):
    assert commits_of(resume(make_publisher(), commit=20)).tick_s == 0.01


def test_by_interval_it_commits_while_it_waits(make_publisher, resume):
    publisher = make_publisher()
    subscriber = resume(publisher, start=0, commit=20, joins=publisher)
    publish(publisher, 10)
    thread = threading.Thread(target=lambda: list(subscriber))
    thread.start()
    eventually(lambda: subscriber.stats().delivered == 10 and committed(subscriber) == 10)
    subscriber.close()
    thread.join(10)


def test_by_interval_a_batch_is_committed_once_the_next_one_is_asked_for(make_publisher, resume):
    publisher = make_publisher()
    subscriber = resume(publisher, start=0, commit=5, joins=publisher)
    publish(publisher, 10)
    got = 0
    while got < 10:
        got += len(subscriber.receive_many(timeout=10))
    threading.Event().wait(0.1)
    assert committed(subscriber) in (None, 0)
    with pytest.raises(TimeoutError):
        subscriber.receive(0.1)
    eventually(lambda: committed(subscriber) == 10)


@pytest.mark.parametrize("commit", ["explicit", "message", 5])
def test_messages_of_several_streams_that_come_alone_are_all_committed(
    make_publisher, resume, commit
):
    publisher = make_publisher()
    with resume(publisher, start=0, commit=commit, joins=publisher) as subscriber:
        for number, topics in enumerate(("ab", "aab", "bba", "abab", "bb", "b", "b")):
            before = {topic: committed(subscriber, topic) or 0 for topic in "ab" if number}
            for topic in topics:
                publisher.publish(topic, number)
                assert subscriber.receive(10).topic == topic
            if commit == "explicit":
                subscriber.commit()
            with pytest.raises(TimeoutError):
                subscriber.receive(0.01)
            for topic in "ab":
                expected = before.get(topic, 0) + topics.count(topic)
                eventually(lambda t=topic, at=expected: (committed(subscriber, t) or 0) == at)


def test_one_thread_may_receive_and_another_commit(make_publisher, resume):
    publisher = make_publisher()
    publish(publisher, 2000)
    subscriber = resume(publisher, start="earliest")
    messages, stop = [], threading.Event()
    thread = threading.Thread(target=lambda: (messages.extend(take(subscriber, 2000)), stop.set()))
    thread.start()
    while not stop.is_set():
        subscriber.commit()
    thread.join()
    subscriber.commit()
    assert committed(subscriber) == 2000
    check_exact(messages)


def test_a_new_session_and_a_new_topic_are_taken_from_their_beginning(make_publisher, resume):
    endpoint = lasting_place()
    publisher = make_publisher(endpoint)
    with resume(publisher, joins=publisher) as subscriber:
        publish(publisher, 3)
        take(subscriber, 3)
        subscriber.commit()
    publish(publisher, 5, "new")
    with resume(publisher) as subscriber:
        messages = take(subscriber, 5)
        assert [(message.topic, message.sequence) for message in messages] == [
            ("new", number) for number in range(5)
        ]
        subscriber.commit()
    publisher.close()
    publisher = make_publisher(endpoint)
    publish(publisher, 7)
    with resume(publisher) as subscriber:
        check_exact(take(subscriber, 7))


def test_start_is_for_what_the_cursor_does_not_know(make_publisher, resume):
    publisher = make_publisher()
    publish(publisher, 5)
    with resume(publisher, start="latest", joins=publisher) as subscriber:
        publish(publisher, 5, first=5)
        assert subscriber.receive(10).sequence == 5
    with resume(publisher, start="earliest") as subscriber:
        assert subscriber.receive(10).sequence == 5  # where the first one began


def test_a_cursor_older_than_what_is_kept_reports_the_exact_loss(make_publisher, resume):
    publisher = make_publisher(replay_bytes=4096, config=small_frames())
    with resume(publisher, joins=publisher) as subscriber:
        publish(publisher, 10)
        take(subscriber, 10)
        subscriber.commit()
    publish(publisher, 20_000, first=10)
    publisher.flush()
    with resume(publisher, on_gap="raise") as subscriber:
        with pytest.raises(MessagesLostError) as raised:
            subscriber.receive(10)
        (report,) = ranges([raised.value.report])
        assert report[0] == 10
        assert report[2] == "evicted"
        first = subscriber.receive(10)
        assert first.sequence == report[1]
        rest = take(subscriber, 20_010 - report[1] - 1)
        check_exact([first, *rest], range(report[1], 20_010))
        stats = check_ledger(subscriber, lost=report[1] - 10, outstanding=0)
        assert ranges(stats.losses) == [report]
        subscriber.commit()
    with resume(publisher, on_gap="raise") as subscriber:
        check_silence(subscriber)  # a loss that was committed is not told again
        check_ledger(subscriber, published=0, lost=0)


def test_a_loss_in_hand_is_told_again(make_publisher, resume):
    publisher = make_publisher(replay_bytes=4096, config=small_frames())
    with resume(publisher, joins=publisher) as subscriber:
        publish(publisher, 10)
        take(subscriber, 10)
        subscriber.commit()
    publish(publisher, 20_000, first=10)
    publisher.flush()
    for _ in range(2):
        with resume(publisher, on_gap="raise", commit=5) as subscriber:
            with pytest.raises(MessagesLostError) as raised:
                subscriber.receive(10)
            assert raised.value.report.start == 10
            threading.Event().wait(0.1)
            subscriber.close()


def test_the_stats_tell_of_the_cursor(make_publisher, resume, cursor_path, make_subscriber):
    publisher = make_publisher()
    publish(publisher, 10)
    with resume(publisher, start="earliest") as subscriber:
        take(subscriber, 10)
        subscriber.commit()
        subscriber.commit()
        stats = subscriber.stats().cursor
        assert Path(stats.path) == cursor_path
        assert (stats.commits, stats.sessions, stats.streams) == (1, 1, 1)
        assert (stats.bytes_cut, stats.sessions_dropped, stats.streams_dropped) == (0, 0, 0)
    cursor_path.write_bytes(cursor_path.read_bytes() + b"torn")
    assert resume(publisher).stats().cursor.bytes_cut == 4
    without = make_subscriber(publisher.endpoint, start="earliest")
    take(without, 1)
    assert without.stats().cursor is None
    assert without.stats().streams[0].committed is None
