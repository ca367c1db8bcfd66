"""`p2pmsg request`: ask a responder."""

import argparse
import sys
from typing import Any

from p2pmsg import Requester, codec
from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, flag, option
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import value_text
from p2pmsg.toolkit import to_json


@command(
    "request",
    option("endpoints", "the responders' endpoints", "ENDPOINT[,ENDPOINT…]", kinds.endpoints),
    option("topic", "the topic of the request", "TOPIC", kinds.topic),
    option("value", "the value of the request (default: nil)", "VALUE", nargs="?"),
    flag("--json", "the value is JSON"),
    flag("--all", "ask all responders"),
    option("--timeout", "how long to wait in all, in seconds, at most 1000000 (default 5)", "S",
           kinds.number(0, 1e6), default=5.0),
    *SECURITY,
)  # fmt: skip
def request(arguments: argparse.Namespace) -> int:
    """Ask one of several responders, or all, and print the answer.

    The value is text; with --json, a JSON value. An answer that is not text is printed as JSON.
    With --all, a line of JSON for each responder. Exit status 1: no answer, or not from all.

    For example:
      p2pmsg request tcp://127.0.0.1:5560 square 12 --json
      p2pmsg request tcp://a:5560,tcp://b:5560 price EURUSD --all --timeout 0.5
    """
    value: Any = arguments.value
    if arguments.json and value is not None:
        try:
            value = codec.json_decode(value)
        except codec.CodecError as error:
            raise UsageError(f"VALUE is not JSON: {error}") from error
    with Requester(arguments.endpoints, security=security_of(arguments)) as requester:
        if arguments.all:
            return _ask_all(requester, arguments, value)
        answer = requester.request(arguments.topic, value, timeout=arguments.timeout)
    print(value_text(answer, to_terminal=kinds.is_terminal(sys.stdout)))
    return 0


def _ask_all(requester: Requester, arguments: argparse.Namespace, value: Any) -> int:
    has_failed = False
    for answer in requester.request_all(arguments.topic, value, deadline=arguments.timeout):
        found = {"answer": answer.value}
        if answer.error is not None:
            has_failed = True
            found = {"error": "no answer" if answer.is_missing else str(answer.error)}
        print(to_json({"responder": answer.endpoint, **found}))
    return 1 if has_failed else 0
