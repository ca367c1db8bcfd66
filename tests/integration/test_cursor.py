"""A subscriber with a cursor: what is committed when, where the next one begins, and errors."""

import json
import shutil
import signal
import sqlite3
from contextlib import closing

import pytest

import p2pmsg
from p2pmsg import ConfigError, CursorConfig, MessagesLostError
from p2pmsg.errors import CursorError
from tests.endpoints import lasting_endpoint
from tests.integration.cursor_children import committing
from tests.integration.cursors import committed, publish
from tests.integration.peers import (
    LOOPBACK,
    TOPIC,
    check_exact,
    check_ledger,
    check_silence,
    eventually,
    ranges,
    small_frames,
    take,
)


def test_it_resumes_after_what_was_committed(make_publisher, resume):
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
        messages = [subscriber.receive(60) for _ in range(20)]
        of_a = [message for message in messages if message.topic == "a"]
        subscriber.commit(of_a[6])
        assert (committed(subscriber, "a"), committed(subscriber, "b")) == (7, None)
        subscriber.commit(of_a[3])  # it does not go back
        assert committed(subscriber, "a") == 7
        subscriber.commit()
        assert (committed(subscriber, "a"), committed(subscriber, "b")) == (10, 10)


def test_a_batch_and_a_part_of_it_can_be_committed(make_publisher, resume):
    # All but the first one wait for one another, so that they come in one frame.
    publisher = make_publisher(config=p2pmsg.PublisherConfig(linger=60.0))
    publisher.publish(TOPIC, 0)
    publish(publisher, 99, first=1)
    publisher.flush()
    with resume(publisher, start="earliest") as subscriber:
        take(subscriber, 1)
        batch = subscriber.receive_many(50, timeout=60)
        assert len(batch) == 50
        subscriber.commit(batch[:20])
        assert committed(subscriber) == batch.sequence + 20
        subscriber.commit(batch)
        assert committed(subscriber) == batch.sequence + len(batch)
        message = subscriber.receive(60)  # of the same frame
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
                assert subscriber.receive(60).sequence == number
                assert committed(subscriber) == (number or None)
        subscriber.close()
        assert committed(subscriber) == 5
    if how == "one at a time":
        publish(publisher, 4)
    with resume(publisher, commit="message") as subscriber:
        assert subscriber.receive(60).sequence == 5


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
        assert subscriber.receive(60).sequence == 6


@pytest.mark.parametrize("how", ["receive", "iterate", "receive_many", "one at a time"])
def test_by_interval_all_but_what_is_in_hand_is_committed(make_publisher, resume, how):
    publisher = make_publisher()
    with resume(publisher, start=0, commit_interval=0.02, joins=publisher) as subscriber:
        if how == "one at a time":
            for number in range(30):
                publisher.publish(TOPIC, number)
                subscriber.receive(60)
            processed = 29
        else:
            publish(publisher, 100)
            take(subscriber, 10)
            if how == "receive_many":
                processed = subscriber.receive_many(20, timeout=60).sequence
            elif how == "iterate":
                message = next(iter(subscriber))
                processed = message.sequence
            else:
                processed = subscriber.receive(60).sequence
        eventually(lambda: committed(subscriber) == processed)
        with pytest.raises(TimeoutError):
            while True:
                subscriber.receive(0.05)
        head = subscriber.stats().streams[0].head
        eventually(lambda: committed(subscriber) == head)


def test_a_new_session_and_a_new_topic_are_taken_from_their_beginning(make_publisher, resume):
    endpoint = lasting_endpoint()
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
            subscriber.receive(60)
        (report,) = ranges([raised.value.report])
        assert report[0] == 10
        assert report[2] == "evicted"
        first = subscriber.receive(60)
        assert first.sequence == report[1]
        rest = take(subscriber, 20_010 - report[1] - 1)
        check_exact([first, *rest], range(report[1], 20_010))
        stats = check_ledger(subscriber, lost=report[1] - 10, outstanding=0)
        assert ranges(stats.losses) == [report]
        subscriber.commit()
    with resume(publisher, on_gap="raise") as subscriber:
        check_silence(subscriber)  # a loss that was committed is not said again
        check_ledger(subscriber, published=0, lost=0)


