"""Ctrl-C ends each command at any moment: status 130, no traceback, no process left."""

import signal
import sys
from pathlib import Path

import pytest

from tests.endpoints import free_port
from tests.integration.commands import command
from tests.integration.peers import eventually
from tests.integration.test_examples_interrupted import interrupt

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
    "log ls": ["{folder}"],
    "dead-letters": ["ls", "tcp://127.0.0.1:{port}"],
    "--version": [],
}
COMMANDS = LONG_RUNNING | SHORT


def interrupt_command(name, seconds, folder, *, again=None, as_module=False):
    """Return whether Ctrl-C came before the command had ended.

    It comes once the command line is imported; before that, Python itself answers it.
    """
    places = {"folder": folder, "port": free_port(), "secret": SECRET}
    arguments = [each.format(**places) for each in COMMANDS[name]]
    program = ["-m", "p2pmsg"] if as_module else [SCRIPT]
    status, said = interrupt(
        [*program, *name.split(), *arguments], seconds, folder, " p2pmsg.cli.command", again=again
    )
    assert not [line for line in said if "Traceback" in line or "Exception" in line], said
    assert all(line.startswith("p2pmsg") for line in said), said
    is_ended = status in (130, -signal.SIGINT)  # a shell shows both as 130
    assert is_ended or name in SHORT, (status, said)
    return is_ended


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_ctrl_c_ends_a_command(name, tmp_path):
    assert interrupt_command(name, 0.4, tmp_path / "it")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.timeout(300)
def test_ctrl_c_ends_a_command_at_any_moment(name, tmp_path):
    for number in range(30):
        again = (None, 0.001, 0.03)[number % 3]
        folder = tmp_path / str(number)
        interrupt_command(name, 0.02 * number, folder, again=again, as_module=number % 2)


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
