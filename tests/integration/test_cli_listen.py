"""`p2pmsg listen`, as a process."""

import json
import threading
import time

import pytest

import p2pmsg
from tests.endpoints import free_port
from tests.integration.commands import command, run
from tests.integration.peers import eventually


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
