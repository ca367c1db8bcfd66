"""`p2pmsg serve`: as a user starts, uses and ends it; and a real browser across a restart."""

import json
import re

import pytest

pytest.importorskip("uvicorn", reason="serving over HTTP needs uvicorn (extra http)")

from tests.integration.commands import command, run_here
from tests.integration.peers import eventually
from tests.integration.test_serve import Events, ask, values

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
