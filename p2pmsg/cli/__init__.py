"""The command line: `p2pmsg demo`, `pub`, `sub`, `push`, `pull`, `relay`, `log` and others.

Exit status: 0, 1 for a failure at run time, 2 for wrong arguments, 130 after Ctrl-C, 141 where
nobody reads the output any more. After SIGTERM it is 143, but 0 for a command that runs until it is
stopped (statsd, relay; sub, pull and listen without an end of their own) and has ended cleanly: to
systemd anything else is a failure. Each failure is one line on standard error.
"""

import importlib.metadata
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from p2pmsg import ctrl_c
from p2pmsg.cli import bench, capacity, demo, jobs, listen, log, pubsub, relay, request, statsd
from p2pmsg.cli.command import Parser, UsageError, add_commands
from p2pmsg.cli.text import one_line
from p2pmsg.demo.feed import FeedError
from p2pmsg.demo.processes import DemoError
from p2pmsg.errors import ConfigError, P2PError

__all__ = ["main"]

COMMANDS = (
    demo.demo, pubsub.pub, pubsub.sub, listen.listen, relay.relay, jobs.push, jobs.pull,
    request.request, jobs.dead_letters, statsd.statsd, log.log, capacity.capacity, bench.bench,
)  # fmt: skip
"""In the order of `p2pmsg --help`."""

_FAILED, _WRONG, _PIPE_CLOSED, _TERMINATED = 1, 2, 141, 143
_DESCRIPTION = """\
Brokerless messaging in which nothing is lost silently.

For example, in two terminals:
  p2pmsg sub tcp://127.0.0.1:5556
  echo hello | p2pmsg pub tcp://127.0.0.1:5556 greetings
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    return ctrl_c.run(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    _write_any_text()
    parser = _build_parser()
    try:
        own, rest = _split(sys.argv[1:] if argv is None else argv)
        arguments = parser.parse_args(own)
        arguments.rest = rest
        if arguments.command is None:
            arguments.refuse()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    prog: str = arguments.prog
    with _signals_and_log(prog):
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
        except (ConfigError, UsageError) as error:
            status = _fail(prog, error, _WRONG)
        except (P2PError, DemoError, FeedError, OSError) as error:  # TimeoutError is an OSError
            status = _fail(prog, error, _FAILED)
        ctrl_c.keep_status(status)
    return status


def _write_any_text() -> None:
    """Write UTF-8, as messages are, also where the locale has another encoding."""
    for stream in (sys.stdout, sys.stderr):
        encoding = str(getattr(stream, "encoding", None) or "utf-8")
        if isinstance(stream, io.TextIOWrapper) and encoding.lower().replace("-", "") != "utf8":
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Cut off the command that `pull` runs, which may have options of its own."""
    if "--" not in argv or argv[0] != "pull":
        return list(argv), []
    at = list(argv).index("--")
    return list(argv[:at]), list(argv[at + 1 :])


def _build_parser() -> Parser:
    parser = Parser("p2pmsg", _DESCRIPTION)
    version = importlib.metadata.version("p2pmsg")
    parser.add_argument("--version", action="version", version=f"p2pmsg {version}")
    add_commands(parser, COMMANDS)
    return parser


class _Terminated(KeyboardInterrupt):
    """SIGTERM: everything ends as with Ctrl-C."""

    number = signal.SIGTERM


@contextmanager
def _signals_and_log(prog: str) -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, and print the library's warnings a line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{prog}: %(message)s"))
    log = logging.getLogger("p2pmsg")
    log.addHandler(handler)
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        if before is not None and signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, before)
        log.removeHandler(handler)


def _terminate(signum: int, frame: FrameType | None) -> None:
    if not ctrl_c.is_again():
        raise _Terminated


def _fail(prog: str, error: Exception, status: int) -> int:
    try:
        print(f"{prog}: {one_line(str(error) or type(error).__name__)}", file=sys.stderr)
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
