"""Runs a command for a value: `pull` for each job, `respond` for each request."""

import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from p2pmsg.cli.command import UsageError
from p2pmsg.json_text import to_json
from transports.signals import defer_signals

_TERMINATE_S = 5.0
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
    begun: list[Process] = []

    def begin() -> None:
        begun.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, env=environment))
        running.add(begun[0])

    try:
        defer_signals(begin)  # Ctrl-C in the middle of it would leave a process that nobody knows
        process = begun[0]
        with _Watch(process, timeout, meanwhile) as watch:
            printed, _ = process.communicate(_input(value))
    except BaseException:
        for process in begun:
            stop(process)
            _close_pipes(process)
        raise
    finally:
        for process in begun:
            running.discard(process)
    status = process.returncode
    if watch.killed:
        return f"killed after {timeout} s", status, b""
    how = f"signal {-status}" if status < 0 else f"exit status {status}"
    return how if status else "", status, printed or b""


class _Watch:
    """Kills a program that takes too long, and does something else while it runs.

    In a thread of its own: `communicate` takes no more than 24 days, and where it is called again
    after a timeout it forgets what it has not given to the program yet.

    Attributes:
        killed: whether it took too long.

    """

    def __init__(
        self, process: Process, timeout: float | None, meanwhile: Callable[[], object] | None
    ) -> None:
        self.killed = False
        self._process = process
        self._end_s = math.inf if timeout is None else time.monotonic() + timeout
        self._meanwhile = meanwhile
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="p2pmsg-program", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while True:
            left_s = self._end_s - time.monotonic()
            is_over = self._ended.wait(max(0.0, min(left_s, _SLICE_S)))
            if is_over or self._process.poll() is not None:
                return
            if time.monotonic() >= self._end_s:
                self.killed = True
                self._process.kill()
                return
            if self._meanwhile is not None:
                self._meanwhile()


def stop(process: Process) -> None:
    """Terminate a process; kill it if it goes on for five seconds."""
    process.terminate()
    try:
        process.wait(_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close_pipes(process: Process) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # it had not read all of its input


def _input(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else to_json(value).encode()
