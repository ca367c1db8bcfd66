"""Runs a command again and again: each time a source file changes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from p2pmsg.cli.command import note
from p2pmsg.sync.stop_signals import StopSignals

_LOOK_S: Final = 0.3
"""How often is looked for changes."""
_FILES_MAX: Final = 10_000
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
_GRACE_S: Final = 30.0
"""How long a process may take to end after SIGTERM, beyond what its app has as `stop_timeout`."""
_LIFE: Final = "P2PMSG_RELOADER_FD"
"""Has the descriptor that becomes readable when the reloader is gone."""
_Times = dict[str, tuple[int, int]]


def end_with_reloader() -> bool:
    """In a process that a `Reloader` started: end, gracefully, when that is gone.

    Returns:
        Whether this is such a process.

    """
    life = os.environ.pop(_LIFE, "")
    if life:
        threading.Thread(target=_wait_for_end, args=[int(life)], daemon=True).start()
    return bool(life)


def _wait_for_end(life: int) -> None:
    os.read(life, 1)  # it ends when the other end is closed, by a SIGKILL too
    os.kill(os.getpid(), signal.SIGTERM)


class Reloader:
    """Runs `p2pmsg` with `words` in a process of its own, and again after each change.

    Where that ends by itself, with an error too, it waits for a change. SIGTERM and Ctrl-C end the
    process, gracefully, and then this.

    Args:
        words: of the command line, without `p2pmsg`.
        folders: whose `.py` files are looked at.

    """

    def __init__(self, words: Sequence[str], folders: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "p2pmsg", *words]
        self._folders = folders
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._was_limited = False

    def run(self) -> int:
        """Run until it is to stop; return the last process's status."""
        self._life, held = os.pipe()
        hang_up = signal.signal(signal.SIGHUP, lambda number, frame: self._stop())
        try:
            with StopSignals(self._stop, self._hurry):
                return self._run()
        finally:
            signal.signal(signal.SIGHUP, hang_up)
            os.close(held)
            os.close(self._life)

    def _run(self) -> int:
        while True:
            before = self._times()
            process = self._process = self._start()
            changed = self._wait(process, before)
            status = self._end(process)
            if not changed:
                return status
            note("run", f"{changed} has changed; starting again")

    def _start(self) -> "subprocess.Popen[bytes]":
        # In a group of its own: otherwise a terminal's Ctrl-C reaches it, and the SIGTERM from here
        # would be its second signal, which cancels handlers. Without .pyc files: those go by the
        # second, and would hide a change that comes within one.
        return subprocess.Popen(
            self._command,
            process_group=0,
            pass_fds=[self._life],
            env={**os.environ, _LIFE: str(self._life), "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def _wait(self, process: "subprocess.Popen[bytes]", before: _Times) -> str:
        """Wait for a change; return the file's name, or nothing where it is to stop."""
        has_ended = False
        while not self._stopping.wait(_LOOK_S):
            if changed := _difference(before, self._times()):
                return changed
            if not has_ended and process.poll() is not None:
                has_ended = True
                note("run", f"it ended with status {process.returncode}; waiting for a change")
        return ""

    def _end(self, process: "subprocess.Popen[bytes]") -> int:
        """End a process gracefully; kill it where it does not end. Return its status."""
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(_GRACE_S)
            return 0 if status == -signal.SIGTERM else status  # it had not begun yet
        except subprocess.TimeoutExpired:
            note("run", f"killing the app, which did not end within {_GRACE_S:g} s")
            process.kill()
            return process.wait()

    def _stop(self) -> None:
        self._stopping.set()

    def _hurry(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _times(self) -> _Times:
        """Return when each file was changed, and its size."""
        found: _Times = {}
        for path in self._files():
            if len(found) >= _FILES_MAX:
                if not self._was_limited:
                    self._was_limited = True
                    note("run", f"watching {_FILES_MAX} files, and no others: give --reload-dir")
                break
            try:
                status = os.stat(path)
            except OSError:
                continue  # it was removed meanwhile
            found[path] = status.st_mtime_ns, status.st_size
        return found

    def _files(self) -> Iterator[str]:
        for folder in self._folders:
            for place, folders, names in os.walk(folder):
                folders[:] = sorted(
                    one for one in folders if one not in _LEFT_OUT and not one.startswith(".")
                )
                yield from (os.path.join(place, name) for name in names if name.endswith(".py"))


def _difference(before: _Times, after: _Times) -> str:
    """Return the first file that was added, changed or removed; empty: none was."""
    for path in sorted(before.keys() | after.keys()):
        if before.get(path) != after.get(path):
            return os.path.normpath(path)
    return ""
