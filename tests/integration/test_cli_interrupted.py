"""Ctrl-C ends each command at any moment: status 130, no traceback, no process left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.endpoints import free_port
from tests.integration.commands import command
from tests.integration.peers import eventually
from tests.integration.test_examples_interrupted import processes_of

pytestmark = pytest.mark.long

SCRIPT = Path(sys.executable).with_name("p2pmsg")
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LONG_RUNNING = {
    "demo": ["--no-spark", "--trades", "2000"],
    "pub": ["tcp://127.0.0.1:0", "t"],
    "sub": ["tcp://127.0.0.1:{port}"],
    "listen": ["udp://239.255.1.9:{port}?interface=127.0.0.1"],
    "relay": ["--from", "tcp://127.0.0.1:{port}", "--listen", "ipc://{folder}/relay"],
    "bridge": ["--from", "zmq+sub://127.0.0.1:{port}", "--to", "ipc://{folder}/stream"],
    "serve": ["tcp://127.0.0.1:{port}", "--listen", "127.0.0.1:0"],
    "hook out": [
        "tcp://127.0.0.1:{port}",
        "http://127.0.0.1:{port}/",
        "--state",
        "{folder}/s",
        "--allow",
        "127.0.0.0/8",
    ],
    "hook in": ["--listen", "127.0.0.1:0", "--publish", "ipc://{folder}/p", "--secret", "{secret}"],
    "push": ["tcp://127.0.0.1:0"],
    "push --acknowledge batch": ["tcp://127.0.0.1:0"],
    "pull": ["tcp://127.0.0.1:{port}"],
    "pull --acknowledge batch": ["tcp://127.0.0.1:{port}"],
    "request": ["tcp://127.0.0.1:{port}", "t", "v", "--timeout", "30"],
    "respond": ["tcp://127.0.0.1:{port}", "t", "--echo"],
    "statsd": ["--listen", "udp://127.0.0.1:0", "--publish", "ipc://{folder}/statsd"],
}
SHORT = {
    "capacity": ["--rate", "50000", "--size", "128", "--disk", "500GB"],
    "log ls": ["{folder}"],
    "dead-letters": ["ls", "tcp://127.0.0.1:{port}"],
    "--version": [],
}
COMMANDS = LONG_RUNNING | SHORT


class Interrupted:
    """A command that gets Ctrl-C, once or twice, so many seconds after its package is looked at.

    Before that nothing can be done about Ctrl-C: Python starts, and the script of `pip` as well.
    """

    def __init__(self, name, folder, *, as_module=False):
        folder.mkdir()
        self.name = name
        self.errors = folder / "errors"
        places = {"folder": folder, "port": free_port(), "secret": SECRET}
        arguments = [each.format(**places) for each in COMMANDS[name]]
        program = ["-m", "p2pmsg"] if as_module else [SCRIPT]
        with self.errors.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-X", "importtime", *program, *name.split(), *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=file,
                start_new_session=True,
            )  # fmt: skip

    def is_on(self):
        return " p2pmsg" in self.errors.read_text()

    def strike(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)

    def check(self):
        """Return whether Ctrl-C came before the command had ended."""
        status = self.process.wait(60)
        eventually(lambda: not processes_of(self.process.pid))
        said = [
            line for line in self.errors.read_text(errors="replace").splitlines()
            if not line.startswith("import time:")
        ]  # fmt: skip
        assert not [line for line in said if "Traceback" in line or "Exception" in line], said
        assert all(line.startswith("p2pmsg") for line in said), said
        is_ended = status in (130, -signal.SIGINT)  # a shell shows both as 130
        assert is_ended or self.name in SHORT, (status, said)
        return is_ended

    def finish(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.stdin.close()
        self.process.wait()


def interrupt(name, seconds, folder, *, again=None, as_module=False):
    struck = Interrupted(name, folder, as_module=as_module)
    try:
        eventually(lambda: struck.is_on() or struck.process.poll() is not None)
        time.sleep(seconds)
        struck.strike()
        if again is not None:
            time.sleep(again)
            struck.strike()
        return struck.check()
    finally:
        struck.finish()


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_ctrl_c_ends_a_command(name, tmp_path):
    assert interrupt(name, 0.4, tmp_path / name)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.timeout(300)
def test_ctrl_c_ends_a_command_at_any_moment(name, tmp_path):
    for number in range(30):
        again = (None, 0.001, 0.03)[number % 3]
        interrupt(name, 0.02 * number, tmp_path / str(number), again=again, as_module=number % 2)


def test_a_jobs_command_that_does_not_end_is_killed_with_the_puller(tmp_path):
    place = f"ipc://{tmp_path}/queue"
    mark = tmp_path / "begun"
    script = f"trap '' INT TERM; touch {mark}; while :; do sleep 0.1; done"
    with (
        command(tmp_path, "push", place) as push,
        command(tmp_path, "pull", place, "--", "sh", "-c", script) as pull,
    ):
        push.write(b"job\n")
        eventually(mark.exists)
        pull.interrupt()
        assert pull.wait() == 130
        assert pull.errors() == ""
        eventually(lambda: not pull.processes())
