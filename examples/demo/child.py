"""What runs in a child process: a module that communicates by JSON lines.

It emits events on standard output and gets commands on standard input. When the parent ends, in
whatever way, standard input ends, and so does the child.
"""

import json
import os
import queue
import runpy
import sys
import threading
from typing import Any

ORPHANED = 70
"""Exit status of a child whose parent has ended."""

_commands: "queue.SimpleQueue[dict[str, Any]]" = queue.SimpleQueue()


def main() -> None:
    """Run the module that the first argument names, with the others as its own."""
    module, *arguments = sys.argv[1:]
    threading.Thread(target=_listen, name="parent", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def emit(event: str, **fields: Any) -> None:
    """Send an event to the parent."""
    line = json.dumps({"event": event, **fields}, separators=(",", ":"))
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def next_command(timeout: float | None = None) -> dict[str, Any] | None:
    """Return the parent's next command; None if none came in time."""
    try:
        return _commands.get(timeout=timeout)
    except queue.Empty:
        return None


def _listen() -> None:
    # Not sys.stdin: at exit Python would wait for the lock that a reading thread holds.
    rest = b""
    while data := os.read(0, 65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            _commands.put(json.loads(line))
    os._exit(ORPHANED)
