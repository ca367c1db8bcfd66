"""Apps as processes: `p2pmsg run`, signals in the middle of each kind of handler, kills."""

import itertools
import os
import signal
import subprocess
import sys
import time

import pytest

import p2pmsg
from p2pmsg import cli
from tests.integration.commands import P2PMSG
from tests.integration.peers import ROOT, eventually

HEAD = """
import asyncio, os, sys, threading, time, p2pmsg
from p2pmsg.app import App, Retry
app = p2pmsg.App(stop_timeout=float(os.environ.get("STOP", 10)))
def say(*words):
    print(*words, flush=True)
app.on_start(lambda: say("started"))
app.on_stop(lambda: say("stopped"))
async def until_it_stops():
    while not app._run.stopping:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
"""


@pytest.fixture
def run(tmp_path, opened):
    """Start `p2pmsg run` on a module with this body; lines of its output can be read."""

    def start(body, *arguments, module="service", **environment):
        (tmp_path / f"{module}.py").write_text(HEAD + body)
        child = subprocess.Popen(
            [*P2PMSG, "run", f"{module}:app", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )  # fmt: skip
        opened.callback(child.communicate)
        opened.callback(child.kill)
        return child

    return start


def lines_to(child, last):
    """Read up to the line that begins so."""
    found = []
    while not found or not found[-1].startswith(last):
        line = child.stdout.readline()
        assert line, (found, child.stderr.read())
        found.append(line.rstrip("\n"))
    return found


HANDLERS = {
    "message": """
@app.subscriber(PLACE, cursor="cursor", start="earliest")
def on(value):
    say("begun")
    while not app._run.stopping:
        time.sleep(0.01)
    time.sleep(0.05)
    say("done")
""",
    "job": """
@app.worker(PLACE)
async def on(value):
    say("begun")
    await until_it_stops()
    say("done")
""",
    "tick": """
@app.timer(0.01)
async def on():
    say("begun")
    await until_it_stops()
    say("done")
""",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "number"),
    [*zip(HANDLERS, itertools.cycle([signal.SIGTERM, signal.SIGINT]))],
)
def test_a_signal_lets_the_handler_finish(run, opened, endpoint, tmp_path, kind, number):
    peer = None
    if kind == "message":
        peer = opened.enter_context(p2pmsg.Publisher(endpoint))
        peer.publish_many("t", [1, 2, 3])
    elif kind == "job":
        peer = opened.enter_context(p2pmsg.Pusher(endpoint))
        peer.push(1)
    child = run(f"PLACE = {endpoint!r}\n{HANDLERS[kind]}")
    assert lines_to(child, "begun") == ["started", "begun"]
    child.send_signal(number)
    output, errors = child.communicate(timeout=60)

    assert output.split() == ["done", "stopped"]
    assert child.returncode == 0
    assert "Traceback" not in errors
    if kind == "job":
        eventually(lambda: peer.stats().done == 1)
    elif kind == "message":  # the first was committed, the others come again
        assert "2 that had been read are not handled" in errors
        with p2pmsg.Subscriber(endpoint, cursor=tmp_path / "cursor") as subscriber:
            assert subscriber.receive(timeout=60).value == 2


STUCK = """
@app.timer(0.01)
def stuck():
    say("begun")
    time.sleep(1000)
"""


@pytest.mark.long
def test_a_handler_that_never_ends_is_named_and_the_process_ends(run):
    child = run(STUCK, STOP="0.1")
    lines_to(child, "begun")
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=60)

    assert child.returncode == 1
    assert "stuck did not end within 0.1 s after the app was to stop" in errors
    assert "Traceback" not in errors


@pytest.mark.rounds(1, 30)
def test_ctrl_c_at_any_moment_ends_it_without_a_traceback(run, rounds):
    for number in range(rounds):
        child = run(HANDLERS["tick"], "--stop-timeout", "60", PYTHONPROFILEIMPORTTIME="1")
        while " p2pmsg.cli.command" not in (line := child.stderr.readline()):
            assert line  # before the command line is imported, Python itself answers Ctrl-C
        time.sleep(0.1 + 0.5 * number / rounds)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)

        said = [line for line in errors.splitlines() if "import time:" not in line]
        assert child.returncode in (0, 130, -signal.SIGINT)  # a shell shows both as 130
        assert all(line.startswith("p2pmsg run: ") for line in said), said


def test_a_failure_that_stops_it_has_status_1_and_one_line(run):
    body = """
@app.timer(0.01, on_error="stop")
async def fail():
    raise ValueError("no good")
"""
    child = run(body)
    _, errors = child.communicate(timeout=60)

    assert child.returncode == 1
    assert errors.rstrip().splitlines()[-1] == (
        "p2pmsg run: fail failed with a tick: ValueError: no good"
    )


CONSUMER = """
@app.subscriber(PLACE, cursor="cursor", start="earliest", concurrency=4, by_key=True)
async def on(value: int):
    await asyncio.sleep(0.001)
    say(value)
"""


@pytest.mark.rounds(2, 20)
def test_kills_and_restarts_lose_nothing(run, make_publisher, endpoint, tmp_path, rounds):
    publisher, total = make_publisher(endpoint), 100 * rounds
    keys = [f"k{number % 7}" for number in range(total)]
    publisher.publish_many("t", [*range(total)], keys=keys)
    body, seen = f"PLACE = {endpoint!r}\n{CONSUMER}", []
    for number in range(rounds):
        child = run(body)
        lines_to(child, "started")
        seen += [int(child.stdout.readline()) for _ in range(60)]
        child.send_signal(signal.SIGTERM if number % 3 == 2 else signal.SIGKILL)
        seen += map(int, child.stdout.read().replace("stopped", "").split())
        child.wait()
    child = run(body)
    lines_to(child, "started")
    while len(set(seen)) < total:
        seen.append(int(child.stdout.readline()))
    child.send_signal(signal.SIGTERM)
    output, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors

    seen += map(int, output.replace("stopped", "").split())
    assert set(seen) == set(range(total))  # at least once
    assert len(seen) < 2 * total  # and not again what was committed
    with p2pmsg.Subscriber(endpoint, cursor=tmp_path / "cursor") as subscriber:
        publisher.publish("t", "last")
        assert subscriber.receive(timeout=60).value == "last"


@pytest.mark.parametrize(
    ("target", "source", "text"),
    [
        ("nowhere:app", "", "the module 'nowhere' cannot be imported: ModuleNotFoundError("),
        ("wrong.py", "", "not a file"),
        ("wrong:", "app = 5", "'wrong' has no p2pmsg.App 'app'; it has no app"),
        ("wrong:service", "import p2pmsg\none = p2pmsg.App()",
         "'wrong' has no p2pmsg.App 'service'; its apps are one"),
        ("wrong", "1 / 0", "the module 'wrong' cannot be imported: ZeroDivisionError"),
        ("wrong", "import nowhere", "the module 'wrong' cannot be imported: ModuleNotFoundError"),
        ("wrong", "raise SystemExit", "has called sys.exit"),
        ("wrong", "import p2pmsg\napp = p2pmsg.App()", "'wrong' has no handlers"),
    ],
)  # fmt: skip
def test_a_wrong_app_is_named_in_one_line(tmp_path, monkeypatch, capsys, target, source, text):
    (tmp_path / "wrong.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("wrong", None)

    assert cli.main(["run", target]) == 2

    errors = capsys.readouterr().err
    assert text in errors.splitlines()[-1]
    assert ("line 1, in <module>" in errors) == (source in ("1 / 0", "import nowhere"))
