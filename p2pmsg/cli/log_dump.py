"""`p2pmsg log dump`: messages of a log as JSON lines."""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.log_access import (
    Reading,
    add_directory,
    add_part,
    choose,
    note_waiting,
    open_log,
    teller,
)
from p2pmsg.cli.log_text import log_message_json
from p2pmsg.message import MessageBatch

_GATHER = 512
"""How many lines are written at once; on a terminal and at the end of a frame, fewer."""
_DESCRIPTION = """\
Print messages of a log as JSON lines.

Each message is a JSON object: topic, session, sequence, key, timestamp_ns, headers, value; bytes
that are not UTF-8 are {"base64": "…"}. The order is that in which they were appended. What is
missing in between, or damaged, is told on standard error, and the status is 1.

examples:
  p2pmsg log dump var/prices trades --from 9000000 --count 10
  p2pmsg log dump var/prices --from 2024-08-09T09:30:00Z --to 2024-08-09T10:00:00Z | gzip > half.gz
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "dump", _DESCRIPTION, run, group="log")
    add_directory(parser)
    add_part(parser)
    parser.add_argument("--count", metavar="N", type=kinds.count(1), help="end after N messages")


def run(arguments: argparse.Namespace) -> int:
    """Print the messages."""
    with open_log(arguments.directory) as reader:
        reading = Reading(reader, choose(reader, arguments), teller("dump"))
        for batch in _first(reading, arguments.count):
            _write(batch)
        note_waiting("dump", reader)
    return 0 if reading.is_whole else 1


def _first(reading: Reading, count: int | None) -> Iterator[MessageBatch]:
    """Return the batches up to `count` messages."""
    left = count
    for piece in reading.pieces():
        batch = piece.batch
        if left is not None:
            batch = batch.part(0, min(left, len(batch)))
            left -= len(batch)
        yield batch
        if left == 0:
            return


def _write(batch: MessageBatch) -> None:
    if sys.stdout is None:
        return
    messages = iter(batch)
    while lines := [log_message_json(message) for message in islice(messages, _GATHER)]:
        lines.append("")
        sys.stdout.buffer.write("\n".join(lines).encode(errors="replace"))
    if kinds.is_terminal(sys.stdout):
        sys.stdout.buffer.flush()
