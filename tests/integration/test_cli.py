"""Commands as processes: `pub`, `sub`, `respond`, `bridge`, `listen`, `relay`; with keys."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq

import p2pmsg
from p2pmsg import Publisher, Subscriber
from tests.endpoints import free_port
from tests.integration.commands import P2PMSG, command, run, run_here
from tests.integration.peers import eventually
from transports.curve import key_text


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
    publisher, count = make_publisher(), 20_000
    publisher.publish_many("t", [f"{number}" for number in range(count)])
    options = (publisher.endpoint, "--start", "earliest", "--cursor", str(tmp_path / "a.cursor"))

    first = run_here("sub", *options, "--count", "30")
    sub = start("sub", *options)
    eventually(sub.output)
    sub.interrupt()  # most likely while it prints
    assert sub.wait() == 130
    rest = count - 30 - sub.output().count(b"\n")
    publisher.publish("t", "more")
    last = run_here("sub", *options, "--count", f"{rest + 1}")

    printed = (first.stdout + sub.output() + last.stdout).split()
    assert printed == [*(b"%d" % number for number in range(count)), b"more"]
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


def test_bridges_until_it_is_asked_to_end(tmp_path):
    with zmq.Context() as context, context.socket(zmq.XPUB) as pub:
        pub.bind(f"ipc://{tmp_path}/plain")
        arguments = [
            "--from", f"zmq+sub+ipc://{tmp_path}/plain", "--to", "tcp://127.0.0.1:0",
            "--log", str(tmp_path / "log"), "--json", "--sequence-at", "n", "--stats", "0.1",
        ]  # fmt: skip
        with command(tmp_path, "bridge", *arguments) as bridge:
            assert pub.recv() == b"\1"
            for count in (0, 1, 2, 5):
                pub.send_multipart([b"t", b'{"n": %d}' % count])
            endpoint = eventually(lambda: re.search(r"from .* to (tcp://\S+)", bridge.errors()))[1]
            with Subscriber(endpoint, start="earliest") as subscriber:
                assert [subscriber.receive(60).value["n"] for _ in range(4)] == [0, 1, 2, 5]
            counts = "4 messages received; 4 passed on; 2 lost before they came here"
            eventually(lambda: counts in bridge.errors())
            bridge.process.terminate()  # for Ctrl-C there is test_cli_interrupted.py
            assert bridge.wait() == 0
            errors = bridge.errors()
    assert "Traceback" not in errors
    assert all(line.startswith("p2pmsg bridge: ") for line in errors.splitlines())
    assert counts in errors.splitlines()[-1]


@pytest.fixture
def place():
    return f"239.255.11.1:{free_port()}?interface=127.0.0.1"


def test_it_shows_sessions_topics_and_rates(place, tmp_path):
    watch = ("listen", f"udp://{place}", "--interval", "0.3", "--json")
    with (
        p2pmsg.Publisher(f"udp://{place}", name="feed") as publisher,
        command(tmp_path, *watch) as listening,
    ):

        def rows():
            for _ in range(20):
                publisher.publish("trades", b"x" * 100)
                publisher.publish("quotes", 1)
            time.sleep(0.02)
            lines = listening.output().splitlines()
            found = [json.loads(line) for line in lines if line.endswith(b"}")]
            is_known = len({row["topic"] for row in found}) == 2 and found[-1]["publisher"]
            return found if is_known else None  # a name comes with the next heartbeat

        row = eventually(rows)[-1]
        listening.process.terminate()  # for Ctrl-C there is test_cli_interrupted.py
        assert listening.wait() == 0
        listening.process.stdin.close()
    assert row["publisher"] == "feed"
    assert row["session"] == f"{publisher.session:016x}"
    assert row["missing"] == 0
    assert listening.errors() == f"p2pmsg listen: listening to udp://{place}\n"


@pytest.mark.long
def test_it_shows_a_mold_feed(place, tmp_path):
    with p2pmsg.moldudp64.MoldPublisher(f"mold://{place}", session="FEED") as feed:
        ended = threading.Event()

        def publish():  # its heartbeats come once a second
            while not ended.wait(0.02):
                feed.publish(b"x")

        publishing = threading.Thread(target=publish)
        publishing.start()
        done = run("listen", f"mold://{place}", "--seconds", "1.5", "--interval", "5")
        ended.set()
        publishing.join()
    assert done.returncode == 0
    assert b"FEED" in done.stdout
    assert b"mold" in done.stdout


def test_relays_until_it_is_asked_to_end(tmp_path, make_publisher):
    publisher = make_publisher(name="feed")
    publisher.publish_many("t", list(range(1000)))
    log = tmp_path / "log"
    arguments = ["--from", publisher.endpoint, "--listen", "tcp://127.0.0.1:0", "--log", str(log)]
    for turn in range(2):
        with command(tmp_path, "relay", *arguments, "--name", "r", "--stats", "0.2") as relay:
            (endpoint,) = eventually(lambda r=relay: re.findall("listening at (.*)", r.errors()))
            with Subscriber(endpoint, start="earliest") as subscriber:
                got = [subscriber.receive(60).value for _ in range(1000)]
            assert got == list(range(1000))
            eventually(lambda r=relay: "1 streams of 1 sessions" in r.errors())
            relay.process.terminate()  # for Ctrl-C there is test_cli_interrupted.py
            assert relay.wait() == 0
            errors = relay.errors()
        assert "Traceback" not in errors
        assert all(line.startswith("p2pmsg relay: ") for line in errors.splitlines())
        last = errors.splitlines()[-1]
        assert ("1,000 messages received" in last) == (turn == 0)
        assert "bytes of log" in last
    shown = run_here("log", "ls", str(log))
    assert shown.returncode == 0
    assert b"1,000" in shown.stdout or b"1000" in shown.stdout


ANY_PORT = "tcp://127.0.0.1:0"


def listening(made):
    """Return where a command has bound."""
    return eventually(lambda: re.findall("listening at (.*)", made.errors()))[0]


def check_silence(peers, *texts):
    """No secret key stands in what commands said."""
    for text in texts:
        assert not any(key_text(pair.secret) in text for pair in peers.keys.values())


def test_a_publisher_a_relay_and_a_subscriber_with_keys(tmp_path, peers):
    for name, *known in (("pub", "relay"), ("relay", "sub"), ("sub",)):
        peers.security(name, *known)
    pub_options = peers.options("pub")
    with command(tmp_path, "pub", ANY_PORT, "t", *pub_options) as pub:
        pub.write(b"one\ntwo\n")
        up = peers.pinned(listening(pub), "pub")
        relay_words = ["--from", up, "--listen", ANY_PORT, *peers.options("relay")]
        with command(tmp_path, "relay", *relay_words) as relay:
            place = peers.pinned(listening(relay), "relay")
            env = os.environ | {
                "P2PMSG_SECURITY_KEY": str(tmp_path / "sub"),
                "P2PMSG_SECURITY_TRUST": str(tmp_path / "none"),
            }
            sub = run("sub", place, "--start", "earliest", "--count", "2", env=env)
            assert (sub.returncode, sub.stdout) == (0, b"one\ntwo\n"), sub.stderr
            pub.process.stdin.close()
            assert pub.wait() == 0
            check_silence(peers, relay.said(), pub.said(), sub.stderr.decode())


def test_a_subscriber_that_is_refused_says_so_and_fails_in_the_end(tmp_path, peers):
    stranger = peers.security("sub")
    with Publisher(ANY_PORT, security=peers.security("pub")) as publisher:
        place = peers.pinned(publisher.endpoint, "pub")
        sub = run_here("sub", place, "--timeout", "2.5", *peers.options("sub"))
    assert sub.returncode == 1
    said = sub.stderr.decode()
    assert f"does not admit our key {stranger.fingerprint}" in said
    assert re.search(r"no message for 2.5 s; 0 came; .*does not admit our key", said)
    check_silence(peers, said)


@pytest.mark.long
def test_the_guide_s_five_commands(tmp_path):
    """With folders as machines, and three of them."""
    page = Path(__file__).parents[2] / "docs" / "guide" / "security.md"
    (block,) = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        place = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    for old, new in (
        ("tcp://prices:5556", place), ("tcp://*:5556", place), ("--wait 9", "--wait 2"),
        (" bars-3 bars-4 bars-5 bars-6 bars-7 bars-8 bars-9", ""),
    ):  # fmt: skip
        assert old in block
        block = block.replace(old, new)
    shims = f"""
p2pmsg() {{ {sys.executable} -m p2pmsg "$@"; }}; export -f p2pmsg
ssh() {{ local host=$1; shift; mkdir -p $host; (cd $host; HOME=$PWD bash -c "$*"); }}
scp() {{ cp $1 ${{2/://}}; }}
"""
    done = subprocess.run(
        ["bash", "-c", f"{shims}{block}\nwait"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    dates = re.findall(r"^\S+ \S+ .*\d\d:\d\d:\d\d .*$", done.stdout, re.MULTILINE)
    assert len(dates) == 2, done.stdout + done.stderr
