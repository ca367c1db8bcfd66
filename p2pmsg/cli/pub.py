"""`p2pmsg pub`: publish what comes in on standard input."""

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.waiting import wait_for_subscribers
from p2pmsg.errors import MessageError, P2PError
from p2pmsg.sync.publisher import Publisher

LINE_BYTES_MAX = 1 << 20
_DESCRIPTION = """\
Publish lines of standard input.

Each line is a message, its value the line's bytes; with --json, the JSON value on it. It waits for
a subscriber first, and at the end until the subscribers have everything.

examples:
  echo hello | p2pmsg pub tcp://127.0.0.1:5556 greetings
  p2pmsg pub 'tcp://*:5556' trades --json --key-field symbol --wait 2 < trades.jsonl
"""


class InputError(P2PError):
    """A line of standard input cannot be published."""

    def __init__(self, line_number: int, reason: str) -> None:
        super().__init__(f"line {line_number}: {reason}")


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "pub", _DESCRIPTION, run)
    parser.add_argument(
        "endpoint", metavar="ENDPOINT", type=kinds.bind_endpoint,
        help="where to bind: tcp://HOST:PORT, ipc://PATH or udp://GROUP:PORT",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC", type=kinds.topic, help="what to publish under")
    parser.add_argument("--json", action="store_true", help="each line is a JSON value")
    parser.add_argument(
        "--key-field", metavar="FIELD", help="take the key from this field of each JSON object"
    )
    kinds.add_publisher(parser, "--wait")
    parser.add_argument(
        "--linger", metavar="S", type=kinds.seconds, default=0.0,
        help="stay so many seconds after the last line, for those who come late (default 0)",
    )  # fmt: skip
    parser.add_argument(
        "--close-timeout", metavar="S", type=kinds.seconds, default=5.0,
        help="at the end, wait so many seconds at most until all have everything (default 5)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Publish until the end of standard input."""
    source = kinds.standard_input()
    publisher = Publisher(arguments.endpoint, name=arguments.name)
    if arguments.endpoint != publisher.endpoint:
        _note(f"listening at {publisher.endpoint}")
    close_timeout = arguments.close_timeout
    try:
        wait_for_subscribers(publisher, arguments.wait, arguments.timeout, _note)
        read = reader(arguments.json, arguments.key_field)
        has_json = arguments.json or arguments.key_field is not None
        for number, line in lines(source):
            if has_json and not line.strip():
                continue
            try:
                value, key = read(line)
                publisher.publish(arguments.topic, value, key)
            except (MessageError, ValueError) as error:
                raise InputError(number, str(error)) from error
        publisher.flush()
        if arguments.linger:
            threading.Event().wait(arguments.linger)
    except KeyboardInterrupt:
        close_timeout = min(close_timeout, 0.2)
        raise
    finally:
        publisher.close(timeout=close_timeout)
    # The library's own warning has said already how many did not get everything.
    return 1 if publisher.stats().undelivered else 0


def _note(text: str) -> None:
    print(f"p2pmsg pub: {text}", file=sys.stderr, flush=True)


def lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Return the lines with their numbers, without their ends; `InputError` for one too long."""
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 2):
        number += 1
        line = line.removesuffix(b"\n")
        if len(line) > LINE_BYTES_MAX:
            raise InputError(number, f"is longer than {LINE_BYTES_MAX:,} bytes")
        yield number, line


def reader(as_json: bool, key_field: str | None) -> Callable[[bytes], tuple[Any, str | None]]:
    """Return what makes a value and a key of a line."""
    if not as_json and key_field is None:
        return lambda line: (line, None)
    decode = msgspec.json.decode

    def read(line: bytes) -> tuple[Any, str | None]:
        try:
            value = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"is not JSON: {error}") from error
        key = None if key_field is None else _key(value, key_field)
        return (value if as_json else line), key

    return read


def _key(value: Any, field: str) -> str:
    if not isinstance(value, dict):
        raise ValueError(f"is no JSON object, so it has no field {field!r}")
    if field not in value:
        raise ValueError(f"has no field {field!r}")
    key = value[field]
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ValueError(f"field {field!r} must be a string or a whole number, not {key!r}")
    return str(key)
