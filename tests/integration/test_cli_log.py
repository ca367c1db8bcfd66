"""`p2pmsg log` as processes, over logs that are written for it."""

import json
import os

import pytest

import p2pmsg
from tests.integration.commands import (
    run_here,
    without_waiting,
)
from tests.integration.logs import LogFiles

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
