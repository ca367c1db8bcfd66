"""A cursor that is had, damaged, misused, cannot be written, or is struck by Ctrl-C."""

import json
import shutil
import signal

import pytest

import p2pmsg
from p2pmsg import ConfigError, CursorConfig, CursorError, CursorInUseError
from tests.integration.cursors import committed, publish
from tests.integration.peers import LOOPBACK, TOPIC, check_exact, check_silence, eventually, take


def test_a_cursor_has_one_subscriber(make_publisher, resume, make_child, cursor_path):
    publisher = make_publisher()
    with resume(publisher), pytest.raises(CursorInUseError, match=r"bars\.cursor.*another"):
        resume(publisher)
    child = make_child("hold_cursor", publisher.endpoint, cursor_path, module="cursor_children")
    assert child.line() == "has it"
    with pytest.raises(CursorInUseError):
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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"symbol,price\n", "it is not a cursor"),
        (b"p2cursor\x00\x09" + bytes(20), "it is of version 9; this p2pmsg reads 1"),
        (b"p2cursor\x00\x01" + bytes(20), "it is damaged"),
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
        ({"commit": 0, "cursor": "a"}, "commit must be at least 1"),
        ({"commit": True, "cursor": "a"}, "commit must be .* not True"),
        ({"commit": float("nan"), "cursor": "a"}, "commit must be"),
        ({"cursor": 7}, "cursor must be a path or a CursorConfig, not 7"),
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
    with pytest.raises(p2pmsg.EndpointError):
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


@pytest.mark.parametrize("commit", ["explicit", "message", 5])
def test_a_folder_that_vanishes_is_told_and_nothing_is_lost(
    make_publisher, make_subscriber, tmp_path, commit
):
    folder = tmp_path / "var"
    cursor_path = folder / "a.cursor"
    publisher = make_publisher()
    publish(publisher, 100)
    config = CursorConfig(cursor_path, fsync="always")
    subscriber = make_subscriber(publisher.endpoint, start="earliest", cursor=config, commit=commit)
    messages = take(subscriber, 10)
    shutil.rmtree(folder)

    def told():
        publisher.publish(TOPIC, publisher.stats().published)
        try:
            messages.append(subscriber.receive(10))
            if commit == "explicit":
                subscriber.commit()
        except CursorError as error:
            return str(error)

    assert str(cursor_path) in eventually(told)
    folder.mkdir()

    eventually(lambda: not told() and cursor_path.exists())
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
    check_silence(again)
    assert again.stats().streams[0].start == count


def test_a_session_that_cannot_be_noted_hands_nothing_on(make_publisher, make_subscriber, tmp_path):
    folder = tmp_path / "var"
    subscriber = make_subscriber(LOOPBACK.replace(":0", ":1"), cursor=folder / "a.cursor")
    subscriber.close()
    publisher = make_publisher()
    publish(publisher, 3)
    subscriber = make_subscriber(publisher.endpoint, start="earliest", cursor=folder / "a.cursor")
    shutil.rmtree(folder)
    with pytest.raises(CursorError):
        for _ in range(3):
            subscriber.receive(10)
            break
        else:
            raise AssertionError("a message came")
    folder.mkdir()
    check_exact(take(subscriber, 3))


@pytest.mark.parametrize(
    ("commit", "count"), [("explicit", 40_000), ("message", 80_000), (3, 10**6)]
)
def test_ctrl_c_anywhere_costs_no_message_and_no_commit(
    make_publisher, make_child, cursor_path, make_subscriber, commit, count
):
    publisher = make_publisher()
    publish(publisher, count // 2)
    child = make_child(
        "receive_interrupted", publisher.endpoint, cursor_path, commit, 150, 7, count - 1,
        module="cursor_children",
    )  # fmt: skip
    for start in range(count // 2, count, 500):
        publisher.publish_many(TOPIC, list(range(start, start + 500)))
    line = child.line(60)
    assert line.startswith("interrupts "), line
    assert int(line.split()[1]) >= 50
    ledger = json.loads(child.line())
    assert (ledger["delivered"], ledger["outstanding"], ledger["lost"]) == (count, 0, 0)
    assert child.line() == str(count)
    assert child.wait() == 0
    again = make_subscriber(publisher.endpoint, cursor=cursor_path)
    check_silence(again)
    assert again.stats().streams[0].start == count
