"""Ctrl-C ends each example: a short line, status 130, no traceback, no process left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.endpoints import free_port
from tests.integration.peers import eventually

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"
SPARK = ("log_analytics", "spark_bars", "spark_sink", "spark_typed", "statsd_metrics")
ARGUMENTS = {
    "quickstart": ["ipc://{folder}/feed"],
    "task_queue": ["ipc://{folder}/queue"],
    "ordered_orders": ["ipc://{folder}/queue"],
    "scatter_gather": ["{folder}"],
    "aio_service": ["{folder}"],
    "market_feed": ["udp://239.255.1.1:{port}?interface=127.0.0.1"],
    "durable_consumer": [],
    "relay": [],
    "gui_latest": [],
    "typed": ["ipc://{folder}/typed"],
    "bridge_zeromq": [],
    "webhook_in": [],
    "webhook_out": [],
    "secure_feed": [],
    **dict.fromkeys(SPARK, ()),
}
NEEDED = {"webhook_in": "uvicorn", "webhook_out": "aiohttp"}
CHEAP = [name for name in ARGUMENTS if name not in SPARK]


def processes_of(session):
    """Processes of a session, except for those that have ended and wait for their parent."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            state, _, _, its_session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(its_session) == session and state != "Z":
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ")[:200])
    return found


def interrupt(command, seconds, folder, mark, *, again=None):
    """Send a program Ctrl-C, perhaps twice, so many seconds after it has begun to import `mark`.

    Python says what it imports; before, nothing can be done about Ctrl-C. No process stays. Return
    the status, and the lines on standard error.
    """
    folder.mkdir(exist_ok=True)
    errors = folder / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", *command],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        eventually(lambda: mark in errors.read_text() or process.poll() is not None)
        for pause in (seconds, again):
            if pause is not None and process.poll() is None:
                time.sleep(pause)
                os.killpg(process.pid, signal.SIGINT)
        status = process.wait(60)
        eventually(lambda: not processes_of(process.pid))
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.stdin.close()
        process.wait()
    said = errors.read_text(errors="replace").splitlines()
    return status, [line for line in said if not line.startswith("import time:")]


def interrupt_example(name, seconds, folder):
    places = {"folder": folder, "port": free_port()}
    arguments = [each.format(**places) for each in ARGUMENTS[name]]
    return interrupt([EXAMPLES / f"{name}.py", *arguments], seconds, folder, "| ctrl_c")


@pytest.mark.parametrize(
    ("name", "seconds"), [(name, 0.5) for name in CHEAP] + [(name, 0.0) for name in CHEAP[:3]]
)
def test_ctrl_c_ends_an_example(name, seconds, tmp_path):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name], reason="the extra webhooks is not installed")
    status, said = interrupt_example(name, seconds, tmp_path)
    assert not [line for line in said if "Traceback" in line or "Exception" in line], said
    ended = status in (0, -signal.SIGINT)  # Python takes the handlers away before it exits
    assert (status, said[-1:]) == (130, ["interrupted"]) or (ended and seconds), said


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SPARK)
def test_ctrl_c_ends_an_example_with_spark_and_its_jvm(name, tmp_path):
    if name == "statsd_metrics":
        pytest.importorskip("statsd", reason="the example's client is not here")
    for seconds in (0.1, 1.0, 2.5, 5.0, 10.0, 20.0):
        # Python's part of Spark may say something.
        status, said = interrupt_example(name, seconds, tmp_path / str(seconds))
        assert status in (0, 130), said
