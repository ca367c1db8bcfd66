"""What `publish` has returned for outlives its process: real publishers, killed at full rate."""

import contextlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import time

import pytest

import p2pmsg
from p2pmsg import LogConfig
from recovery.log import LogReader
from tests.integration.acknowledge_children import TOPICS, columns_of, value_of
from tests.integration.commands import run_here
from tests.integration.peers import LOOPBACK, eventually

CHILD = "tests.integration.acknowledge_children"


def counts_in(file):
    return struct.unpack("=3Q", file.read_bytes()[:24])


def kill_one(place, how, at_least=10, **options):
    """Let a process publish, kill it; return how many messages `publish` had returned for."""
    file = place / "returned"
    file.write_bytes(bytes(4096))
    arguments = {"directory": str(place / "log"), "returned": str(file), "how": how, **options}
    command = [sys.executable, "-m", CHILD, json.dumps(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            first = child.stdout.readline()
            time.sleep(0.1 + 0.1 * random.random())
            eventually(lambda: sum(counts_in(file)) > at_least, 60)
        finally:
            child.kill()
    assert first == b"publishing\n"
    counts = counts_in(file)
    returned = {topic: count for topic, count in zip(TOPICS, counts, strict=True) if count}
    assert sum(returned.values()) > at_least
    return returned


def go_on(config, topics):
    """Publish once more; return the sequences of the messages."""
    with p2pmsg.Publisher(LOOPBACK, log=config) as publisher:
        return {topic: publisher.publish(topic, "next") for topic in topics}


def read_all(directory):
    """Return {sequence: (value, key, headers)} by topic, of all frames in the log."""
    found = {}
    reader = LogReader(directory)
    for record in reader.records():
        kept = found.setdefault(record.topic, {})
        for message in p2pmsg.frames.decode_frame(record.frame):
            assert message.sequence not in kept
            kept[message.sequence] = message
    assert not reader.corrupt
    reader.close()
    return found


@pytest.mark.parametrize("how", ["one", "columns", "many", "bursts", "threads"])
@pytest.mark.parametrize("options", [{}, {"fsync": "always"}], ids=str)
@pytest.mark.long
def test_killed_again_and_again_it_loses_nothing(tmp_path, options, how):
    for number in range(20):
        place = tmp_path / str(number)
        place.mkdir()
        check_one(place, options, how)


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({}, "one"),
        ({}, "columns"),
        ({"fsync": "always"}, "threads"),
    ],
    ids=str,
)
def test_a_killed_process_loses_nothing_that_was_returned(tmp_path, options, how):
    check_one(tmp_path, options, how)


def check_one(tmp_path, options, how):
    """Kill a process that publishes; all that was returned for is in the log, as it was."""
    returned = kill_one(tmp_path, how, **options)

    following = go_on(LogConfig(tmp_path / "log", **options), returned)

    found = read_all(tmp_path / "log")
    for topic, count in returned.items():
        assert following[topic] >= count
        kept = [found[topic][number].value for number in range(count)]
        assert kept == [value_of(topic, number) for number in range(count)]
        assert found[topic][following[topic]].value == "next"
    if how == "columns":
        for number in range(returned["a"]):
            message, columns = found["a"][number], columns_of(number)
            assert (message.key, message.headers) == (columns.get("key"), columns.get("headers"))
            assert message.timestamp_ns == columns.get("timestamp_ns", message.timestamp_ns)


GATHERS = """
import os, sys, p2pmsg
config = p2pmsg.PublisherConfig(linger=600.0, gather_within=60.0)
publisher = p2pmsg.Publisher("tcp://127.0.0.1:0", log=p2pmsg.LogConfig(sys.argv[1]), config=config)
publisher.publish_many("t", [0])
for number in range(1, 50):
    publisher.publish("t", number)
os.kill(os.getpid(), 9)
"""


@pytest.mark.long
def test_the_command_line_reports_what_is_in_no_frame_yet(tmp_path):
    subprocess.run([sys.executable, "-c", GATHERS, tmp_path], check=False)
    with contextlib.closing(LogReader(tmp_path)) as reader:
        left = 50 - reader.streams()[0].next
    assert left > 0
    ended = run_here("log", "ls", tmp_path)
    assert (ended.returncode, f"{left} more messages" in ended.stdout.decode()) == (0, True)

    assert go_on(LogConfig(tmp_path), ["t"]) == {"t": 50}
    for name in ("ls", "verify", "dump"):
        ended = run_here("log", name, tmp_path)
        assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.long
