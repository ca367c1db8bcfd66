"""`p2pmsg sub`: print messages, and losses on standard error."""

import argparse
import select
import sys
import time
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.text import message_json, render_stats, value_text
from p2pmsg.errors import LossReport, SessionEndedError
from p2pmsg.message import MessageBatch
from p2pmsg.sync.subscriber import Subscriber

_SLICE_S = 0.25
"""How often it is looked whether the output is still read."""
_COMMIT_S = 0.1
"""How often what was printed is committed; forcing it to the disk takes about a millisecond."""
_DESCRIPTION = """\
Print messages as they come.

A message is printed as its value: text as it is, bytes that are not UTF-8 as base64:…, the rest as
JSON. What is lost for good is told on standard error, with its range and the reason.
When the session of a mold:// feed says that it is over, and all of it was printed, a line on
standard error says so, and the command ends.

examples:
  p2pmsg sub tcp://127.0.0.1:5556
  p2pmsg sub tcp://10.0.0.1:5556,tcp://10.0.0.2:5556 trades 'quotes.*' --json --start earliest
  p2pmsg sub tcp://127.0.0.1:5556 trades --count 10 --timeout 5 --stats
  p2pmsg sub tcp://127.0.0.1:5556 trades --start earliest --cursor var/trades.cursor
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "sub", _DESCRIPTION, run)
    parser.set_defaults(ends=("count",))
    parser.add_argument(
        "endpoints", metavar="ENDPOINT", type=kinds.connect_endpoints,
        help="of the publisher: tcp://HOST:PORT, ipc://PATH, udp://GROUP:PORT or "
        "mold://GROUP:PORT; several separated by commas",
    )  # fmt: skip
    parser.add_argument(
        "topics", metavar="TOPIC", nargs="*", default=[], type=kinds.topic_or_prefix,
        help="what to take: topics, or prefixes such as 'trades.*' (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true",
        help="print each message as a JSON object: topic, sequence, key, timestamp_ns, headers, "
        'value, publisher; bytes that are not UTF-8 as {"base64": "…"}',
    )  # fmt: skip
    parser.add_argument("--count", metavar="N", type=kinds.count(1), help="end after N messages")
    parser.add_argument(
        "--start", metavar="WHERE", type=kinds.start, default="latest",
        help="latest (default), earliest, a sequence, or a time such as 2024-08-09T12:00:00Z, "
        "as far as the publisher's buffer reaches",
    )  # fmt: skip
    parser.add_argument(
        "--cursor", metavar="FILE",
        help="keep the position in this file and go on from there at the next start; only what was "
        f"printed in the last {_COMMIT_S:g} s before a kill or a crash is printed again",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="S", type=kinds.seconds,
        help="give up, with status 1, when no message came for so many seconds (default: never)",
    )  # fmt: skip
    parser.add_argument(
        "--stats", action="store_true", help="print the ledger on standard error at the end"
    )
    parser.add_argument("--name", default="", help="the subscriber's name, for the publisher")


def run(arguments: argparse.Namespace) -> int:
    """Print messages until the end, if one is wanted."""
    with Subscriber(
        arguments.endpoints,
        topics=arguments.topics or None,
        start=arguments.start,
        on_gap=_tell_loss,
        on_end="stop",
        name=arguments.name,
        cursor=arguments.cursor,
    ) as subscriber:
        try:
            _print_messages(subscriber, arguments)
        finally:
            if arguments.stats:
                print(render_stats(subscriber.stats()), file=sys.stderr, flush=True)
    return 0


def _tell_loss(report: LossReport) -> None:
    print(f"p2pmsg sub: {kinds.one_line(str(report))}", file=sys.stderr, flush=True)


def _print_messages(subscriber: Subscriber, arguments: argparse.Namespace) -> None:
    output = _Output(arguments.json)
    position = _Position(subscriber if arguments.cursor is not None else None)
    try:
        _print_until_the_end(subscriber, arguments, output, position)
    finally:
        position.commit()


def _print_until_the_end(
    subscriber: Subscriber, arguments: argparse.Namespace, output: "_Output", position: "_Position"
) -> None:
    wanted, timeout = arguments.count, arguments.timeout
    came = 0
    last_s = time.monotonic()
    while wanted is None or came < wanted:
        count_max = 65_536 if wanted is None else min(65_536, wanted - came)
        left_s = _SLICE_S if timeout is None else last_s + timeout - time.monotonic()
        try:
            batch = subscriber.receive_many(count_max, timeout=max(0.0, min(_SLICE_S, left_s)))
        except SessionEndedError as ended:
            print(f"p2pmsg sub: {kinds.one_line(str(ended))}", file=sys.stderr, flush=True)
            if ended.end.announced:
                return
            continue
        except TimeoutError:
            output.check()
            position.commit()
            if left_s <= _SLICE_S and timeout is not None:
                of = f"{came:,}" if wanted is None else f"{came:,} of {wanted:,}"
                raise TimeoutError(f"no message for {timeout:g} s; {of} came") from None
            continue
        came += len(batch)
        output.write(batch)
        position.note(batch)
        last_s = time.monotonic()


class _Position:
    """What was printed, committed now and then; without a subscriber never."""

    def __init__(self, subscriber: Subscriber | None) -> None:
        self._subscriber = subscriber
        self._printed: dict[tuple[int, str], MessageBatch] = {}
        self._committed_s = 0.0

    def note(self, batch: MessageBatch) -> None:
        """Note that a batch was printed."""
        if self._subscriber is not None:
            self._printed[batch.session, batch.topic] = batch
            if time.monotonic() - self._committed_s > _COMMIT_S:
                self.commit()

    def commit(self) -> None:
        """Commit what was printed."""
        if self._subscriber is not None:
            for batch in list(self._printed.values()):
                self._subscriber.commit(batch)
            self._printed.clear()
            self._committed_s = time.monotonic()


class _Output:
    """Standard output, as UTF-8 whatever the locale says."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._to_terminal = kinds.is_terminal(sys.stdout)
        self._poll = select.poll()
        try:
            self._poll.register(sys.stdout.fileno(), 0)  # errors are always told
        except (OSError, ValueError, AttributeError):
            pass  # it is no real file

    def write(self, batch: MessageBatch) -> None:
        if self._as_json:
            lines = [message_json(message) for message in batch]
        else:
            lines = [value_text(value, to_terminal=self._to_terminal) for value in batch.values]
        lines.append("")
        if sys.stdout is not None:
            sys.stdout.buffer.write("\n".join(lines).encode(errors="replace"))
            sys.stdout.buffer.flush()

    def check(self) -> None:
        """Raise `BrokenPipeError` if nobody reads any more; otherwise only a write would tell."""
        for _, events in self._poll.poll(0):
            if events & select.POLLERR:
                raise BrokenPipeError