def test_a_cursor_has_one_subscriber(make_publisher, resume, make_child, cursor_path):
    publisher = make_publisher()
    with resume(publisher), pytest.raises(CursorError, match=r"bars\.cursor.*another"):
        resume(publisher)
    child = make_child("hold_cursor", publisher.endpoint, cursor_path, module="cursor_children")
    assert child.line() == "has it"
    with pytest.raises(CursorError):
        resume(publisher)
    child.signal(signal.SIGKILL)
    child.wait()
    resume(publisher)


def test_a_forked_child_neither_commits_nor_keeps_the_lock(make_publisher, make_child, cursor_path):
    publisher = make_publisher()
    publish(publisher, 3)
    child = make_child("fork", publisher.endpoint, cursor_path, module="cursor_children")
    assert child.line() == "1"
    assert child.line() == "0"
    assert child.wait() == 0


def another_database():
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE a (b)")
        return database.serialize()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"symbol,price\n" * 100, "it is damaged, or no database"),
        (b"SQLite format 3\0" + bytes(4096), "it is damaged, or no database"),
        (another_database(), "it is a database of another kind"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(make_publisher, resume, cursor_path, content, says):
    publisher = make_publisher()
    cursor_path.write_bytes(content)
    with pytest.raises(CursorError, match=says) as raised:
        resume(publisher)
    assert raised.value.path == str(cursor_path)
    assert str(cursor_path) in str(raised.value)
    assert cursor_path.read_bytes() == content


def test_a_damaged_name_that_is_no_text_is_refused_by_name(make_publisher, resume, cursor_path):
    publisher = make_publisher()
    resume(publisher).close()
    content = cursor_path.read_bytes().replace(b"CREATE TABLE", b"CREATE T\xaaBLE")
    cursor_path.write_bytes(content)
    with pytest.raises(CursorError, match="it is damaged") as raised:
        resume(publisher)
    assert raised.value.path == str(cursor_path)
    assert cursor_path.read_bytes() == content


def test_a_place_where_no_file_can_be_is_refused_by_name(make_publisher, make_subscriber, tmp_path):
    publisher = make_publisher()
    (tmp_path / "file").write_text("no folder")
    for place in (tmp_path / "file" / "a.cursor", tmp_path):
        with pytest.raises(CursorError, match=str(place)):
            make_subscriber(publisher.endpoint, cursor=place)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"commit": "message"}, "commit must be left out without a cursor"),
        ({"commit": "sometimes", "cursor": "a"}, "commit must be .* not 'sometimes'"),
        (
            {"commit_interval": 0, "cursor": "a"},
            "commit_interval must be a number of at least 0.001",
        ),
        ({"commit": True, "cursor": "a"}, "commit must be .* not True"),
        ({"commit_interval": float("nan"), "cursor": "a"}, "commit_interval must be"),
        ({"cursor": 7}, "cursor must be a str or a Path or a CursorConfig or None, not 7"),
        ({"cursor": ""}, "cursor must be"),
        ({"cursor": "a", "on_gap": "skip"}, "start must be .* without a cursor"),
    ],
)
def test_arguments_are_checked_before_a_file_is_made(
    make_publisher, tmp_path, monkeypatch, options, says
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=says):
        p2pmsg.Subscriber(make_publisher().endpoint, **options)
    with pytest.raises(p2pmsg.ConfigError):
        p2pmsg.Subscriber("nonsense", cursor="a")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_committed_is_refused(make_publisher, make_subscriber, resume):
    publisher = make_publisher()
    publish(publisher, 100)
    without = make_subscriber(publisher.endpoint, start="earliest")
    messages = take(without, 100)
    with pytest.raises(ConfigError, match="cursor must be given"):
        without.commit()
    subscriber = resume(publisher, start="earliest")
    take(subscriber, 10)
    with pytest.raises(ConfigError, match="message must be one that this subscriber has returned"):
        subscriber.commit(messages[10])
    with pytest.raises(ConfigError, match="message must be a Message"):
        subscriber.commit(7)
    subscriber.commit(messages[9])
    assert committed(subscriber) == 10
    other = make_publisher()
    publish(other, 1)
    (stranger,) = take(make_subscriber(other.endpoint, start="earliest"), 1)
    with pytest.raises(ConfigError, match="message must be one"):
        subscriber.commit(stranger)
    subscriber.close()
    with pytest.raises(p2pmsg.ClosedError):
        subscriber.commit()


