"""What arguments may be: each kind is checked in one place. Options that commands share."""

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, BinaryIO

import transports
from p2pmsg.cli.command import Option, UsageError, cannot, flag, option
from p2pmsg.cli.text import fields_of
from p2pmsg.errors import MessageError
from p2pmsg.start import Start, parse_start
from p2pmsg.topics import check_topic

if TYPE_CHECKING:
    from recovery.log import LogConfig

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
SESSION_DIGITS = 16


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


def stream_endpoint(text: str) -> str:
    """Check an endpoint that a responder or a pusher binds: no datagrams."""
    return _no_datagrams(bind_endpoint(text))


def stream_endpoints(text: str) -> list[str]:
    """Check endpoints, separated by commas, of responders or pushers: no datagrams."""
    return [_no_datagrams(endpoint) for endpoint in connect_endpoints(text)]


def _no_datagrams(endpoint: str) -> str:
    if endpoint.startswith(("udp://", "mold://")):
        raise _Refused(f"take tcp:// or ipc:// here: {endpoint!r}")
    return endpoint


def _endpoint(text: str) -> transports.Endpoint:
    try:
        endpoint = transports.parse_endpoint(text)
    except transports.EndpointError as error:
        raise _Refused(str(error)) from error
    if endpoint.scheme not in _SCHEMES:
        raise _Refused(f"{endpoint.scheme} stays in one process, take tcp, ipc or udp: {text!r}")
    return endpoint