@pytest.mark.parametrize("how", ["a byte", "deleted"])
def test_a_tail_file_that_is_damaged_is_known_and_no_publisher_is_hindered(tmp_path, how, caplog):
    directory = tmp_path / "log"
    subprocess.run([sys.executable, "-c", GATHERS, directory], check=False)
    with contextlib.closing(LogReader(directory)) as reader:
        kept = reader.streams()[0].next
    tail = directory / "tail"
    if how == "a byte":
        data = tail.read_bytes()
        at = data.rfind(bytes((48, 49)))  # the last two values
        tail.write_bytes(data[:at] + b"\xc1" + data[at + 1 :])
    else:
        tail.unlink()

    ended = run_here("log", "verify", directory)
    first, last = ended.stdout.decode().splitlines()
    assert (ended.returncode, first.startswith(f"{tail}:0: ")) == (1, True)
    assert last.startswith("1 finding in ")
    following = go_on(LogConfig(directory), ["t"])["t"]
    assert following >= 50
    assert "may have lost messages" in caplog.text
    assert run_here("log", "verify", directory).returncode == 0
    with contextlib.closing(LogReader(directory)) as reader:
        assert reader.streams()[0].messages == kept + 1
        assert reader.skips(reader.session, "t") == [(kept, following)]


def test_a_refused_message_takes_no_accepted_one_along(tmp_path):
    accepted, refused = {}, 0
    config = p2pmsg.PublisherConfig(linger=60.0, gather_within=60.0)  # so that all share a frame
    with p2pmsg.Publisher(LOOPBACK, log=LogConfig(tmp_path), config=config) as publisher:
        for number in range(20):
            accepted[publisher.publish("t", number)] = number
            for options in ({"value": bytes(2**21)}, {"value": bytes(2**19), "key": 5}):
                try:
                    publisher.publish("t", **options)
                except p2pmsg.MessageError:
                    refused += 1
    assert refused == 40
    found = read_all(tmp_path)["t"]
    assert {sequence: message.value for sequence, message in found.items()} == accepted


@pytest.mark.long
def test_a_log_that_was_cut_goes_on_past_what_was_in_it(tmp_path, caplog):
    returned = kill_one(tmp_path, "one", at_least=10_000)
    newest = max((tmp_path / "log").glob("*.log"))
    # More than a frame, for the last one may not have been written whole when the kill came.
    os.truncate(newest, newest.stat().st_size - 200_000)

    following = go_on(LogConfig(tmp_path / "log"), returned)

    assert all(following[topic] >= count for topic, count in returned.items())
    assert "may have lost messages" in caplog.text


@pytest.mark.parametrize("how", ["into the files", "in their place"])
def test_a_backup_put_back_into_its_directory_begins_a_new_session(tmp_path, how):
    live, backup = tmp_path / "live", tmp_path / "backup"

    def publish():
        with p2pmsg.Publisher(LOOPBACK, log=LogConfig(live)) as publisher:
            return publisher.session, publisher.publish("a", 1)

    session, _ = publish()
    shutil.copytree(live, backup)
    assert publish() == (session, 1)
    for path in backup.iterdir():
        if how == "in their place" and path.stat().st_size:  # rsync leaves what is the same
            shutil.copyfile(path, live / "new")
            os.replace(live / "new", live / path.name)
        else:
            shutil.copyfile(path, live / path.name)

    assert publish()[0] != session


def test_a_copy_of_a_log_begins_a_new_session(tmp_path, caplog):
    live, copy = tmp_path / "live", tmp_path / "copy"
    with p2pmsg.Publisher(LOOPBACK, log=LogConfig(live)) as publisher:
        publisher.publish("a", 1)
        session = publisher.session
    shutil.copytree(live, copy)
    with p2pmsg.Publisher(LOOPBACK, log=LogConfig(copy, moved=True)) as publisher:
        assert publisher.session == session
        assert publisher.publish("a", 2) == 1
    assert "copy" not in caplog.text
    shutil.rmtree(copy)
    shutil.copytree(live, copy)
    with p2pmsg.Publisher(LOOPBACK, log=LogConfig(copy)) as publisher:
        assert publisher.session != session
        assert publisher.publish("a", 2) == 0
    assert "is a copy" in caplog.text
    for path in (live, live / "lock"):  # as who mounts a volume may do at each start
        path.chmod(0o755)
        os.chown(path, os.getuid(), os.getgid())
    with p2pmsg.Publisher(LOOPBACK, log=LogConfig(live)) as publisher:
        assert publisher.session == session
    shutil.rmtree(live)  # the copy may have its inodes now
    shutil.copytree(copy, live)
    with p2pmsg.Publisher(LOOPBACK, log=LogConfig(live)) as publisher:
        assert publisher.session != session
