"""The parent's side of child processes: starts them, reads their events, and ends them all.

Each child is a process group of its own, so that Ctrl-C reaches only the parent, and what a child
starts (Spark starts Java) ends with it.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

from p2pmsg.errors import P2PError

Event = dict[str, Any]

_LAUNCH = f"from {__package__}.child import main; main()"
_STDERR_BYTES_MAX = 8192
_CHUNK_BYTES = 1 << 16
_POLL_S = 0.1
_KILL_AFTER_S = 1.0


class DemoError(P2PError):
    """The demo cannot continue; says why."""


class Child:
    """A process that runs a module by `child.py`.

    Attributes:
        name: for people.
        status: its exit status, negative for a signal; None while it runs.
        scratch: the folder for its temporary files, removed at the end.

    """

    def __init__(self, name: str, module: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.status: int | None = None
        self.scratch = tempfile.TemporaryDirectory(
            prefix=f"p2pmsg-{name}-", ignore_cleanup_errors=True
        )
        self._lines = b""
        self._errors = b""
        # Find the package as the parent did: in the current directory, or installed.
        safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
        self._process = subprocess.Popen(
            [sys.executable, *safe, "-c", _LAUNCH, module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            process_group=0,
            env=os.environ
            | {"TMPDIR": self.scratch.name, "SPARK_LOCAL_DIRS": self.scratch.name}
            | {"PYTHONIOENCODING": "utf-8"},
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdout, self.stderr = self._process.stdout, self._process.stderr
        for stream in (self.stdout, self.stderr):
            os.set_blocking(stream.fileno(), False)

    def send(self, command: str, **fields: Any) -> None:
        """Give the child a command; one that has ended does not get it."""
        assert self._process.stdin is not None
        line = json.dumps({"command": command, **fields}) + "\n"
        try:
            self._process.stdin.write(line.encode())
        except BrokenPipeError:
            pass

    def read(self) -> tuple[list[Event], bool]:
        """Return the events that have come, and whether the output has ended."""
        is_open = True
        while is_open and (data := _read(self.stdout)) is not None:
            self._lines += data
            is_open = bool(data)
        *lines, self._lines = self._lines.split(b"\n")
        events = []
        for line in lines:
            try:
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    events.append(event)
            except ValueError:
                pass  # printed by a library
        return events, not is_open

    def read_errors(self) -> bool:
        """Read what came on standard error; True when it has ended."""
        while (data := _read(self.stderr)) is not None:
            if not data:
                return True
            self._errors = (self._errors + data)[-_STDERR_BYTES_MAX:]
        return False

    def poll(self) -> bool:
        """Whether the process has ended."""
        self.status = self._process.poll()
        return self.status is not None

    @property
    def last_words(self) -> str:
        """The last line that it wrote on standard error, or how it ended."""
        lines = self._errors.decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return said or f"ended with status {self.status}"

    def kill(self, signum: signal.Signals) -> None:
        """Send a signal to the process and to all that it started."""
        try:
            os.killpg(self._process.pid, signum)
        except (ProcessLookupError, PermissionError):
            pass  # all of them have ended

    def wait(self, timeout: float) -> bool:
        """Wait until the process has ended; False when it has not in time."""
        try:
            self.status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def release(self) -> None:
        """Close the pipes and remove the temporary files."""
        assert self._process.stdin is not None
        for stream in (self._process.stdin, self.stdout, self.stderr):
            stream.close()
        self.scratch.cleanup()


class Children:
    """All children; a context manager at whose end none is left."""

    def __init__(self) -> None:
        self._children: list[Child] = []
        self._running: list[Child] = []
        self._selector = selectors.DefaultSelector()

    def start(self, name: str, module: str, *arguments: str) -> Child:
        """Start a child."""
        with _signals_deferred():  # or Ctrl-C could come before the child is listed
            child = Child(name, module, arguments)
            self._children.append(child)
            self._running.append(child)
            for stream in (child.stdout, child.stderr):
                self._selector.register(stream, selectors.EVENT_READ, child)
        return child

    def poll(self, timeout: float = _POLL_S) -> list[tuple[Child, Event]]:
        """Return the children's events; `{"event": "ended", "status": n}` is the last of each."""
        found: list[tuple[Child, Event]] = []
        for key, _ in self._selector.select(min(timeout, _POLL_S)):
            found += self._read(key.data, key.fileobj)
        for child in list(self._running):
            if child.poll():
                for stream in (child.stdout, child.stderr):
                    if stream in self._selector.get_map():
                        found += self._read(child, stream)
                    if stream in self._selector.get_map():  # a grandchild has it open
                        self._selector.unregister(stream)
                self._running.remove(child)
                found.append((child, {"event": "ended", "status": child.status}))
        return found

    def _read(self, child: Child, stream: Any) -> list[tuple[Child, Event]]:
        events: list[Event] = []
        if stream is child.stdout:
            events, is_over = child.read()
        else:
            is_over = child.read_errors()
        if is_over:
            self._selector.unregister(stream)
        return [(child, event) for event in events]

    def wait(self, timeout: float) -> None:
        """Give the children time to end by themselves."""
        deadline = time.monotonic() + timeout
        while self._running and time.monotonic() < deadline:
            self.poll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        deadline = time.monotonic() + _KILL_AFTER_S
        try:
            for child in self._running:
                child.kill(signal.SIGTERM)
            for child in self._running:
                child.wait(max(0.0, deadline - time.monotonic()))
        finally:
            with _signals_deferred():
                for child in self._children:
                    child.kill(signal.SIGKILL)
                    child.wait(_KILL_AFTER_S)
                    child.release()
                self._selector.close()


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Defer signals until the end of the block."""
    came: list[int] = []
    held = {}
    if threading.current_thread() is threading.main_thread():
        for signum in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(signum)):
                held[signum] = signal.signal(signum, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for signum, handler in held.items():
            signal.signal(signum, handler)
        if came:
            signal.raise_signal(came[0])


def _read(stream: Any) -> bytes | None:
    """Return what can be read now, empty at the end; None where nothing has come."""
    try:
        return os.read(stream.fileno(), _CHUNK_BYTES)
    except BlockingIOError:
        return None
