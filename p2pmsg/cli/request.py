"""`p2pmsg request`: ask a responder."""

import argparse
import sys
from typing import Any

from p2pmsg import codec
from p2pmsg.cli.arguments import QUIET, count, is_terminal, seconds, stream_endpoints, topic
from p2pmsg.cli.command import UsageError, command, flag, option
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import value_text
from p2pmsg.cli.waiting import Waiting, checking, several
from p2pmsg.json_text import to_json
from p2pmsg.requests import Requester


@command(
    "request",
    option("endpoints", "the responders' endpoints", "ENDPOINT[,ENDPOINT…]", stream_endpoints),
    option("topic", "the topic of the request", "TOPIC", topic),
    option("value", "the value of the request (default: nil)", "VALUE", nargs="?"),
    flag("--json", "the value is JSON"),
    flag("--all", "ask all responders"),
    option("--timeout", "how long to wait in all, in seconds, at most 1000000 (default 5)", "S",
           seconds, default=5.0),
    option("--attempts", "how often to ask (default 3)", "N", count(1, 1000), default=3),
    *SECURITY,
    QUIET,
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
    requester = Requester(arguments.endpoints, security=security_of(arguments))
    waiting = Waiting(
        "request", lambda: _describe(requester, arguments.endpoints), quiet=arguments.quiet
    )
    with requester, checking(waiting):
        if arguments.all:
            return _ask_all(requester, arguments, value)
        answer = requester.request(
            arguments.topic, value, timeout=arguments.timeout, attempts_max=arguments.attempts
        )
    print(value_text(answer, to_terminal=is_terminal(sys.stdout)))
    return 0


def _describe(requester: Requester, endpoints: list[str]) -> str:
    """Return what is waited for, with what was found at endpoints that have never answered."""
    found = [f"{endpoint}: {text}" for endpoint, text in requester.unanswered().items()]
    return "; ".join([f"waiting for an answer of {several(endpoints)}", *found])


def _ask_all(requester: Requester, arguments: argparse.Namespace, value: Any) -> int:
    answers = requester.request_all(arguments.topic, value, deadline=arguments.timeout)
    for endpoint, answer in answers.values.items():
        print(to_json({"responder": endpoint, "answer": answer}))
    failed = {endpoint: str(error) for endpoint, error in answers.errors.items()}
    failed |= dict.fromkeys(answers.missing, "no answer")
    for endpoint, reason in failed.items():
        print(to_json({"responder": endpoint, "error": reason}))
    return 1 if failed else 0
