"""`p2pmsg push`: make jobs of what comes in on standard input."""

import argparse
import sys
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.pub import InputError, lines, reader
from p2pmsg.errors import MessageError
from p2pmsg.queue.config import PusherConfig
from p2pmsg.queue.pusher import Pusher

_DESCRIPTION = """\
Make a job of each line of standard input.

A job's value is the line's bytes; with --json, the JSON value on it. At the end it waits until all
are done. Exit status 1: some became dead letters.

examples:
  seq 100 | p2pmsg push tcp://127.0.0.1:5557
  p2pmsg push 'tcp://*:5557' --json --key-field order --log jobs.log < orders.jsonl
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "push", _DESCRIPTION, run)
    parser.add_argument(
        "endpoint", metavar="ENDPOINT", type=kinds.bind_endpoint,
        help="where to bind: tcp://HOST:PORT or ipc://PATH",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="each line is a JSON value")
    parser.add_argument(
        "--key-field", metavar="FIELD",
        help="take the key from this field of each JSON object; jobs of one key keep their order",
    )  # fmt: skip
    parser.add_argument(
        "--priority", metavar="N", type=kinds.count(0, 9), default=0, help="0 to 9 (default 0)"
    )
    parser.add_argument(
        "--delay", metavar="S", type=kinds.seconds, default=0.0,
        help="do not hand a job out before so many seconds (default 0)",
    )  # fmt: skip
    parser.add_argument(
        "--log", metavar="DIR", help="keep jobs there, and go on with those that were not done"
    )
    parser.add_argument(
        "--in-flight", metavar="N", type=kinds.count(1), default=1000,
        help="read on while fewer jobs than this are not done (default 1000)",
    )  # fmt: skip
    parser.add_argument(
        "--ack-timeout", metavar="S", type=kinds.seconds, default=30.0,
        help="give the jobs of a worker that is silent for so long to others (default 30)",
    )  # fmt: skip
    parser.add_argument(
        "--deliveries", metavar="N", type=kinds.count(1), default=5,
        help="after so many failures a job is a dead letter (default 5)",
    )  # fmt: skip
    parser.add_argument(
        "--admin", choices=("local", "always", "never"), default="local",
        help="answer `p2pmsg dead-letters`: where bound to loopback or a Unix socket (default), "
        "always, or never",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="S", type=kinds.seconds,
        help="give up when not all is done so many seconds after the last line (default: never)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Push."""
    source = kinds.standard_input()
    read = reader(arguments.json, arguments.key_field)
    pusher = Pusher(
        arguments.endpoint,
        log=arguments.log,
        in_flight_max=arguments.in_flight,
        ack_timeout=arguments.ack_timeout,
        deliveries_max=arguments.deliveries,
        config=PusherConfig(admin=arguments.admin),
    )
    try:
        for number, line in lines(source):
            try:
                value, key = read(line)
                pusher.push(value, key=key, priority=arguments.priority, delay=arguments.delay)
            except (MessageError, ValueError) as error:
                raise InputError(number, str(error)) from error
        pusher.drain(timeout=arguments.timeout)
    finally:
        pusher.close(timeout=0.0)
        stats = pusher.stats()
        counts = f"{stats.done:,} done, {stats.dead:,} dead letters, {stats.in_flight:,} not done"
        print(f"p2pmsg push: {counts}", file=sys.stderr)
    return 1 if stats.dead else 0
