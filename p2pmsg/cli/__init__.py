"""The command line: `p2pmsg demo`, `pub`, `sub`, `push`, `pull`, `relay`, `log` and others.

Exit status: 0, 1 for a failure at run time, 2 for wrong arguments, 130 after Ctrl-C, 141 where
nobody reads the output any more. After SIGTERM it is 143, but 0 for a command that runs until it is
stopped (statsd, relay; sub, pull and listen without an end of their own) and has ended cleanly: to
systemd anything else is a failure. Each failure is one line on standard error.
"""

import os
import signal
import sys

from p2pmsg import ctrl_c
from p2pmsg.cli.table import COMMANDS, load, overview

TYPE_CHECKING = False  # what only a command needs is imported when one runs
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from logging import Handler
    from types import FrameType
    from typing import Self

__all__ = ["COMMANDS", "main"]

_FAILED, _WRONG, _PIPE_CLOSED, _TERMINATED = 1, 2, 141, 143


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run a command and return its exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    name = words[0] if words else ""
    if name not in COMMANDS:
        return ctrl_c.run(lambda: _answer(name))
    # Imported before a command can be interrupted, since an import is not to be.
    from p2pmsg.cli.settings import parse

    found = load(name)
    own, rest = _split(words[1:], name)
    return ctrl_c.run(lambda: _run(name, lambda: parse(found, own), rest))


def _run(name: str, parse: "Callable[[], Namespace]", rest: "list[str]") -> int:
    _write_any_text()
    try:
        arguments = parse()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except OSError as error:  # there was help to be printed
        return _unwritten(f"p2pmsg {name}", error)
    arguments.rest = rest
    prog: str = arguments.prog
    with _SignalsAndLog(prog):
        try:
            status: int = arguments.command.run(arguments)
            if sys.stdout is not None:
                sys.stdout.flush()
        except _Terminated:
            status = 0 if arguments.command.runs_until_stopped(arguments) else _TERMINATED
        except KeyboardInterrupt:
            status = ctrl_c.INTERRUPTED
        except BrokenPipeError:
            _let_go_of_output()
            status = _PIPE_CLOSED
        except Exception as error:
            status = _status_of(error)
            _fail(prog, error, status)
        ctrl_c.keep_status(status)
    return status


def _answer(name: str) -> int:
    """Do what needs no command: `--help`, `--version`, or refuse what is none."""
    _write_any_text()
    if name in ("-h", "--help"):
        text = overview().rstrip("\n")
    elif name == "--version":
        from importlib.metadata import version

        text = f"p2pmsg {version('p2pmsg')}"
    else:
        from p2pmsg.cli.command import choice

        return _fail("p2pmsg", f"{choice(name, COMMANDS)} (p2pmsg --help says more)", _WRONG)
    try:
        print(text, flush=True)
    except OSError as error:
        return _unwritten("p2pmsg", error)
    return 0


def _unwritten(prog: str, error: OSError) -> int:
    """Return the status where standard output takes no more, and say so where somebody reads."""
    _let_go_of_output()
    return _PIPE_CLOSED if isinstance(error, BrokenPipeError) else _fail(prog, error, _FAILED)


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
        encoding = str(getattr(stream, "encoding", None) or "utf-8")
        if hasattr(stream, "reconfigure") and encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _split(words: "list[str]", name: str) -> "tuple[list[str], list[str]]":
    """Cut off a command that is run, or completed, and may have options of its own."""
    if "--" not in words or name not in ("pull", "respond", "completion"):
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


class _Terminated(KeyboardInterrupt):
    """SIGTERM: everything ends as with Ctrl-C."""

    number = signal.SIGTERM


class _SignalsAndLog:
    """Lets SIGTERM end a command as Ctrl-C does, and prints the library's warnings a line each."""

    def __init__(self, prog: str) -> None:
        import logging

        self._handler: Handler = logging.StreamHandler()
        self._handler.setFormatter(logging.Formatter(f"{prog}: %(message)s"))
        self._log = logging.getLogger("p2pmsg")
        self._before = signal.getsignal(signal.SIGTERM)

    def __enter__(self) -> "Self":
        self._log.addHandler(self._handler)
        try:
            signal.signal(signal.SIGTERM, _terminate)
        except ValueError:
            pass  # this is not the main thread
        return self

    def __exit__(self, *exception: object) -> None:
        if signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, self._before)
        self._log.removeHandler(self._handler)


def _terminate(signum: int, frame: "FrameType | None") -> None:
    if not ctrl_c.is_again():
        raise _Terminated


def _fail(prog: str, error: "Exception | str", status: int) -> int:
    from p2pmsg.cli.command import one_line, reason_of

    text = error if isinstance(error, str) else reason_of(error)
    try:
        print(f"{prog}: {one_line(text)}", file=sys.stderr)
    except OSError:
        pass  # nobody reads it
    return status


def _let_go_of_output() -> None:
    """Let Python's own flush at exit write to nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # it is no real file