@pytest.mark.parametrize("commit", ["explicit", "message", 0.005])
def test_a_folder_that_vanishes_is_reported_and_nothing_is_lost(
    make_publisher, make_subscriber, tmp_path, commit
):
    folder = tmp_path / "var"
    folder.mkdir()
    cursor_path = folder / "a.cursor"
    publisher = make_publisher()
    publish(publisher, 100)
    config = CursorConfig(cursor_path, fsync="always")
    how = {"start": "earliest", "cursor": config, **committing(commit)}
    subscriber = make_subscriber(publisher.endpoint, **how)
    messages = take(subscriber, 10)
    shutil.rmtree(folder)

    def said():
        publisher.publish(TOPIC, publisher.stats().published)
        try:
            messages.append(subscriber.receive(60))
            if commit == "explicit":
                subscriber.commit()
        except CursorError as error:
            return str(error)

    assert str(cursor_path) in eventually(said)
    folder.mkdir()

    eventually(lambda: not said() and cursor_path.exists())
    count = publisher.stats().published
    messages += take(subscriber, count - len(messages))
    check_exact(messages, range(count))
    if commit != "explicit":
        with subscriber:
            pass
    else:
        subscriber.commit()
        subscriber.close()
    again = make_subscriber(publisher.endpoint, cursor=cursor_path)
    eventually(lambda: again.stats().streams)
    check_silence(again)
    assert again.stats().streams[0].start == count


def test_a_session_that_cannot_be_noted_hands_nothing_on(make_publisher, make_subscriber, tmp_path):
    folder = tmp_path / "var"
    folder.mkdir()
    subscriber = make_subscriber(LOOPBACK.replace(":0", ":1"), cursor=folder / "a.cursor")
    subscriber.close()
    publisher = make_publisher()
    publish(publisher, 3)
    subscriber = make_subscriber(publisher.endpoint, start="earliest", cursor=folder / "a.cursor")
    shutil.rmtree(folder)
    with pytest.raises(CursorError):
        for _ in range(3):
            subscriber.receive(60)
            break
        else:
            raise AssertionError("a message came")
    folder.mkdir()
    check_exact(take(subscriber, 3))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("commit", "count"), [("explicit", 16_000), ("message", 32_000), (0.003, 400_000)]
)
def test_ctrl_c_anywhere_costs_no_message_and_no_commit(
    make_publisher, make_child, cursor_path, make_subscriber, commit, count
):
    publisher = make_publisher()
    publish(publisher, count // 2)
    child = make_child(
        "receive_interrupted", publisher.endpoint, cursor_path, commit, 60, 7, count - 1,
        module="cursor_children",
    )  # fmt: skip
    for start in range(count // 2, count, 500):
        publisher.publish_many(TOPIC, list(range(start, start + 500)))
    line = child.line(300)
    assert line.startswith("interrupts "), line
    assert int(line.split()[1]) >= 1
    ledger = json.loads(child.line())
    assert (ledger["delivered"], ledger["outstanding"], ledger["lost"]) == (count, 0, 0)
    assert child.line() == str(count)
    assert child.wait() == 0
    again = make_subscriber(publisher.endpoint, cursor=cursor_path)
    eventually(lambda: again.stats().streams)
    check_silence(again)
    assert again.stats().streams[0].start == count
