"""Arguments: each kind is checked in one place, and refused in one line."""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, BinaryIO, NoReturn

import transports
from p2pmsg.errors import MessageError, P2PError
from p2pmsg.start import Start, parse_start
from p2pmsg.topics import check_topic

_Refused = argparse.ArgumentTypeError
_SCHEMES = ("tcp", "ipc", "udp", "mold")
_NUMBER_AND_UNIT = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?(?:e[0-9]{1,2})?) ?([a-z/]*)")
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {f"{p}i": 1024**power for power, p in enumerate(_PREFIXES) if p}
_BYTE_UNITS = {
    f"{prefix}{unit}": factor
    for prefix, factor in {**_PREFIXES, **_BINARY}.items()
    for unit in ("", "b")
}
_RATE_UNITS = {
    f"{prefix}{unit}": factor for prefix, factor in _PREFIXES.items() for unit in ("", "/s")
}
_SPAN_UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AMOUNT_MAX = 10**18


class UsageError(P2PError):
    """Arguments that are right one by one do not go together."""


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
        if self._intermixing:
            return super().parse_known_args(args, namespace)
        if self._subparsers is not None:
            found, unknown = super().parse_known_args(args, namespace)
        else:
            self._intermixing = True
            try:
                found, unknown = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._intermixing = False
        if unknown:
            self.error(f"unknown arguments: {' '.join(unknown)}")
        return found, unknown


def add_command(
    commands: Any,
    name: str,
    description: str,
    run: Callable[[argparse.Namespace], int],
    *,
    group: str = "",
) -> Parser:
    """Add a command to the parser; the first line of `description` says in short what it does.

    A command of a group is called by both names, as `p2pmsg log ls` is.
    """
    summary = description.partition("\n")[0].rstrip(".")
    prog = f"p2pmsg {group} {name}" if group else f"p2pmsg {name}"
    parser: Parser = commands.add_parser(name, prog=prog, description=description, help=summary)
    parser.set_defaults(run=run, prog=prog)
    return parser


def add_commands(parser: Parser, adders: Sequence[Callable[[Any], None]]) -> None:
    """Add commands to a parser; one of them must be named."""
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for add_parser in adders:
        add_parser(commands)
    *most, last = commands.choices
    text = f"name a command: {', '.join(most)} or {last} ({parser.prog} --help tells more)"
    parser.set_defaults(run=None, group=parser, incomplete=text)


def add_publisher(parser: Parser, wait_option: str) -> None:
    """Add what commands that publish share: whom to wait for, how long, and the name."""
    parser.add_argument(
        wait_option, metavar="N", type=count(0), default=1,
        help="wait for so many subscribers first (default 1; 0: do not wait)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="S", type=seconds,
        help="give up when they have not come after so many seconds (default: never)",
    )  # fmt: skip
    parser.add_argument("--name", help="the publisher's name (default: the endpoint)")


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
        value = _sequence_or_time(text, "latest, earliest, ")
    _parse_start(value)
    return value


def position(text: str) -> Start:
    """Check a place in the log: a sequence or an ISO time."""
    return _parse_start(_sequence_or_time(text))


def _parse_start(value: str | int | datetime) -> Start:
    try:
        return parse_start(value)
    except (ValueError, OverflowError) as error:
        raise _Refused(str(error)) from error


def _sequence_or_time(text: str, words: str = "") -> int | datetime:
    try:
        value = int(text) if text.lstrip("+-").isdecimal() else datetime.fromisoformat(text)
    except ValueError:
        raise _Refused(
            f"must be {words}a sequence or a time such as 2024-08-09T12:00:00Z, not {text!r}"
        ) from None
    if isinstance(value, datetime) and value.tzinfo is None:
        raise _Refused(f"the time needs a zone, as in 2024-08-09T12:00:00Z: {text!r}")
    return value


def moment(text: str) -> int:
    """Check an ISO time; return it in ns since the epoch."""
    found = _parse_start(_sequence_or_time(text))
    if found.kind != "time":
        raise _Refused(f"must be a time such as 2024-08-09T12:00:00Z, not {text!r}")
    return found.position


def session(text: str) -> int:
    """Check a session, as hexadecimal digits."""
    if not re.fullmatch("(0x)?[0-9a-fA-F]{1,16}", text):
        raise _Refused(f"must be a session of at most 16 hexadecimal digits, not {text!r}")
    return int(text, 16)


def byte_count(text: str) -> int:
    """Check a number of bytes such as `500GB` or `64MiB`."""
    return int(_amount(text, _BYTE_UNITS, "a number of bytes such as 500GB or 64MiB"))


def rate(text: str) -> float:
    """Check a number of messages a second, above 0."""
    return _above_0(text, _RATE_UNITS, "a number of messages a second such as 50000 or 50k")


def span(text: str) -> float:
    """Check a time span such as `24h`, above 0; return it in seconds."""
    return _above_0(text, _SPAN_UNITS, "a time such as 90s, 30min, 24h, 7d or 2w")


def _above_0(text: str, units: Mapping[str, int], what: str) -> float:
    amount = float(_amount(text, units, what))
    if not amount:
        raise _Refused(f"must be above 0, not {text!r}")
    return amount


def _amount(text: str, units: Mapping[str, int], what: str) -> Decimal:
    found = _NUMBER_AND_UNIT.fullmatch(text.lower())
    if found is None or found[2] not in units:
        raise _Refused(f"must be {what}, not {text!r}")
    amount = Decimal(found[1].replace("_", "")) * units[found[2]]
    if amount > _AMOUNT_MAX:
        raise _Refused(f"must be at most 1e18, not {text!r}")
    return amount


def speed(text: str) -> float:
    """Check how many times the original pace: a number above 0, or `max` for no pace at all."""
    if text == "max":
        return math.inf
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not math.isfinite(number) or not 1e-6 <= number <= 1e6:
        raise _Refused(f"must be max or a number from 1e-6 to 1e6, not {text!r}")
    return number


def directory(text: str) -> str:
    """Check a directory to read."""
    if not os.path.isdir(text):
        reason = "it is no directory" if os.path.exists(text) else "no such directory"
        raise _Refused(f"cannot read {text!r}: {reason}")
    if not os.access(text, os.R_OK | os.X_OK):
        raise _Refused(f"cannot read {text!r}: permission denied")
    return text


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
