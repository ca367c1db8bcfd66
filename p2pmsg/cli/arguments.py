"""Arguments: each kind is checked in one place, and refused in one line."""

import argparse
import math
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

import transports
from p2pmsg.errors import MessageError
from p2pmsg.publisher_stream import check_topic
from p2pmsg.start import parse_start

_Refused = argparse.ArgumentTypeError
_SCHEMES = ("tcp", "ipc", "udp", "mold")


class Parser(argparse.ArgumentParser):
    """An argument parser that says what is wrong in one line, and takes options anywhere."""

    def __init__(self, prog: str, description: str, **rest: Any) -> None:
        super().__init__(
            prog=prog,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **rest,
        )
        self._intermixing = False

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        print(f"{self.prog}: {one_line(message)}", file=sys.stderr)
        sys.exit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Allow options between a command's positional arguments, too."""
        if self._intermixing or self._subparsers is not None:
            return super().parse_known_args(args, namespace)
        self._intermixing = True
        try:
            found, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._intermixing = False
        if unknown:
            self.error(f"unknown arguments: {' '.join(unknown)}")
        return found, unknown


def add_command(
    commands: Any, name: str, description: str, run: Callable[[argparse.Namespace], int]
) -> Parser:
    """Add a command to the parser; the first line of `description` says in short what it does."""
    summary = description.partition("\n")[0].rstrip(".")
    parser: Parser = commands.add_parser(
        name, prog=f"p2pmsg {name}", description=description, help=summary
    )
    parser.set_defaults(run=run)
    return parser


def one_line(text: str) -> str:
    """Return `text` without line breaks and other control characters."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def bind_endpoint(text: str) -> str:
    """Check an endpoint that a publisher binds."""
    return str(_endpoint(text))


def datagram_endpoint(text: str) -> str:
    """Check an endpoint that datagrams come to."""
    (endpoint,) = connect_endpoints(text) if "," not in text else [text]
    if not endpoint.startswith(("udp://", "mold://")):
        raise _Refused(f"take udp:// or mold:// here: {text!r}")
    return endpoint


def connect_endpoints(text: str) -> list[str]:
    """Check one or several endpoints, separated by commas, that a subscriber connects to."""
    endpoints = []
    for part in text.split(","):
        try:
            endpoints.append(str(_endpoint(part).require_connectable()))
        except transports.EndpointError as error:
            raise _Refused(str(error)) from error
    return endpoints


def _endpoint(text: str) -> transports.Endpoint:
    try:
        endpoint = transports.parse_endpoint(text)
    except transports.EndpointError as error:
        raise _Refused(str(error)) from error
    if endpoint.scheme not in _SCHEMES:
        raise _Refused(f"{endpoint.scheme} stays in one process, take tcp, ipc or udp: {text!r}")
    return endpoint


def topic(text: str) -> str:
    """Check a topic."""
    try:
        check_topic(text)
    except MessageError as error:
        raise _Refused(str(error)) from error
    return text


def topic_or_prefix(text: str) -> str:
    """Check a topic, a prefix (`trades.*`), or `*` for all."""
    if text != "*":
        topic(text.removesuffix("*"))
    return text


def count(least: int, most: int = 10**12) -> Callable[[str], int]:
    """Return the check of a whole number from `least` to `most`."""

    def check(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise _Refused(f"must be a whole number, not {text!r}") from None
        if number < least:
            raise _Refused(f"must be at least {least}, not {number}")
        if number > most:
            raise _Refused(f"must be at most {most}, not {number}")
        return number

    return check


def seconds(text: str) -> float:
    """Check a time span in seconds."""
    try:
        number = float(text)
    except ValueError:
        raise _Refused(f"must be a number of seconds, not {text!r}") from None
    if not math.isfinite(number) or not 0 <= number <= 1e9:
        raise _Refused(f"must be from 0 to 1e9 seconds, not {text!r}")
    return number


def start(text: str) -> str | int | datetime:
    """Check where a subscriber starts: `latest`, `earliest`, a sequence or an ISO time."""
    value: str | int | datetime = text
    if text not in ("latest", "earliest"):
        try:
            value = int(text) if text.lstrip("+-").isdecimal() else datetime.fromisoformat(text)
        except ValueError:
            raise _Refused(
                f"must be latest, earliest, a sequence or a time such as 2024-08-09T12:00:00Z, "
                f"not {text!r}"
            ) from None
        if isinstance(value, datetime) and value.tzinfo is None:
            raise _Refused(f"the time needs a zone, as in 2024-08-09T12:00:00Z: {text!r}")
    try:
        parse_start(value)
    except (ValueError, OverflowError) as error:
        raise _Refused(str(error)) from error
    return value


def input_file(text: str) -> str:
    """Check a file to read."""
    try:
        with open(text, "rb") as file:
            if not file.seekable():
                raise _Refused(f"{text!r} cannot be read twice, as a file can")
    except OSError as error:
        raise _Refused(f"cannot read {text!r}: {error.strerror}") from error
    return text


def output_file(text: str) -> str:
    """Check a file to write, without making it or changing what it has."""
    folder = os.path.dirname(text) or "."
    if os.path.isdir(text) or not text:
        raise _Refused(f"cannot write {text!r}: it is a directory" if text else "names no file")
    if not os.path.isdir(folder):
        raise _Refused(f"cannot write {text!r}: there is no directory {folder!r}")
    if not os.access(text if os.path.exists(text) else folder, os.W_OK):
        raise _Refused(f"cannot write {text!r}: permission denied")
    return text


def is_terminal(stream: Any) -> bool:
    """Whether a person is likely to look at `stream`."""
    return stream is not None and bool(stream.isatty())
