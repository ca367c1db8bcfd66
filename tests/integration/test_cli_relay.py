"""`p2pmsg relay`, run as a user does."""

import re

from p2pmsg import Subscriber
from tests.integration.commands import command, run_here
from tests.integration.peers import eventually


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
