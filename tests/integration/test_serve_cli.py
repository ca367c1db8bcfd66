"""`p2pmsg serve`: as a user starts, uses and ends it; and a real browser across a restart."""

import contextlib
import json
import re
import shutil
import signal
import subprocess

import pytest

pytest.importorskip("uvicorn", reason="serving over HTTP needs uvicorn (extra http)")

from p2pmsg import LogConfig
from tests.integration.commands import ENDINGS, command, run_here
from tests.integration.peers import eventually
from tests.integration.test_serve import TOKEN, Events, ask, values

HERE = ("--listen", "127.0.0.1:0")


def port_of(running):
    eventually(lambda: " serves " in running.said())
    return int(re.search(r"http://127\.0\.0\.1:(\d+)/", running.said())[1])


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_command_serves_publishes_and_ends_well(tmp_path, ending):
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
            running.process.send_signal(ENDINGS[ending][0])
            assert events.next() is None
        assert running.wait(60) == {"Ctrl-C": 130, "SIGTERM": 0}[ending]
        assert "1 event streams, 1 messages received, 1 published" in running.said()
        assert "Traceback" not in running.said()


@pytest.mark.long
def test_what_is_within_the_limit_is_published(tmp_path, make_subscriber):
    posted = f"ipc://{tmp_path}/posted"
    with command(tmp_path, "serve", *HERE, "--publish", posted) as running:
        port = port_of(running)
        for size, status in ((2**20, 200), (2**20 + 1, 413)):
            assert ask(port, "POST", "/topics/a", bytes(size))[0] == status
        numbers = b"[" + b",".join([b"0.1"] * (2**18 - 1)) + b"]"
        headers = {"content-type": "application/json"}
        assert ask(port, "POST", "/topics/a", numbers, **headers)[0] == 200
        with make_subscriber(posted, start="earliest") as subscriber:
            sizes = [len(subscriber.receive(timeout=60).value) for _ in range(2)]
    assert sizes == [2**20, 2**18 - 1]


