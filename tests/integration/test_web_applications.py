"""Each program of the guide's page on web applications runs under the server that it is for."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.integration.peers import DEADLINE_S
from tests.integration.test_guide import GUIDE, blocks

PAGE = (GUIDE / "guide" / "web_applications.md").read_text()
FILES = {re.match(r"# ([\w. ]+)\n", program)[1]: program for program in blocks(PAGE, "python")}
COMMANDS = {
    "shop": "uvicorn shop:app --workers 2",
    "shop_preloaded": "gunicorn shop:app --workers 2 --preload "
    "--worker-class uvicorn.workers.UvicornWorker",
    "shop_flask": "gunicorn shop_flask:app --workers 2 --preload",
    "gevent_worker": "gunicorn shop_flask:app --workers 2 --worker-class gevent_worker.Worker",
}
COUNT = 20
FAR_S = 100


@pytest.fixture
def folder(tmp_path):
    for name, program in FILES.items():
        (tmp_path / name).write_text(program)
    return tmp_path


@contextlib.contextmanager
def running(command, folder):
    """Start a server in a folder; it ends by SIGTERM, with status 0."""
    module = command[0]
    with open(folder / "said", "w") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *command[1:]], cwd=folder, stdout=said, stderr=said
        )
    try:
        yield
        child.send_signal(signal.SIGTERM)
        assert child.wait(DEADLINE_S) == 0, (folder / "said").read_text()
    finally:
        child.kill()
        child.wait()
    assert "Traceback" not in (folder / "said").read_text()


def run(name, folder):
    """Run a program of the page; return what it prints."""
    command = [sys.executable, name]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FAR_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def check_served(folder, name):
    """Post orders to an application; the page's reader gets all of them."""
    command = COMMANDS[name].split()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    at = ["--port", str(port)] if command[0] == "uvicorn" else ["--bind", f"127.0.0.1:{port}"]
    with running([*command, *at], folder):
        for number in range(COUNT):
            post(f"http://127.0.0.1:{port}/orders/{number}")
        assert run("reader.py", folder) == f"{[*range(COUNT)]}\n"


def post(url):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30).close()
            return
        except OSError:  # it has not begun yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_fastapi_under_uvicorn(folder):
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    check_served(folder, "shop")


@pytest.mark.long
def test_fastapi_under_gunicorn_preloaded(folder):
    pytest.importorskip("fastapi", reason="fastapi is not installed")
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    check_served(folder, "shop_preloaded")


def test_flask_under_gunicorn_preloaded(folder):
    pytest.importorskip("flask", reason="flask is not installed")
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    check_served(folder, "shop_flask")


@pytest.mark.long
def test_flask_under_gunicorn_with_gevent(folder):
    for each in ("flask", "gunicorn", "gevent"):
        pytest.importorskip(each, reason=f"{each} is not installed")
    check_served(folder, "gevent_worker")


def test_multiprocessing(folder):
    expected = [f"{method} [45, 46]" for method in ("fork", "spawn", "forkserver")]
    assert run("pool.py", folder).splitlines() == expected


def test_the_commands_are_those_of_the_page():
    assert [each.strip() for each in blocks(PAGE, "sh")] == [*COMMANDS.values()]
