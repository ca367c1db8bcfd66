"""What arguments may be: each kind is checked in one place. Options that commands share.

What the library checks by itself, as endpoints, is left to it: a `ConfigError` is status 2, too.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from p2pmsg.cli.command import UsageError, cannot, flag, option
from p2pmsg.errors import ConfigError, MessageError
from p2pmsg.toolkit import Start, check_topic, parse_start


def endpoints(text: str) -> list[str]:
    """Split endpoints, separated by commas; who opens them checks them."""
    return text.split(",")


def address(text: str) -> tuple[str, int]:
    """Check a host and a TCP or UDP port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"must be HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def topic(text: str) -> str:
    """Check a topic."""
    try:
        check_topic(text)
    except MessageError as error:
        raise UsageError(str(error)) from error
    return text


def count(least: int, most: int = 10**12) -> Callable[[str], int]:
    """Return the check of a whole number from `least` to `most`."""

    def check(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise UsageError(f"must be a whole number, not {text!r}") from None
        if not least <= number <= most:
            raise UsageError(f"must be from {least} to {most}, not {number}")
        return number

    return check


def number(least: float, most: float) -> Callable[[str], float]:
    """Return the check of a number from `least` to `most`."""

    def check(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            raise UsageError(f"must be a number, not {text!r}") from None
        if not least <= found <= most:
            raise UsageError(f"must be from {least:g} to {most:g}, not {text!r}")
        return found

    return check


seconds = number(0, 1e9)
"""Checks a time span in seconds."""


def speed(text: str) -> float:
    """Check how many times the original pace: a number above 0, or `max` for no pace at all."""
    return math.inf if text == "max" else number(1e-6, 1e6)(text)


def start(text: str) -> str | int | datetime:
    """Check where a subscriber starts: `latest`, `earliest`, a sequence or an ISO time."""
    if text in ("latest", "earliest"):
        return text
    try:
        value = int(text) if text.isdecimal() else datetime.fromisoformat(text)
        parse_start(value)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    except ValueError:
        raise UsageError(
            f"must be a sequence or a time such as 2024-08-09T12:00:00Z, not {text!r}"
        ) from None
    return value


def position(text: str) -> Start:
    """Check a place in the log: a sequence or an ISO time."""
    found = parse_start(start(text))
    if found.kind not in ("sequence", "time"):
        raise UsageError(f"must be a sequence or a time, not {text!r}")
    return found


def moment(text: str) -> int:
    """Check an ISO time; return it in ns since the epoch."""
    found = position(text)
    if found.kind != "time":
        raise UsageError(f"must be a time such as 2024-08-09T12:00:00Z, not {text!r}")
    return found.position


def _read(text: str, look: Callable[[str], Any]) -> Any:
    try:
        return look(text)
    except (OSError, ValueError) as error:
        raise UsageError(cannot("read", text, error)) from error


def directory(text: str) -> str:
    """Check a directory to read."""
    _read(text, os.listdir)
    return text


def lines_file(what: str) -> Callable[[str], list[str]]:
    """Return the check of a file with a secret, token or the like in each line, at least one."""

    def read(text: str) -> list[str]:
        lines = _read(text, lambda path: Path(path).read_text(encoding="utf-8")).splitlines()
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise UsageError(f"{text!r} has no {what}, which is a line")
        return found

    return read


def input_file(text: str) -> str:
    """Check a file to read."""
    _read(text, lambda path: open(path, "rb").close())
    return text


def output_file(text: str) -> str:
    """Check a file to write, without making it or changing what it has."""
    folder = os.path.dirname(text) or "."
    if os.path.isdir(text) or not text:
        raise UsageError(f"cannot write {text!r}: it is a directory" if text else "names no file")
    if not os.path.isdir(folder):
        raise UsageError(f"cannot write {text!r}: there is no directory {folder!r}")
    if not os.access(text if os.path.exists(text) else folder, os.W_OK):
        raise UsageError(f"cannot write {text!r}: permission denied")
    return text


def standard_input() -> BinaryIO:
    """Return it as bytes.

    Raises:
        UsageError: the command was started with standard input closed (`<&-`).

    """
    if sys.stdin is None:
        raise UsageError("standard input is closed, and there is nothing to read")
    return sys.stdin.buffer


def is_terminal(stream: Any) -> bool:
    """Whether a person is likely to look at `stream`."""
    return stream is not None and bool(stream.isatty())


def url_of(socket: Any, arguments: argparse.Namespace) -> str:
    """Return where a server of HTTP listens, by its socket and its certificate."""
    host, port = socket.getsockname()[:2]
    scheme = "http" if arguments.cert is None else "https"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


BIND = option(
    "endpoint", "where to bind: tcp://HOST:PORT, ipc://PATH or udp://GROUP:PORT", "ENDPOINT"
)
BIND_STREAM = option("endpoint", "where to bind: tcp://HOST:PORT or ipc://PATH", "ENDPOINT")
TOPIC = option("topic", "the topic to publish under", "TOPIC", topic)
TOPICS = option(
    "topics", "topics, or prefixes such as 'trades.*' (default: all)", "TOPIC", nargs="*",
    default=[],
)  # fmt: skip
SERVED_TOPICS = option(
    "--topics", "which topics: topics, and prefixes that end in * (default: all)", "TOPIC",
    nargs="+",
)  # fmt: skip
RECOVERY = option(
    "--recovery", "where subscribers ask for repairs (default: the same host, any free port)",
    "ENDPOINT",
)  # fmt: skip
LOG = option("--log", "keep in this log what is published, and continue its session", "DIR")
STATS = option(
    "--stats", "report the counters on standard error every so many seconds (default: never)", "S",
    seconds, default=0.0,
)  # fmt: skip
CERTIFICATE = (
    option("--cert", "for https: a file with the certificate", "FILE", input_file),
    option("--cert-key", "and one with its key", "FILE", input_file),
)
JSON = flag("--json", "print one JSON object")
COUNT = option("--count", "end after N messages", "N", count(1))
JSON_LINES = flag("--json", "each line is a JSON value")
KEY_FIELD = "take the key from this field of each JSON object"


def require_certificate(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` for a certificate without its key, or a key without it."""
    if (arguments.cert is None) != (arguments.cert_key is None):
        raise UsageError("--cert and --cert-key go together")


PUBLISHING = (
    option("--wait", "wait for so many subscribers first (default 1; 0: do not wait)", "N",
           count(0), default=1),
    option("--timeout", "give up when they have not come after so many seconds (default: never)",
           "S", seconds),
    option("--name", "the publisher's name (default: the endpoint)"),
)  # fmt: skip
"""Of the commands that publish, and then end."""
