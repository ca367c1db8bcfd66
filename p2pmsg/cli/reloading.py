"""Runs an app, and again in the same process each time a source file changes."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from p2pmsg.cli.command import UsageError, note, reason_of
from p2pmsg.errors import P2PError

_LOOK_S: Final = 0.5
"""How often is looked for changes."""
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


def run_again_when_changed(work: Callable[[], object]) -> int:
    """Do the work, and start the command again when a `.py` file below this directory changes.

    At a change the process gets SIGTERM, with which an app ends gracefully; then the command begins
    again in its place. Where the work fails it waits for a change. Nothing is written into
    `__pycache__`: the files there go by the second, and would hide a change that comes within one.
    """
    sys.dont_write_bytecode = True
    changed = threading.Event()
    threading.Thread(target=_watch, args=[_times(), changed], daemon=True).start()
    try:
        try:
            work()
        except (UsageError, P2PError) as error:
            note("run", f"{reason_of(error)}; waiting for a change")
            while True:  # until a signal comes
                changed.wait(_LOOK_S)
    except KeyboardInterrupt:
        if not changed.is_set():
            raise
    if changed.is_set():
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    return 0


def _watch(before: dict[str, int], changed: threading.Event) -> None:
    while not (difference := before.items() ^ _times().items()):
        changed.wait(_LOOK_S)
    note("run", f"{min(difference)[0]} has changed; starting again")
    changed.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _times() -> dict[str, int]:
    """Return when each file was changed, in ns."""
    found = {}
    for place, folders, names in os.walk("."):
        folders[:] = [each for each in folders if each not in _LEFT_OUT and each[0] != "."]
        for path in (Path(place, name) for name in names if name.endswith(".py")):
            try:
                found[str(path)] = path.stat().st_mtime_ns
            except OSError:
                pass  # it was removed meanwhile
    return found
