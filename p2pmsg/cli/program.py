"""Runs a command for a value: `pull` for each job, `respond` for each request."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from p2pmsg.cli.command import UsageError
from p2pmsg.json_text import to_json

_TERMINATE_S = 5.0
Process = subprocess.Popen[bytes]


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
    running: set[Process] | None = None,
) -> tuple[str, int, bytes]:
    """Run a command with a value on its standard input.

    Args:
        words: the command and its arguments.
        value: text and bytes are given as they are, anything else as JSON.
        timeout: kill it after so many seconds.
        environment: instead of this process's own.
        output: `subprocess.PIPE` to return its output.
        running: has the process while it runs, for another thread to stop it.

    Returns:
        What went wrong (empty for status 0), the exit status, and the output.

    """
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=output, env=environment)
    running = set() if running is None else running
    running.add(process)
    try:
        printed, _ = process.communicate(_input(value), timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"killed after {timeout} s", process.returncode, b""
    except BaseException:
        stop(process)
        raise
    finally:
        running.discard(process)
    status = process.returncode
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