@pytest.mark.long
@pytest.mark.parametrize("ending", ["Ctrl-C", pytest.param("SIGTERM", marks=pytest.mark.long)])
def test_it_ends_well_while_browsers_wait_for_what_they_missed(start, endpoint, ending):
    """They wait for a publisher that does not answer, most of the reads for a thread first."""
    publisher = start("pub", endpoint, "a")
    running = start("serve", *HERE, endpoint)
    port = port_of(running)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Events(port, "/topics/a"))
        eventually(lambda: json.loads(ask(port, "GET", "/stats")[2])["connected"] == 1)
        publisher.write(b"1\n2\n3\n")
        first.messages(3)
        publisher.process.send_signal(signal.SIGSTOP)
        session = first.last_id.partition(":")[0]
        missing = [
            stack.enter_context(Events(port, "/topics/a", f"{session}:{last}"))
            for last in (0, 9) * 20
        ]
        running.process.send_signal(ENDINGS[ending][0])
        assert running.wait(60) == {"Ctrl-C": 130, "SIGTERM": 0}[ending]
        for events in (first, *missing):
            assert {kind for kind, _ in iter(events.next, None)} <= {"id"}
    said = running.errors().splitlines()
    assert len(said) == 2, said  # where it serves, and the summary
    assert said[1].startswith("p2pmsg serve: 41 event streams, 3 messages received")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "endpoint"),
        (["tcp://127.0.0.1:1", "--listen", "0.0.0.0:0"], "--token-file"),
        (["tcp://127.0.0.1:1", "--listen", "nonsense"], "HOST:PORT"),
        (["tcp://127.0.0.1:1", "--log", "x"], "--publish"),
        (["tcp://127.0.0.1:1", "--query-token"], "--token-file"),
        (
            ["tcp://127.0.0.1:1", "--token-file", "/nothing"],
            "argument --token-file: cannot read '/nothing': No such file or directory",
        ),
        (["tcp://127.0.0.1:1", "--token-file", "/"], "cannot read '/': Is a directory"),
        (["tcp://127.0.0.1:1", "--allow-origin", "*", *HERE], "allow_origins"),
        (["tcp://127.0.0.1:1", "--topics", "a\0"], "topic"),
        (["tcp://", *HERE], "tcp://"),
        (["tcp://127.0.0.1:1", "--allow-origin", "app.example.com", *HERE], "allow_origins"),
        (["tcp://127.0.0.1:1", "--allow-origin", "https://a.example/b", *HERE], "allow_origins"),
        (["tcp://127.0.0.1:1", "--allow-host", "http://a", *HERE], "allow_hosts"),
        (["tcp://127.0.0.1:1", "--allow-host", "a.example:8900", *HERE], "allow_hosts"),
        (["tcp://127.0.0.1:1", "--cert", __file__, "--cert-key", __file__, *HERE], "cert"),
        (["tcp://127.0.0.1:1", *HERE, "--topics", *(f"{n:0200d}" for n in range(400))], "topics"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line(arguments, named):
    ended = run_here("serve", *arguments)
    said = ended.stderr.decode()
    assert ended.returncode == 2, said
    assert named in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.long
def test_tokens_are_read_from_a_file(tmp_path, make_publisher):
    publisher = make_publisher()
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    arguments = (publisher.endpoint, "--token-file", str(tokens))
    with command(tmp_path, "serve", *HERE, *arguments) as running:
        port = port_of(running)
        assert ask(port, "GET", "/stats")[0] == 401
        assert ask(port, "GET", "/stats", authorization=f"Bearer {TOKEN}")[0] == 200
        assert TOKEN not in running.said()


CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


class Browser:
    """A headless Chromium, by the WebDriver protocol."""

    def __init__(self, folder):
        self._logged = folder / "driver.out"
        with self._logged.open("wb") as out:
            self._driver = subprocess.Popen([DRIVER, "--port=0"], stdout=out, stderr=out)
        options = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={folder}/profile"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        try:
            eventually(lambda: "successfully on port " in self._logged.read_text())
            self._port = int(
                re.findall(r"successfully on port (\d+)", self._logged.read_text())[-1]
            )
            self._session = self._ask("POST", "/session", wanted)["sessionId"]
        except BaseException:
            self._driver.kill()
            raise

    def _ask(self, method, path, fields=None):
        body = None if fields is None else json.dumps(fields)
        status, _, answer = ask(self._port, method, path, body)
        assert status == 200, answer
        return json.loads(answer)["value"]

    def open(self, url):
        self._ask("POST", f"/session/{self._session}/url", {"url": url})

    def evaluate(self, script):
        place = f"/session/{self._session}/execute/sync"
        return self._ask("POST", place, {"script": script, "args": []})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ask("DELETE", f"/session/{self._session}")
        self._driver.terminate()
        self._driver.wait(60)


ROWS = "return [...document.querySelectorAll('#rows tr')].map(row => row.cells[2].textContent)"


@pytest.mark.long
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium or chromedriver is not installed")
def test_a_browser_reads_the_page_across_restarts(tmp_path, make_publisher):
    """Of the publisher, and of the server, to which it connects again by itself."""
    log = LogConfig(tmp_path / "log")
    publisher = make_publisher(log=log)
    endpoint, wanted = publisher.endpoint, []

    def publish(when, browser):
        for number in range(30):
            wanted.append(json.dumps(f"{when} {number}"))
            publisher.publish("a", f"{when} {number}")
        eventually(lambda: len(browser.evaluate(ROWS)) >= len(wanted))
        assert browser.evaluate(ROWS)[::-1] == wanted

    with command(tmp_path, "serve", "--listen", "127.0.0.1:0", endpoint) as running:
        port = port_of(running)
        publisher.wait_for_subscribers(1, timeout=60)
        browser = Browser(tmp_path)
        try:
            browser.open(f"http://127.0.0.1:{port}/#a")
            eventually(lambda: json.loads(ask(port, "GET", "/stats")[2])["connections"] == 1)
            publish("before", browser)
            publisher.close()
            publisher = make_publisher(endpoint, log=log)
            publish("after", browser)
        except BaseException:
            browser.__exit__()
            raise
    publisher.publish("a", "meanwhile")
    wanted.append('"meanwhile"')
    with browser, command(tmp_path, "serve", "--listen", f"127.0.0.1:{port}", endpoint) as running:
        port_of(running)
        publish("again", browser)
        assert "0 lost" in browser.evaluate("return document.getElementById('state').textContent")
