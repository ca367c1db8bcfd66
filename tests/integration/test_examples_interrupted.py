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


def interrupt(name, seconds, folder):
    """Run an example and send Ctrl-C so many seconds after it has begun to import what it needs."""
    arguments = [
        each.format(folder=folder, port=free_port() if "{port}" in each else 0)
        for each in ARGUMENTS[name]
    ]
    errors = folder / "errors"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", EXAMPLES / f"{name}.py", *arguments],
            stdout=subprocess.DEVNULL, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        # Python says what it has imported. Before that module nothing can be done about Ctrl-C.
        eventually(lambda: "| ctrl_c" in errors.read_text() or process.poll() is not None)
        time.sleep(seconds)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        status = process.wait(60)
        eventually(lambda: not processes_of(process.pid))
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
    said = [
        line for line in errors.read_text(errors="replace").splitlines()
        if not line.startswith("import time:")
    ]  # fmt: skip
    return status, said


def check(name, seconds, folder):
    if name in NEEDED:
        pytest.importorskip(NEEDED[name], reason="the extra webhooks is not installed")
    status, said = interrupt(name, seconds, folder)
    if any("Traceback" in line or "Exception" in line for line in said):
        pytest.fail("\n".join(said))
    if status == 0:
        return False  # it was quicker
    assert status == 130, said
    assert said[-1] == "interrupted"
    return True


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        pytest.param(name, seconds, marks=[])
        for seconds, names in ((0.5, CHEAP), (0.0, CHEAP[:3]))
        for name in names
    ],
)
def test_ctrl_c_ends_an_example(name, seconds, tmp_path):
    struck = check(name, seconds, tmp_path)
    assert struck or seconds


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SPARK)
def test_ctrl_c_ends_an_example_with_spark_and_its_jvm(name, tmp_path):
    if name == "statsd_metrics":
        pytest.importorskip("statsd", reason="the example's client is not here")
    for seconds in (0.1, 1.0, 2.5, 5.0, 10.0, 20.0):
        folder = tmp_path / str(seconds)
        folder.mkdir()
        status, said = interrupt(name, seconds, folder)  # Python's part of Spark may say something
        assert status in (0, 130), said
