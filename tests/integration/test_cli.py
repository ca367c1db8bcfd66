"""`p2pmsg pub`, `sub` and `respond` as processes, over real sockets."""

import json
import os
import subprocess

import pytest

from tests.integration.commands import P2PMSG, run_here
from tests.integration.peers import eventually


def test_lines_pass_through_pub_and_sub_byte_for_byte(start, endpoint):
    lines = b"".join(b"line %d\t\r gr\xc3\xbc\xc3\x9fe\n\n" % number for number in range(5000))
    sub = start("sub", endpoint, "lines", "--count", "10000")
    pub = run_here("pub", endpoint, "lines", stdin=lines)

    assert sub.wait() == 0
    assert sub.output() == lines
    assert sub.errors() == ""
    assert (pub.returncode, pub.stdout) == (0, b"")


def test_json_values_arrive_with_topic_sequence_and_key(start, endpoint):
    sub = start("sub", endpoint, "--json", "--count", "2")
    pub = run_here(
        "pub", endpoint, "trades", "--json", "--key-field", "symbol", "--name", "feed",
        stdin=b'{"symbol":"BTC","price":1.5}\n\n{"symbol":"ETH","price":null}\n',
    )  # fmt: skip

    assert sub.wait() == 0
    first, second = map(json.loads, sub.output().splitlines())
    assert first.pop("timestamp_ns") > 1e18
    assert first == {
        "topic": "trades", "sequence": 0, "key": "BTC", "headers": None, "publisher": "feed",
        "value": {"symbol": "BTC", "price": 1.5},
    }  # fmt: skip
    assert (second["sequence"], second["key"]) == (1, "ETH")
    assert pub.returncode == 0


def test_a_line_that_is_nested_too_deeply_is_refused(endpoint):
    line = b"[" * 501 + b"]" * 501 + b"\n"
    ended = run_here("pub", endpoint, "t", "--json", "--wait", "0", stdin=b"1\n" + line)

    assert ended.returncode == 1
    assert ended.stderr.startswith(b"p2pmsg pub: line 2: ")
    assert b"nested" in ended.stderr
    assert ended.stderr.count(b"\n") == 1


def test_lines_have_the_fields_of_the_format(make_publisher):
    publisher = make_publisher(name="feed")
    publisher.publish("t", {"x": 1}, key="k", timestamp_ns=1_500_000_000)
    base = ("sub", publisher.endpoint, "--start", "earliest", "--count", "1")
    form = r"{topic}\t{sequence:03}{key:>2} {value} {timestamp_ns} {publisher} {{{headers}}}"

    assert run_here(*base, "--format", form).stdout == b't\t000 k {"x":1} 1500000000 feed {{}}\n'
    at = run_here(*base, "--format", "{timestamp} {value}")
    assert at.stdout == b'1970-01-01T00:00:01.500000Z {"x":1}\n'


def test_pub_continues_a_log_and_serves_repairs_where_it_is_said(endpoint, tmp_path):
    recovery = f"ipc://{tmp_path}/repairs"
    options = ("--key", "k", "--log", str(tmp_path / "log"), "--recovery", recovery)
    for line in (b"a\n", b"b\n"):
        done = run_here("pub", endpoint, "t", "--wait", "0", *options, stdin=line)
        assert (done.returncode, done.stderr) == (0, b"")
    dumped = run_here("log", "dump", str(tmp_path / "log")).stdout.splitlines()
    assert [(m["sequence"], m["key"], m["value"]) for m in map(json.loads, dumped)] == [
        (0, "k", "a"), (1, "k", "b"),
    ]  # fmt: skip


def test_with_a_cursor_sub_goes_on_where_it_was(start, tmp_path, make_publisher):
    publisher = make_publisher()
    publisher.publish_many("t", [f"{number}" for number in range(100)])
    options = (publisher.endpoint, "--start", "earliest", "--cursor", str(tmp_path / "a.cursor"))

    first = run_here("sub", *options, "--count", "30")
    sub = start("sub", *options)
    eventually(lambda: sub.output().endswith(b"99\n"))
    sub.interrupt()
    assert sub.wait() == 130
    publisher.publish("t", "more")
    last = run_here("sub", *options, "--count", "1")

    printed = (first.stdout + sub.output() + last.stdout).split()
    assert printed == [*(b"%d" % number for number in range(100)), b"more"]
    assert (first.stderr, last.stderr, sub.errors()) == (b"", b"", "")


