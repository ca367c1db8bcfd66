"""`p2pmsg request`: ask a responder."""

import argparse
import sys
from typing import Any

import msgspec

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.text import to_json, value_text
from p2pmsg.requests import Requester

_DESCRIPTION = """\
Ask one of several responders, or all, and print the answer.

The value is text; with --json, a JSON value. An answer that is not text is printed as JSON. With
--all, a line of JSON for each responder. Exit status 1: no answer, or not from all.

examples:
  p2pmsg request tcp://127.0.0.1:5560 square 12 --json
  p2pmsg request tcp://a:5560,tcp://b:5560 price EURUSD --all --timeout 0.5
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "request", _DESCRIPTION, run)
    parser.add_argument(
        "endpoints", metavar="ENDPOINT[,ENDPOINT…]", type=kinds.connect_endpoints,
        help="where responders are bound",
    )  # fmt: skip
    parser.add_argument("topic", metavar="TOPIC", type=kinds.topic, help="what to ask")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="what with (default: nil)")
    parser.add_argument("--json", action="store_true", help="the value is JSON")
    parser.add_argument("--all", action="store_true", help="ask all of them")
    parser.add_argument(
        "--timeout", metavar="S", type=kinds.seconds, default=5.0,
        help="how long to wait in all, in seconds (default 5)",
    )  # fmt: skip
    parser.add_argument(
        "--attempts", metavar="N", type=kinds.count(1, 1000), default=3,
        help="how often to ask (default 3)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Ask."""
    value: Any = arguments.value
    if arguments.json and value is not None:
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            print(f"p2pmsg request: VALUE is not JSON: {error}", file=sys.stderr)
            return 2
    with Requester(arguments.endpoints) as requester:
        if arguments.all:
            return _ask_all(requester, arguments, value)
        answer = requester.request(
            arguments.topic, value, timeout=arguments.timeout, attempts_max=arguments.attempts
        )
    print(value_text(answer, to_terminal=kinds.is_terminal(sys.stdout)))
    return 0


def _ask_all(requester: Requester, arguments: argparse.Namespace, value: Any) -> int:
    answers = requester.request_all(arguments.topic, value, deadline=arguments.timeout)
    for endpoint, answer in answers.values.items():
        print(to_json({"responder": endpoint, "answer": answer}))
    for endpoint, error in answers.errors.items():
        print(to_json({"responder": endpoint, "error": str(error)}))
    for endpoint in answers.missing:
        print(to_json({"responder": endpoint, "error": "no answer"}))
    return 1 if answers.errors or answers.missing else 0
