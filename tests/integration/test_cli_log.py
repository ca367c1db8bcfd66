"""`p2pmsg log` as processes: over logs that are written for it, and on logs that live."""

import json
import os
import re
import threading

import pytest

import p2pmsg
from p2pmsg import LogConfig, PublisherConfig
from tests.integration.commands import run_here, without_waiting
from tests.integration.logs import LogFiles
from tests.integration.peers import LOOPBACK, eventually

T0 = 1_723_204_800 * 10**9
S = 10**9


@pytest.fixture
def log(tmp_path):
    """A log with 1,000 trades in frames of 10, one a second, and 50 quotes in between."""
    made = LogFiles(tmp_path / "log")
    with made.writing() as write:
        for number in range(100):
            now_ns = T0 + number * S
            values = [{"id": number * 10 + at, "raw": b"\xff"} for at in range(10)]
            times = [now_ns + at * 10**8 for at in range(10)]
            write("trades", values, times, keys=["BTC"] * 10, now_ns=now_ns)
            if number % 2:
                write.alone("quotes.btc", number, now_ns, headers={"venue": "x"}, now_ns=now_ns)
    return made


def dump(log, *arguments):
    ended = run_here("log", "dump", log.path, *arguments)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return [json.loads(line) for line in ended.stdout.splitlines()]


def ids(messages):
    return [message["value"]["id"] for message in messages]


def test_ls_lists_the_streams(log):
    ended = run_here("log", "ls", log.path)

    assert (ended.returncode, ended.stderr) == (0, b"")
    titles, quotes, trades, total, window = ended.stdout.decode().splitlines()
    session = f"{log.session:016x}"
    assert titles.split()[:4] == ["topic", "session", "from", "to"]
    assert quotes.split()[:2] == ["quotes.btc", session]
    assert quotes.split()[4:7] == ["0", "50", "50"]
    assert trades.split()[:7] == [
        "trades", session, "2024-08-09T12:00:00.900000Z", "2024-08-09T12:01:39.900000Z",
        "0", "1,000", "1,000",
    ]  # fmt: skip
    assert total.startswith("1,050 messages in ")
    assert " (free, and the log itself) hold " in window


def test_dump_prints_every_message_as_it_was(log):
    messages = dump(log)

    assert len(messages) == 1050
    trades = [message for message in messages if message["topic"] == "trades"]
    assert ids(trades) == list(range(1000))
    assert trades[11] == {
        "topic": "trades", "session": f"{log.session:016x}", "sequence": 11, "key": "BTC",
        "timestamp_ns": T0 + S + 10**8, "headers": None,
        "value": {"id": 11, "raw": {"base64": "/w=="}},
    }  # fmt: skip
    quote = messages[20]
    assert (quote["topic"], quote["headers"], quote["value"]) == ("quotes.btc", {"venue": "x"}, 1)


RANGES = {
    "sequences": (["trades", "--from", "995", "--to", "998"], range(995, 998)),
    "times": (
        ["trades", "--from", "2024-08-09T12:00:10.45Z", "--to", "2024-08-09T12:00:11Z"],
        range(105, 110),
    ),
    "a count": (["trades", "--from", "17", "--count", "5"], range(17, 22)),
    "after the end": (["trades", "--from", "2025-01-01T00:00:00Z"], []),
    "a prefix": (["t*", "--count", "3"], range(3)),
}


@pytest.mark.parametrize(("arguments", "expected"), RANGES.values(), ids=RANGES)
def test_dump_prints_a_range(log, arguments, expected):
    assert ids(dump(log, *arguments)) == list(expected)


def test_verify_and_dump_report_a_flipped_byte(log):
    path, offset = log.flip(b"\xa2id\xcd" + (505).to_bytes(2, "big"))

    ended = run_here("log", "verify", log.path)
    lines = ended.stdout.decode().splitlines()
    assert ended.returncode == 1
    name, at, _ = lines[0].split(":", 2)
    assert name == str(path)
    assert offset - 1000 < int(at) <= offset
    assert lines[-1].startswith("1 finding in ")

    dumped = run_here("log", "dump", log.path, "trades")
    assert dumped.returncode == 1
    left = [*range(500), *range(510, 1000)]
    assert ids(map(json.loads, dumped.stdout.splitlines())) == left
    hole, place = dumped.stderr.decode().splitlines()
    assert hole.startswith("p2pmsg log dump: [500, 510) of 'trades' ")
    assert place == f"p2pmsg log dump: {lines[0]}"

    listed = run_here("log", "ls", log.path)
    assert (listed.returncode, listed.stderr.count(b"\n")) == (1, 1)
    assert b"damaged" in listed.stderr
    assert b"\n1,040 messages in " in listed.stdout