def test_a_loss_is_reported_on_standard_error(start, make_publisher, make_proxy):
    publisher = make_publisher(replay_bytes=0, name="feed")
    proxy = make_proxy(publisher, drop=lambda frame: b"lose me" in frame)
    sub = start("sub", proxy.endpoint, "t", "--count", "2")
    publisher.wait_for_subscribers(1, timeout=60)

    for value in ("first", "lose me", "last"):
        publisher.publish("t", value)
        publisher.flush()

    assert sub.wait() == 0
    assert sub.output() == b"first\nlast\n"
    (line,) = sub.errors().splitlines()
    assert line.startswith("p2pmsg sub: lost 1 messages [1, 2) of 't' from 'feed'")


@pytest.mark.long
@pytest.mark.parametrize("arguments", [("pub", "t"), ("push",)])
def test_a_closed_standard_input_is_reported_in_one_line(arguments, tmp_path):
    name, *rest = arguments
    line = [*P2PMSG, name, f"ipc://{tmp_path}/x", *rest]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *line], capture_output=True, timeout=60, text=True
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"p2pmsg {name}: standard input is closed, and there is nothing to read\n"
    )


@pytest.mark.long
def test_sub_ends_quietly_when_nobody_reads_it_any_more(start, make_publisher):
    publisher = make_publisher()
    reading, writing = os.pipe()
    sub = start("sub", publisher.endpoint, stdout=writing)
    os.close(writing)
    publisher.wait_for_subscribers(1, timeout=60)
    publisher.publish("t", "first")
    assert os.read(reading, 100) == b"first\n"

    os.close(reading)  # and no further message comes

    assert sub.wait() == 141
    assert sub.errors() == ""


@pytest.mark.long
def test_a_full_disk_is_reported_in_one_line(start, make_publisher):
    publisher = make_publisher()
    with open("/dev/full", "wb") as full:
        sub = start("sub", publisher.endpoint, "--count", "1", stdout=full)
        publisher.wait_for_subscribers(1, timeout=60)
        publisher.publish("t", "first")

        assert sub.wait() == 1

    assert sub.errors() == "p2pmsg sub: No space left on device\n"


def test_sub_ends_by_a_signal_and_still_prints_its_ledger(start, make_publisher):
    publisher = make_publisher(name="feed")
    sub = start("sub", publisher.endpoint, "--stats")
    publisher.wait_for_subscribers(1, timeout=60)
    publisher.publish("t", "first")
    eventually(sub.output)

    sub.process.terminate()

    assert sub.wait(60) == 0
    assert sub.errors().splitlines()[1].split() == ["t", "feed", "1", "1", "0", "0"]


def test_respond_answers_with_what_a_command_prints(start, endpoint):
    script = 'read n; [ "$n" != 0 ] && echo $((n * n))'
    respond = start(
        "respond", endpoint, "square", "--json", "--count", "2", "--", "sh", "-c", script
    )
    options = ("--json", "--timeout", "60")  # it takes a while to start
    failed = run_here("request", endpoint, "square", "0", *options)
    done = run_here("request", endpoint, "square", "12", *options)

    assert (done.returncode, done.stdout) == (0, b"144\n")
    assert (failed.returncode, failed.stderr.count(b"\n")) == (1, 1)
    assert b"ChildProcessError: exit status 1" in failed.stderr
    assert respond.wait() == 0
    ready, said = respond.errors().splitlines()
    assert ready == f"p2pmsg respond: listening at {endpoint}"
    assert said == "p2pmsg respond: a request failed: exit status 1"


@pytest.mark.long
def test_respond_ends_by_a_signal_with_its_command(start, endpoint, tmp_path):
    mark = tmp_path / "begun"
    script = f"touch {mark}; exec sleep 100"
    respond = start("respond", endpoint, "t", "--", "sh", "-c", script)
    start("request", endpoint, "t", "v", "--timeout", "60")
    assert eventually(mark.exists)
    respond.process.terminate()
    assert respond.wait(60) == 0
    assert "Traceback" not in respond.errors()
    assert eventually(lambda: not respond.processes())
