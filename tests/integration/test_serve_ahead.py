"""`p2pmsg serve`, and browsers that have got more than the gateway that they come to."""

import asyncio
import json
import re
import shutil
import threading

import pytest

from p2pmsg import LogConfig
from p2pmsg.http import GatewayConfig
from tests.endpoints import lasting_endpoint
from tests.integration.commands import command, run_here
from tests.integration.peers import eventually
from tests.integration.test_serve import Events, ask, serving, values

pytest.importorskip("uvicorn", reason="serving over HTTP needs uvicorn (extra http)")


@pytest.fixture
def publisher(make_publisher, tmp_path):
    return make_publisher(log=LogConfig(tmp_path / "log"))


class Stall:
    """After the next batch a gateway reads nothing more until `end`: as one that is slow."""

    def __init__(self, app):
        self._upstream = app._upstream
        self._saved = self._upstream.refresh
        self._subscriber = self._upstream._subscriber
        self._over = threading.Event()
        self._upstream.refresh = lambda: None
        self._upstream._subscriber = self

    def __getattr__(self, name):
        return getattr(self._subscriber, name)

    async def receive_many(self, count):
        while not self._over.is_set():
            await asyncio.sleep(0.001)
        return await self._subscriber.receive_many(count)

    def end(self):
        self._upstream.refresh = self._saved
        self._over.set()


def sequences(events):
    assert {kind for kind, _ in events} == {"message"}, events
    return [data["sequence"] for _, data in events]


def place_of(port, path, publish, count):
    """Return the id of a browser that has got what is published meanwhile."""
    with Events(port, path).wait_ready() as events:
        publish()
        events.messages(count)
        return events.last_id


def begin(port, path, place):
    """Connect with an id, and read as far as the gateway begins to look what is missing."""
    events = Events(port, path, place)
    assert events.next() == ("id", place)
    return events


@pytest.mark.parametrize("kind", ["publisher", "relay"])
def test_it_goes_on_where_it_was_at_a_gateway_that_has_read_less(publisher, make_relay, kind):
    asked = publisher if kind == "publisher" else make_relay(publisher.endpoint)
    with serving(publisher.endpoint) as (first, _), serving(asked.endpoint) as (second, slow):
        publisher.wait_for_subscribers(2, timeout=60)
        eventually(lambda: slow.stats().connected == 1)
        stall = Stall(slow)

        def publish():
            publisher.publish("a", 0)
            eventually(lambda: slow.stats().messages == 1)
            for number in range(1, 100):
                publisher.publish("a", number)

        place = place_of(first, "/topics/a", publish, 100)
        with begin(second, "/topics/a", place) as events:
            for number in range(100, 150):
                publisher.publish("a", number)
            stall.end()
            assert sequences(events.messages(50)) == list(range(100, 150))
            publisher.publish("a", 150)
            assert sequences(events.messages(1)) == [150]


def test_a_publisher_that_is_really_at_an_earlier_place_is_reported(make_publisher, tmp_path):
    log, endpoint = LogConfig(tmp_path / "log"), lasting_endpoint()
    publisher = make_publisher(endpoint, log=log)
    with serving(endpoint) as (port, _):
        publisher.wait_for_subscribers(1, timeout=60)

        def publish():
            nonlocal publisher
            for number in range(50):
                publisher.publish("a", number)
            publisher.close()
            shutil.copytree(tmp_path / "log", tmp_path / "copy")
            publisher = make_publisher(endpoint, log=log)
            for number in range(50, 100):
                publisher.publish("a", number)

        place = place_of(port, "/topics/a", publish, 100)
    publisher.close()
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")
    publisher = make_publisher(endpoint, log=LogConfig(tmp_path / "log", moved=True))
    publisher.publish("a", "new")
    config = GatewayConfig(resume_timeout=1.0)
    with serving(endpoint, config=config) as (port, _):
        publisher.wait_for_subscribers(1, timeout=60)  # else it may count as gone
        with Events(port, "/topics/a", place) as events:
            ((kind, data),) = events.messages(1)
            assert (kind, data["start"], data["stop"]) == ("rewound", 51, 100)
            publisher.publish("a", "newer")
            assert values(events.messages(1)) == ["newer"]


HERE = ("--listen", "127.0.0.1:0")


def port_of(running):
    eventually(lambda: " serves " in running.said())
    return int(re.search(r"http://127\.0\.0\.1:(\d+)/", running.said())[1])


def test_the_command_serves_publishes_and_ends_well(tmp_path):
    arguments = ("--publish", f"ipc://{tmp_path}/posted", "--log", str(tmp_path / "log"))
    with command(tmp_path, "serve", *HERE, *arguments) as running:
        port = port_of(running)
        eventually(lambda: ask(port, "GET", "/health")[0] == 200)
        with Events(port, "/topics/a").wait_ready() as events:
            status, _, answer = ask(
                port, "POST", "/topics/a", b"[1]", **{"content-type": "application/json"}
            )
            assert (status, json.loads(answer)["sequence"]) == (200, 0)
            assert values(events.messages(1)) == [[1]]
            running.process.terminate()
            assert events.next() is None
        assert running.wait(60) == 0
        assert "1 event streams, 1 messages received, 1 published" in running.said()
        assert "Traceback" not in running.said()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tcp://127.0.0.1:1", "--listen", "0.0.0.0:0"], "--token-file"),
        (["tcp://127.0.0.1:1", "--log", "x"], "--publish"),
        (["tcp://127.0.0.1:1", "--query-token"], "--token-file"),
        (
            ["tcp://127.0.0.1:1", "--token-file", "/nothing"],
            "argument --token-file: cannot read '/nothing': No such file or directory",
        ),
        (["tcp://127.0.0.1:1", "--allow-origin", "*", *HERE], "allow_origins"),
        (["tcp://127.0.0.1:1", "--allow-host", "http://a", *HERE], "allow_hosts"),
        (["tcp://127.0.0.1:1", "--cert", __file__, "--cert-key", __file__, *HERE], "cert"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line(arguments, named):
    ended = run_here("serve", *arguments)
    said = ended.stderr.decode()
    assert ended.returncode == 2, said
    assert named in said
    assert len(said.strip().splitlines()) == 1