def test_repair_keeps_what_is_intact(log):
    session = f"{log.session:016x}"
    ended = run_here("log", "repair", log.path)
    assert (ended.returncode, ended.stdout) == (0, b"there is nothing to repair\n")

    path, offset = log.flip(b"\xa2id\xcd\x01\xf4")  # 500 of trades
    ended = run_here("log", "repair", log.path)
    lines = ended.stdout.decode().splitlines()
    assert (ended.returncode, ended.stderr) == (1, b"")
    place, said = lines[0].removeprefix(f"{path}:").split(": ", 1)
    assert (int(place) < offset, said) == (True, "the frame's checksum is wrong")
    assert f"at most [500, 510) of 'trades' (session {session}) are gone" in lines
    assert lines[-1] == "everything else was kept"
    assert run_here("log", "repair", log.path).returncode == 0
    assert run_here("log", "verify", log.path).returncode == 0
    messages = [json.loads(line) for line in run_here("log", "dump", log.path).stdout.splitlines()]
    trades = [message for message in messages if message["topic"] == "trades"]
    assert ids(trades) == [*range(500), *range(510, 1000)]
    assert len(messages) - len(trades) == 50


def test_repair_refuses_a_log_that_is_in_use_and_mends_the_log_of_a_queue(tmp_path):
    with p2pmsg.Pusher("tcp://127.0.0.1:0", log=tmp_path) as pusher:
        for number in range(100):
            pusher.push(f"job {number}")
        assert b"in use" in run_here("log", "repair", tmp_path).stderr
    files = LogFiles(tmp_path)
    path, _ = files.flip(b"job 50")
    with pytest.raises(p2pmsg.errors.LogFormatError, match=f"p2pmsg log repair {tmp_path}`"):
        p2pmsg.Pusher("tcp://127.0.0.1:0", log=tmp_path)
    ended = run_here("log", "repair", tmp_path)
    place, jobs, last = ended.stdout.decode().splitlines()
    assert place.startswith(f"{path}:")
    assert jobs.startswith("at most [50, 51) of 'jobs' (session ")
    assert last == "everything else was kept"
    assert ended.returncode == 1
    assert run_here("log", "repair", tmp_path).returncode == 0
    with p2pmsg.Pusher("tcp://127.0.0.1:0", log=tmp_path) as pusher:
        assert pusher.push("next") == 100
        with p2pmsg.Puller(pusher.endpoint) as puller:
            got = set()
            while len(got) < 100:
                with puller.receive(timeout=60) as job:
                    got.add(job.value)
    assert got == {f"job {number}" for number in range(100)} - {"job 50"} | {"next"}


def test_a_last_segment_that_was_cut_is_missed(log, endpoint):
    (path,) = (path for path in log.files() if path.suffix == ".log")
    os.truncate(path, path.stat().st_size // 2)

    dumped = run_here("log", "dump", log.path, "trades")
    kept = ids(map(json.loads, dumped.stdout.splitlines()))
    assert (dumped.returncode, kept) == (1, [*range(len(kept))])
    assert "it was cut" in dumped.stderr.decode()
    assert len(kept) < 1000
    assert run_here("log", "verify", log.path).returncode == 1
    options = ("--wait", "0", "--speed", "max")
    replayed = run_here("log", "replay", log.path, endpoint, *options)
    assert (replayed.returncode, len(replayed.stderr) > 0) == (1, True)


def test_replay_publishes_every_message_as_it_was(log, start, endpoint):
    sub = start("sub", endpoint, "--json", "--count", "1050")
    replay = run_here("log", "replay", log.path, endpoint, "--speed", "max")

    assert sub.wait() == 0
    assert (replay.returncode, without_waiting(replay.stderr)) == (0, "")
    assert replay.stdout.startswith(b"replayed 1,050 messages of 2 streams to 1 subscriber in ")
    came = [json.loads(line) for line in sub.output().splitlines()]
    for topic in ("trades", "quotes.btc"):
        expected = dump(log, topic)
        assert [
            {key: message[key] for key in message if key != "publisher"}
            for message in came
            if message["topic"] == topic
        ] == [{key: message[key] for key in message if key != "session"} for message in expected]


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


def test_truncate_by_bytes_says_what_went(segmented):
    before = names(segmented)
    ended = run_here("log", "truncate", segmented.path, "--keep", "10kB")

    assert (ended.returncode, ended.stderr) == (0, b"")
    assert re.fullmatch(r"deleted [\d.]+ kB; [\d.]+ kB are left\n", ended.stdout.decode())
    left = dump(segmented, "trades")
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


COUNT = 8
SMALL = PublisherConfig(frame_bytes=4096)


def aged_log(directory):
    return LogConfig(directory, segment_bytes=4096, retention_age=0.6)


def fill(publisher):
    for _ in range(COUNT):
        publisher.publish("t", bytes(4000))


def is_short(peer):
    return peer.stats().log.bytes < 4000


def test_a_publisher_that_was_started_again_forgets_old_messages_though_it_publishes_none(
    tmp_path, make_publisher
):
    config = aged_log(tmp_path)
    first = make_publisher(log=config, config=SMALL)
    fill(first)
    first.close()
    again = make_publisher(log=config, config=SMALL)
    eventually(lambda: is_short(again))


def test_a_relay_that_was_started_again_forgets_old_messages_though_none_come(
    tmp_path, make_publisher, make_relay
):
    config = aged_log(tmp_path)
    publisher = make_publisher(config=SMALL)
    first = make_relay(publisher.endpoint, log=config)
    publisher.wait_for_subscribers(1, timeout=60)
    fill(publisher)
    eventually(lambda: [end for _, end in first.stats().streams.values()] == [COUNT])
    first.close()
    publisher.close(timeout=0.0)
    again = make_relay(publisher.endpoint, LOOPBACK, log=config)
    eventually(lambda: is_short(again))
