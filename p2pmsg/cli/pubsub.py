"""`p2pmsg pub`: publish standard input. `p2pmsg sub`: print messages, and losses as errors."""

import argparse
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, BinaryIO

from p2pmsg import Publisher, Subscriber, codec
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import OneOf, command, flag, note, option
from p2pmsg.cli.program import wait_for
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import message_json, plural, render_stats, value_text, write_lines
from p2pmsg.errors import MessageError, SecurityError, SessionEndedError
from p2pmsg.message import MessageBatch
from p2pmsg.toolkit import StopSignals

LINE_BYTES_MAX = 1 << 20
_UNANNOUNCED_WAIT_S = 0.5
"""A shorter wait for subscribers is not reported."""
_SLICE_S = 0.25
"""How often `sub` checks whether its output is still read."""
_CLOSE_S = 5.0
"""How long `pub` waits at the end until all subscribers have everything."""


@command(
    "pub", kinds.BIND, kinds.TOPIC, kinds.JSON_LINES,
    OneOf((
        option("--key", "the key of each message"),
        option("--key-field", kinds.KEY_FIELD, "FIELD"),
    )),
    kinds.LOG, kinds.RECOVERY, *kinds.PUBLISHING,
    option("--linger", "stay so many seconds after the last line, for late subscribers (default 0)",
           "S", kinds.seconds, default=0.0),
    *SECURITY,
)  # fmt: skip
def pub(arguments: argparse.Namespace) -> int:
    """Publish lines of standard input.

    Each line is a message. Its value is the line's bytes; with --json, the JSON value on it. The
    command waits for a subscriber first, and at the end until the subscribers have everything.

    For example:
      echo hello | p2pmsg pub tcp://127.0.0.1:5556 greetings
      p2pmsg pub 'tcp://*:5556' trades --json --key-field symbol --wait 2 < trades.jsonl
      date | p2pmsg pub 'tcp://*:5556' clock --key here --log clock.log --recovery 'tcp://*:5566'
      p2pmsg pub 'tcp://*:5556' trades --security prices.key --access access.toml < trades.txt
    """
    source = kinds.standard_input()
    more: dict[str, Any] = {
        "recovery_endpoint": arguments.recovery,
        "security": security_of(arguments),
        "log": arguments.log,
    }
    with publishing(arguments, "pub", _CLOSE_S, **more) as publisher:
        has_json = arguments.json or arguments.key_field is not None

        def publish(value: Any, key: str | None) -> None:
            publisher.publish(arguments.topic, value, arguments.key if key is None else key)

        publish_lines(source, arguments, publish, skip_blank=has_json)
        publisher.flush()
        wait_for(threading.Event(), arguments.linger)
    return 1 if publisher.stats().undelivered else 0


@contextmanager
def publishing(
    arguments: argparse.Namespace, command: str, close_timeout: float, **more: Any
) -> Iterator[Publisher]:
    """Give a publisher that has its subscribers, and close it.

    `more` is what else `Publisher` takes.
    The library warns of subscribers that did not get everything.

    Raises:
        TimeoutError: fewer than `--wait` subscribers came within `--timeout`.

    """
    publisher = Publisher(arguments.endpoint, name=arguments.name, **more)
    try:
        if arguments.endpoint != publisher.endpoint:
            note(command, f"listening at {publisher.endpoint}")
        _wait_for_subscribers(publisher, arguments.wait, arguments.timeout, command)
        yield publisher
    except KeyboardInterrupt:
        close_timeout = min(close_timeout, 0.2)
        raise
    finally:
        publisher.close(timeout=close_timeout)


def _wait_for_subscribers(
    publisher: Publisher, wanted: int, timeout: float | None, command: str
) -> None:
    try:
        publisher.wait_for_subscribers(
            wanted, timeout=_UNANNOUNCED_WAIT_S if timeout is None else timeout
        )
    except TimeoutError:
        if timeout is not None:
            raise
        note(command, f"waiting for {plural(wanted, 'subscriber')} at {publisher.endpoint}")
        publisher.wait_for_subscribers(wanted)


def publish_lines(
    source: BinaryIO,
    arguments: argparse.Namespace,
    publish: Callable[[Any, str | None], object],
    *,
    skip_blank: bool = False,
) -> None:
    """Call `publish(value, key)` for each line; `MessageError` for one that is refused."""
    read = reader(arguments.json, arguments.key_field)
    for number, line in lines(source):
        if skip_blank and not line.strip():
            continue
        try:
            value, key = read(line)
            publish(value, key)
        except (MessageError, ValueError) as error:
            raise MessageError(f"line {number}:", str(error)) from error


def lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Return the lines with their numbers, without their ends; `MessageError` for one too long."""
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 2):
        number += 1
        line = line.removesuffix(b"\n")
        if len(line) > LINE_BYTES_MAX:
            raise MessageError(f"line {number}", f"is longer than {LINE_BYTES_MAX:,} bytes")
        yield number, line


def reader(as_json: bool, key_field: str | None) -> Callable[[bytes], tuple[Any, str | None]]:
    """Return what makes a value and a key of a line."""
    if not as_json and key_field is None:
        return lambda line: (line, None)
    decode = codec.json_decode

    def read(line: bytes) -> tuple[Any, str | None]:
        try:
            value = decode(line)
        except (codec.CodecError, UnicodeDecodeError) as error:
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


@command(
    "sub",
    option("endpoints", "the publisher's endpoint: tcp://HOST:PORT, ipc://PATH, udp://GROUP:PORT "
           "or mold://GROUP:PORT; several separated by commas", "ENDPOINT", kinds.endpoints),
    kinds.TOPICS,
    flag("--json", 'print each message as a JSON object: topic, sequence, key, timestamp_ns, '
         'headers, value, publisher; bytes that are not UTF-8 as {"base64": "…"}'),
    kinds.COUNT,
    option("--start", "latest (default), earliest, a sequence, or a time such as "
           "2024-08-09T12:00:00Z, as far back as the publisher's buffer goes", "WHERE", kinds.start,
           default="latest"),
    option("--cursor", "keep the position in this file and continue from there at the next start; "
           "after a kill only what was printed last is printed again, and after a crash of the "
           "system that of the last second", "FILE"),
    option("--timeout", "give up, with status 1, when no message came for so many seconds "
           "(default: never)", "S", kinds.seconds),
    flag("--stats", "print the ledger on standard error at the end"),
    option("--name", "the subscriber's name, which the publisher sees", default=""),
    *SECURITY,
    ended_by=("count",),
)  # fmt: skip
def sub(arguments: argparse.Namespace) -> int:
    """Print messages as they come.

    A message is printed as its value: text as it is, bytes that are not UTF-8 as base64:…, the
    rest as JSON. What cannot be repaired is reported on standard error, with its range and reason.
    So is an endpoint where nobody answers for 5 s, and one that refuses its key, or a topic: it
    tries again, and goes on with the others. A publisher's key is pinned by `?key=` after its
    endpoint, or by `p2pmsg trust add`.
    When the session of a mold:// feed has ended and all of it was printed, a line on standard
    error says so, and the command ends.

    For example:
      p2pmsg sub tcp://127.0.0.1:5556
      p2pmsg sub tcp://10.0.0.1:5556,tcp://10.0.0.2:5556 trades 'quotes.*' --json --start earliest
      p2pmsg sub tcp://127.0.0.1:5556 trades --count 10 --timeout 5 --stats
      p2pmsg sub tcp://127.0.0.1:5556 trades --start earliest --cursor trades.cursor
      p2pmsg sub 'tcp://10.0.0.1:5556?key=PUBLIC_KEY' --security ~/.config/p2pmsg/id
    """
    is_kept = arguments.cursor is not None
    stopped: list[None] = []
    with Subscriber(
        arguments.endpoints,
        topics=arguments.topics or None,
        start=arguments.start,
        on_gap=lambda report: note("sub", str(report)),
        on_end="stop",
        name=arguments.name,
        cursor=arguments.cursor,
        commit="message" if is_kept else "explicit",
        security=security_of(arguments),
    ) as subscriber:
        try:
            # With a cursor a signal waits for what is being printed: else that would come again.
            with StopSignals(lambda: stopped.append(None)) if is_kept else nullcontext():
                _print_messages(subscriber, arguments, stopped)
        finally:
            if arguments.stats:
                print(render_stats(subscriber.stats()), file=sys.stderr, flush=True)
    if stopped:
        signal.raise_signal(signal.SIGTERM if StopSignals.is_terminated else signal.SIGINT)
    return 0


def _print_messages(
    subscriber: Subscriber, arguments: argparse.Namespace, stopped: list[None]
) -> None:
    """Print what comes, until enough has, or something is in `stopped`."""
    output = _Output(arguments)
    wanted, timeout = arguments.count, arguments.timeout
    came = 0
    last_s = time.monotonic()
    refused = ""
    while not stopped and (wanted is None or came < wanted):
        count_max = 65_536 if wanted is None else min(65_536, wanted - came)
        left_s = _SLICE_S if timeout is None else last_s + timeout - time.monotonic()
        try:
            batch = subscriber.receive_many(count_max, timeout=max(0.0, min(_SLICE_S, left_s)))
        except SessionEndedError as ended:
            note("sub", str(ended))
            if ended.end.announced:
                return
            continue
        except SecurityError as error:  # it was logged; it is tried again, and others may answer
            refused = f"; {error}"
            continue
        except TimeoutError:
            output.check()
            if left_s <= _SLICE_S and timeout is not None:
                of = f"{came:,}" if wanted is None else f"{came:,} of {wanted:,}"
                if not (came or refused or subscriber.connected):
                    refused = f"; nobody answers at {', '.join(arguments.endpoints)}"
                raise TimeoutError(f"no message for {timeout:g} s; {of} came{refused}") from None
            continue
        came += len(batch)
        refused = ""
        output.write(batch)
        last_s = time.monotonic()


class _Output:
    """Standard output."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._as_json: bool = arguments.json
        self._to_terminal = kinds.is_terminal(sys.stdout)
        self._poll = select.poll()
        try:
            self._poll.register(sys.stdout.fileno(), 0)  # errors are reported in any case
        except (OSError, ValueError, AttributeError):
            pass  # it is no real file

    def write(self, batch: MessageBatch) -> None:
        if self._as_json:
            write_lines(message_json(message) for message in batch)
        else:
            write_lines(value_text(value, to_terminal=self._to_terminal) for value in batch.values)
        if sys.stdout is not None:
            sys.stdout.buffer.flush()

    def check(self) -> None:
        """Raise `BrokenPipeError` if nobody reads any more; otherwise only a write would show."""
        for _, events in self._poll.poll(0):
            if events & select.POLLERR:
                raise BrokenPipeError
