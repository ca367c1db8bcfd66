"""The command line: `p2pmsg demo`, `pub`, `sub`, `push`, `pull`, `relay`, `log` and others.

Exit status: 0, 1 for a failure at run time, 2 for wrong arguments, 130 after Ctrl-C, 141 where
nobody reads the output any more. After SIGTERM it is 143, but 0 for a command that runs until it is
stopped (statsd, relay; sub, pull and listen without an end of their own) and has ended cleanly: to
systemd anything else is a failure. Each failure is one line on standard error.

While a command is imported, and when it has ended, Ctrl-C ends the process at once, as it does a
program without a handler. In between the first signal is a `KeyboardInterrupt`; the next ones are
ignored for three seconds, so that what is open is closed in peace, and then end it at once.
"""

import os
import signal
import sys
import time

from p2pmsg.cli.table import COMMANDS, load, members, overview, split

TYPE_CHECKING = False  # what only a command needs is imported when one runs
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from logging import Handler
    from types import FrameType
    from typing import Any, Self

__all__ = ["COMMANDS", "main"]

_FAILED, _WRONG, _INTERRUPTED, _PIPE_CLOSED, _TERMINATED = 1, 2, 130, 141, 143
_AGAIN_S = 3.0
"""How long the end is not disturbed by a second signal."""


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run a command and return its exit status."""
    if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is the process's own
    name, own = split(sys.argv[1:] if argv is None else list(argv))
    if name not in COMMANDS:
        return _run("p2pmsg", lambda: _answer(name, own), lambda: False)
    # Imported before a command can be interrupted, since an import is not to be.
    from p2pmsg.cli.settings import parse

    found, rest = load(name), []
    if "--" in own and name in ("pull", "respond", "completion"):
        # The words of a command that is run, or completed, which may have options of its own.
        at = own.index("--")
        own, rest = own[:at], own[at + 1 :]
    arguments: Namespace | None = None

    def act() -> int:
        nonlocal arguments
        arguments = parse(found, own)
        arguments.rest = rest
        return found.run(arguments)

    def is_endless() -> bool:
        return arguments is not None and found.runs_until_stopped(arguments)

    return _run(f"p2pmsg {name}", act, is_endless)


def _run(prog: str, act: "Callable[[], int]", is_endless: "Callable[[], bool]") -> int:
    """Return the exit status of what `act` does; `is_endless`: only a signal was to end it."""
    _write_any_text()
    signals = _SignalsAndLog(prog)
    try:
        with signals:
            status = _status(prog, act, signals)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    if signals.number == signal.SIGTERM and status in (0, _INTERRUPTED):
        return 0 if is_endless() else _TERMINATED
    return _INTERRUPTED if signals.number == signal.SIGINT else status


def _status(prog: str, act: "Callable[[], int]", signals: "_SignalsAndLog") -> int:
    """Do as `_run`; what goes wrong after Ctrl-C is not said."""
    try:
        try:
            status = act()
        except SystemExit as end:  # of the parser
            status = end.code if isinstance(end.code, int) else 0
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_output()
        return _PIPE_CLOSED
    except Exception as error:
        if signals.number == signal.SIGINT:
            return _INTERRUPTED
        status = _status_of(error)
        _fail(prog, error)
    return status


def _answer(name: str, rest: "list[str]") -> int:
    """Do what needs no command: `--help`, `--version`, list a group, or refuse what is none."""
    of_group = members(name)
    if name in ("-h", "--help"):
        print(overview(), end="")
    elif name == "--version":
        from importlib.metadata import version

        from p2pmsg.native import MISSING

        kind = f"Python: {MISSING}" if MISSING else "compiled"
        print(f"p2pmsg {version('p2pmsg')} ({kind})")
    elif of_group and rest[:1] in (["-h"], ["--help"]):
        print(overview(name), end="")
    else:
        from p2pmsg.cli.command import UsageError, choice

        wanted = name if not of_group else " ".join([name, *rest[:1]]) if rest else ""
        raise UsageError(f"{choice(wanted, of_group or COMMANDS)} (p2pmsg --help says more)")
    return 0


def _status_of(error: Exception) -> int:
    """Return the exit status for a failure that people cause; raise all others again."""
    from p2pmsg.cli.command import UsageError
    from p2pmsg.errors import ConfigError, P2PError

    if isinstance(error, ConfigError | UsageError):
        return _WRONG
    if isinstance(error, P2PError | OSError):  # as TimeoutError is
        return _FAILED
    raise error


def _write_any_text() -> None:
    """Write UTF-8, as messages are, also where the locale has another encoding."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and stream.encoding.lower() != "utf-8":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


class _SignalsAndLog:
    """Ends a command on Ctrl-C and SIGTERM, and prints the library's warnings a line each.

    Attributes:
        number: the signal that came first, or 0.

    """

    def __init__(self, prog: str) -> None:
        import logging

        self.number = 0
        self._came_s = 0.0
        self._handler: Handler = logging.StreamHandler()
        self._handler.setFormatter(logging.Formatter(f"{prog}: %(message)s"))
        self._log = logging.getLogger("p2pmsg")
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Self":
        self._log.addHandler(self._handler)
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.getsignal(number)
            if before in (signal.SIG_IGN, None):
                continue
            try:
                signal.signal(number, self._end)
            except ValueError:
                break  # this is not the main thread
            self._before[number] = before
        return self

    def __exit__(self, *exception: object) -> None:
        for number, before in self._before.items():
            if signal.getsignal(number) == self._end:
                signal.signal(number, before)
        self._log.removeHandler(self._handler)

    def _end(self, number: int, frame: "FrameType | None") -> None:
        if not self.number:
            self.number, self._came_s = number, time.monotonic()
            raise KeyboardInterrupt
        if time.monotonic() > self._came_s + _AGAIN_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _fail(prog: str, error: Exception) -> None:
    from p2pmsg.cli.command import one_line, reason_of

    try:
        print(f"{prog}: {one_line(reason_of(error))}", file=sys.stderr)
    except OSError:
        pass  # nobody reads it


def _let_go_of_output() -> None:
    """Let Python's own flush at exit write to nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # it is no real file