def address(text: str) -> tuple[str, int]:
    """Check a host and a TCP or UDP port."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise _Refused(f"must be HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


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


def interval(text: str) -> float:
    """Check how often something is done, in seconds."""
    number = seconds(text)
    if number < 0.01:
        raise _Refused(f"must be at least 0.01 seconds, not {text!r}")
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
    value = _sequence_or_time(text)
    if isinstance(value, int) and not 0 <= value < 2**63:
        raise _Refused(f"must be a sequence from 0 to 2**63 - 1, not {text!r}")
    return _parse_start(value)


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
    return _zoned(value, text) if isinstance(value, datetime) else value


def _zoned(value: datetime, text: str) -> datetime:
    if value.tzinfo is None:
        raise _Refused(f"the time needs a zone, as in 2024-08-09T12:00:00Z: {text!r}")
    return value


def moment(text: str) -> int:
    """Check an ISO time; return it in ns since the epoch."""
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        value = None
    if value is None:
        raise _Refused(f"must be a time such as 2024-08-09T12:00:00Z, not {text!r}")
    return _parse_start(_zoned(value, text)).position


def session_prefix(text: str) -> str:
    """Check the first hexadecimal digits of a session, or all; return them in lower case.

    `0x…` is a number, and so all of them.
    """
    digits = text.lower().removeprefix("0x")
    if not re.fullmatch(f"[0-9a-f]{{1,{SESSION_DIGITS}}}", digits):
        raise _Refused(f"must be a session of at most 16 hexadecimal digits, not {text!r}")
    return digits if digits == text.lower() else digits.zfill(SESSION_DIGITS)


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


def line_format(text: str) -> str:
    """Check the format of a line; in it, a backslash and t, or n, are a tab, or a new line."""
    form = text.replace("\\t", "\t").replace("\\n", "\n")
    try:
        fields_of(form)
    except ValueError as error:
        raise _Refused(f"{error}: {text!r}") from error
    return form


def directory(text: str) -> str:
    """Check a directory to read."""
    if not os.path.isdir(text):
        reason = "it is no directory" if os.path.exists(text) else "no such directory"
        raise _Refused(f"cannot read {text!r}: {reason}")
    if not os.access(text, os.R_OK | os.X_OK):
        raise _Refused(f"cannot read {text!r}: permission denied")
    return text


def lines_file(what: str) -> Callable[[str], list[str]]:
    """Return the check of a file with a secret, token or the like in each line, at least one."""

    def read(text: str) -> list[str]:
        try:
            with open(text, encoding="utf-8") as file:
                found = [line.strip() for line in file if line.strip()]
        except (OSError, ValueError) as error:
            raise _Refused(cannot("read", text, error)) from error
        if not found:
            raise _Refused(f"{text!r} has no {what}, which is a line")
        return found

    return read


def input_file(text: str) -> str:
    """Check a file to read."""
    try:
        with open(text, "rb") as file:
            if not file.seekable():
                raise _Refused(f"{text!r} cannot be read twice, as a file can")
    except OSError as error:
        raise _Refused(cannot("read", text, error)) from error
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


BIND = option(
    "endpoint", "where to bind: tcp://HOST:PORT, ipc://PATH or udp://GROUP:PORT", "ENDPOINT",
    bind_endpoint,
)  # fmt: skip
TOPIC = option("topic", "the topic to publish under", "TOPIC", topic)
TOPICS = option(
    "topics", "topics, or prefixes such as 'trades.*' (default: all)", "TOPIC", topic_or_prefix,
    nargs="*", default=[],
)  # fmt: skip
RECOVERY = option(
    "--recovery", "where subscribers ask for repairs (default: the same host, any free port)",
    "ENDPOINT", bind_endpoint,
)  # fmt: skip
STATS = option(
    "--stats", "report the counters on standard error every so many seconds (default: never)", "S",
    seconds, default=0.0,
)  # fmt: skip
FSYNC = option(
    "--fsync", "when the log is forced to the disk; always: before anything else is done with a "
    "message (default: interval)", choices=("never", "interval", "always"),
)  # fmt: skip
CERTIFICATE = (
    option("--cert", "for https: a file with the certificate", "FILE", input_file),
    option("--cert-key", "and one with its key", "FILE", input_file),
)
QUIET = flag("--quiet", "do not say on standard error what is waited for")
NO_BAR = flag("--quiet", "draw no progress bar")
JSON = flag("--json", "print one JSON object")
COUNT = option("--count", "end after N messages", "N", count(1))
JSON_LINES = flag("--json", "each line is a JSON value")
KEY_FIELD = "take the key from this field of each JSON object"


def log_config(arguments: argparse.Namespace) -> "LogConfig | None":
    """Return the log of `--log` with its options; `UsageError` for these alone, or wrong."""
    names = [name for name in ("retention_bytes", "retention_age", "fsync") if name in arguments]
    given = {name: getattr(arguments, name) for name in names}
    options = {name: value for name, value in given.items() if value is not None}
    if arguments.log is None:
        if options:
            name = next(iter(options)).removesuffix("_bytes").replace("_", "-")
            raise UsageError(f"--{name} goes with --log")
        return None
    from recovery.log import LogConfig

    try:
        return LogConfig(arguments.log, **options)
    except ValueError as error:
        raise UsageError(str(error)) from error


def require_certificate(arguments: argparse.Namespace) -> None:
    """Raise `UsageError` for a certificate without its key, or a key without it."""
    if (arguments.cert is None) != (arguments.cert_key is None):
        raise UsageError("--cert and --cert-key go together")


def waiting_options(wait: str, close_timeout: float) -> tuple[Option, ...]:
    """Return what publishing commands share: whom to wait for, how long, and the name.

    Args:
        wait: the name of the option for the number of subscribers.
        close_timeout: the default of `--close-timeout`, in seconds.

    """
    return (
        option(wait, "wait for so many subscribers first (default 1; 0: do not wait)", "N",
               count(0), default=1),
        option("--timeout", "give up when they have not come after so many seconds (default: "
               "never)", "S", seconds),
        option("--name", "the publisher's name (default: the endpoint)"),
        option("--close-timeout", "at the end, wait at most so many seconds until all subscribers "
               f"have everything (default {close_timeout:g})", "S", seconds, default=close_timeout),
    )  # fmt: skip
