"""The parent's side of child processes: starts them, reads their events, and ends them all.

Each child is a process group of its own, so that Ctrl-C reaches only the parent, and what a child
starts (Spark starts Java) ends with it.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from p2pmsg.errors import P2PError

Event = dict[str, Any]
_LAUNCH = f"from {__package__}.child import main; main()"
_KILL_AFTER_S = 1.0


class DemoError(P2PError):
    """The demo cannot continue; says why."""


class Child:
    """A process that runs a module by `child.py`; a thread reads its events.

    Attributes:
        name: for people.

    """

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], scratch: str, events: Any
    ) -> None:
        self.name = name
        self._errors = Path(scratch, f"{name}-{time.monotonic_ns()}")
        # Find the package as the parent did: in the current directory, or installed.
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, *safe, "-c", _LAUNCH, module, *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, process_group=0,
                env=os.environ | {"TMPDIR": scratch, "SPARK_LOCAL_DIRS": scratch}
                | {"PYTHONIOENCODING": "utf-8"},
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=[events], daemon=True)
        self._reader.start()

    def _read(self, events: "queue.SimpleQueue[tuple[Child, Event]]") -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # printed by a library
                if isinstance(event, dict) and "event" in event:
                    events.put((self, event))
        events.put((self, {"event": "ended", "status": self._process.wait()}))

    def send(self, command: str) -> None:
        """Give the child a command; one that has ended does not get it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"command": command}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass

    @property
    def last_words(self) -> str:
        """The last line that it wrote on standard error, or how it ended."""
        said = self._errors.read_text(errors="replace").strip()
        return said.splitlines()[-1] if said else f"ended with status {self._process.returncode}"

    def kill(self, signum: signal.Signals) -> None:
        """Send a signal to the process and to all that it started."""
        try:
            os.killpg(self._process.pid, signum)
        except (ProcessLookupError, PermissionError):
            pass  # all of them have ended

    def wait(self, timeout: float) -> None:
        """Wait until the process has ended and all its events came, so long at most."""
        self._reader.join(timeout)

    def release(self) -> None:
        """Close what is left open."""
        assert self._process.stdin is not None
        self._process.stdin.close()


class Children:
    """All children; a context manager at whose end none is left."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._events: queue.SimpleQueue[tuple[Child, Event]] = queue.SimpleQueue()
        self._scratch = tempfile.TemporaryDirectory("", "p2pmsg-demo-", ignore_cleanup_errors=True)

    def start(self, name: str, module: str, *arguments: str) -> Child:
        """Start a child."""
        made = Child(name, module, arguments, self._scratch.name, self._events)
        self._children.append(made)
        return made

    def poll(self, timeout: float = 0.1) -> list[tuple[Child, Event]]:
        """Return the children's events; `{"event": "ended", "status": n}` is the last of each."""
        found = []
        try:
            while len(found) < 1000:
                found.append(self._events.get(timeout=0.0 if found else timeout))
        except queue.Empty:
            pass
        return found

    def wait(self, timeout: float) -> None:
        """Wait until all have ended."""
        deadline_s = time.monotonic() + timeout
        for child in self._children:
            child.wait(max(0.0, deadline_s - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._children:
                child.kill(number)
            self.wait(_KILL_AFTER_S)
        for child in self._children:
            child.release()
        self._scratch.cleanup()
