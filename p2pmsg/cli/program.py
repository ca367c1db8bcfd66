"""Runs a command for a value: `pull` for each job, `respond` for each request."""

import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from tempfile import TemporaryFile
from typing import Any

from p2pmsg.cli.command import UsageError
from p2pmsg.toolkit import to_json

_TERMINATE_S = 5.0
_WAIT_S = 0.25
_SLICE_S = 5.0
"""How often something is done while a program runs."""
Process = subprocess.Popen[bytes]


class Running:
    """The programs that run in several threads; another thread stops them.

    Attributes:
        stopping: whether `stop` was called. A program that is added later is stopped at once.

    """

    def __init__(self) -> None:
        self.stopping = False
        self._processes: set[Process] = set()

    def add(self, process: Process) -> None:
        """Note that a program runs."""
        self._processes.add(process)
        if self.stopping:  # and `stop` may not have seen it
            stop(process)

    def discard(self, process: Process) -> None:
        """Note that a program has ended."""
        self._processes.discard(process)

    def stop(self) -> None:
        """Stop all of them, and each that is added from now on."""
        self.stopping = True
        for process in list(self._processes):
            stop(process)


def wait_for(event: threading.Event, timeout: float = math.inf) -> None:
    """Wait for an event in the main thread, a quarter of a second at a time.

    Python looks for signals before it waits: Ctrl-C or SIGTERM that comes between the two would be
    noticed at the end of the wait only.

    Args:
        event: what to wait for; a new one for nothing but a signal.
        timeout: how long at most, in seconds. Default: without end.

    """
    end_s = time.monotonic() + timeout
    while (left_s := end_s - time.monotonic()) > 0 and not event.wait(min(_WAIT_S, left_s)):
        pass


def repeat(
    report: Callable[[], object], every_s: float, wait: Callable[[float], bool] | None = None
) -> None:
    """Report every so many seconds, and never where that is 0, until a signal comes.

    `wait`: waits for so many seconds, and returns whether it is to end.
    """
    wait = wait or threading.Event().wait
    due_s = time.monotonic() + every_s
    while not wait(_WAIT_S):
        if every_s and time.monotonic() >= due_s:
            due_s += every_s
            report()


def check_program(words: Sequence[str]) -> None:
    """Raise `UsageError` if there is no such command."""
    if words and shutil.which(words[0]) is None:
        raise UsageError(f"there is no command {words[0]!r} that can be run")


def run_program(
    words: Sequence[str],
    value: Any,
    *,
    timeout: float | None,
    environment: Mapping[str, str] | None = None,
    output: int | None = None,
    running: Running | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> tuple[str, int, bytes]:
    """Run a command with a value on its standard input.

    Args:
        words: the command and its arguments.
        value: text and bytes are given as they are, anything else as JSON.
        timeout: kill it after so many seconds.
        environment: instead of this process's own.
        output: `subprocess.PIPE` to return its output.
        running: has the process while it runs, for another thread to stop it.
        meanwhile: called every five seconds while it runs.

    Returns:
        What went wrong (empty for status 0), the exit status, and the output.

    """
    running = Running() if running is None else running
    end_s = math.inf if timeout is None else time.monotonic() + timeout
    printed, is_late = None, False
    with TemporaryFile() as source:
        source.write(_input(value))
        source.seek(0)
        process = subprocess.Popen(words, stdin=source, stdout=output, env=environment)
        try:
            running.add(process)
            while printed is None and process.returncode is None:
                left_s = max(0.0, end_s - time.monotonic())
                try:
                    printed = process.communicate(timeout=min(left_s, _SLICE_S))[0]
                except subprocess.TimeoutExpired:
                    if is_late := time.monotonic() >= end_s:
                        process.kill()
                        process.communicate()
                    elif meanwhile is not None:
                        meanwhile()
        finally:
            if process.returncode is None:
                stop(process)
            if process.stdout is not None:
                process.stdout.close()
            running.discard(process)
    status = process.returncode
    if is_late:
        return f"killed after {timeout} s", status, b""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return how if status else "", status, printed or b""


def stop(process: Process) -> None:
    """Terminate a process; kill it if it goes on for five seconds."""
    process.terminate()
    try:
        process.wait(_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _input(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else to_json(value).encode()
