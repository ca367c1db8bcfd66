"""`p2pmsg log` on logs that live: written meanwhile, shortened, played at a pace, cut off."""

import json
import re
import threading

import pytest

import p2pmsg
from tests.integration.commands import run_here
from tests.integration.logs import LogFiles
from tests.integration.peers import eventually

T0 = 1_723_204_800 * 10**9
S = 10**9


@pytest.fixture
def segmented(tmp_path):
    """A log of 400 messages, one a second, in segments of 4 KiB; `rare` is in the first only."""
    made = LogFiles(tmp_path / "log", segment_bytes=4096)
    with made.writing() as write:
        write("rare", ["x"], [T0], now_ns=T0)
        for number in range(400):
            now_ns = T0 + number * S
            write("trades", [number], [now_ns], now_ns=now_ns)
    return made


def names(log):
    return sorted(file.name for file in log.files() if file.suffix == ".log")


def messages(log, *arguments):
    ended = run_here("log", "dump", log.path, *arguments)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_truncate_by_bytes_says_what_went(segmented):
    before = names(segmented)
    ended = run_here("log", "truncate", segmented.path, "--keep", "10kB")

    assert (ended.returncode, ended.stderr) == (0, b"")
    assert re.fullmatch(r"deleted [\d.]+ kB; [\d.]+ kB are left\n", ended.stdout.decode())
    left = messages(segmented, "trades")
    first = left[0]["sequence"]
    assert [message["value"] for message in left] == list(range(first, 400))
    assert names(segmented) == before[-len(names(segmented)) :]
    assert sum((segmented.directory / name).stat().st_size for name in names(segmented)) <= 10_000
    assert run_here("log", "verify", segmented.path).returncode == 0


def test_a_publisher_goes_on_in_a_log_that_was_shortened(tmp_path, make_publisher, make_subscriber):
    log = p2pmsg.LogConfig(tmp_path / "own", segment_bytes=4096)
    first = make_publisher(log=log)
    for number in range(300):
        first.publish("t", number)
        first.flush()
    first.close(timeout=0.0)
    assert run_here("log", "truncate", str(tmp_path / "own"), "--keep", "5kB").returncode == 0

    second = make_publisher(log=log)
    assert second.session == first.session
    assert second.publish("t", 300) == 300
    subscriber = make_subscriber(second.endpoint, start="earliest")
    values = [subscriber.receive(60).value]
    while values[-1] != 300:
        values.append(subscriber.receive(60).value)
    assert values == list(range(values[0], 301))
    assert 0 < values[0] < 300


def test_a_log_is_looked_at_while_its_publisher_writes(tmp_path, make_publisher):
    path = str(tmp_path / "live")
    log = p2pmsg.LogConfig(path, segment_bytes=100_000, retention_bytes=20_000_000)
    publisher = make_publisher(log=log)
    ended = threading.Event()

    def publish():
        number = 0
        while not ended.is_set():
            for _ in range(20):
                publisher.publish("t", number)
                publisher.publish("u", {"id": number, "padding": bytes(50)})
                number += 1
            ended.wait(0.01)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        eventually(lambda: publisher.stats().log.bytes > 50_000)
        known = 0
        for _ in range(2):
            verified = run_here("log", "verify", path)
            assert (verified.returncode, verified.stderr) == (0, b""), verified.stdout
            listed = json.loads(run_here("log", "ls", path, "--json").stdout)
            (stream,) = (one for one in listed["streams"] if one["topic"] == "t")
            assert stream["next"] >= known
            known = stream["next"]
            dumped = run_here("log", "dump", path, "t", "--from", str(known - 10))
            assert (dumped.returncode, dumped.stderr) == (0, b"")
            values = [json.loads(line)["value"] for line in dumped.stdout.splitlines()]
            assert values == list(range(known - 10, known - 10 + len(values)))
            assert len(values) >= 10
    finally:
        ended.set()
        thread.join()
    assert publisher.stats().log.errors == 0


SPEEDS = {
    "the original pace": ("1", 0.8),
    "twice": pytest.param("2", 0.4, marks=pytest.mark.long),
    "ten times": ("10", 0.08),
}


@pytest.mark.parametrize(("speed", "least_s"), SPEEDS.values(), ids=SPEEDS)
def test_replay_keeps_the_pace(tmp_path, endpoint, make_subscriber, speed, least_s):
    log = LogFiles(tmp_path / "log")
    with log.writing() as write:
        for number in range(5):
            write("t", [number, number], [T0, T0], now_ns=T0 + number * S // 5)
    subscriber = make_subscriber(endpoint)
    replay = run_here("log", "replay", log.path, endpoint, "--speed", speed)

    assert [subscriber.receive(60).value for _ in range(10)] == [n // 2 for n in range(10)]
    assert replay.returncode == 0
    seconds = re.search(rb"to 1 subscriber in ([\d.]+) s", replay.stdout)
    assert float(seconds[1]) >= round(least_s, 1)
