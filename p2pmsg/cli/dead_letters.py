"""`p2pmsg dead-letters`: look at the jobs that nobody could do, try them again, throw them away."""

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.text import render_columns, to_json, value_text
from p2pmsg.queue.admin import DeadLetterBox, LiveBox, LogBox
from p2pmsg.queue.dead_letters import DeadLetter

_DESCRIPTION = """\
List, show, retry or purge dead letters.

WHERE is the endpoint of a pusher that runs, or the directory of a log; a log can be listed and
shown at any time, and changed while its pusher does not run. A pusher that is bound to more than
loopback or a Unix socket refuses, unless it was told otherwise (PusherConfig.admin, push --admin).

examples:
  p2pmsg dead-letters ls tcp://127.0.0.1:5557
  p2pmsg dead-letters show jobs.log 17
  p2pmsg dead-letters retry tcp://127.0.0.1:5557 17 18
  p2pmsg dead-letters purge jobs.log --all

Exit status 1: a sequence that was named is no dead letter.
"""
_REASON_CHARACTERS = 60


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "dead-letters", _DESCRIPTION, run)
    parser.add_argument(
        "action", metavar="ls|show|retry|purge", choices=("ls", "show", "retry", "purge"),
        help="what to do",
    )  # fmt: skip
    parser.add_argument("where", metavar="WHERE", help="a pusher's endpoint, or a log's directory")
    parser.add_argument(
        "sequences", metavar="SEQUENCE", nargs="*", default=[],
        type=kinds.count(0, 2**63 - 1), help="which of them",
    )  # fmt: skip
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    parser.add_argument(
        "--timeout", metavar="S", type=kinds.seconds, default=5.0,
        help="how long to wait for the pusher, in seconds (default 5)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Do as told."""
    action, chosen = arguments.action, arguments.sequences
    if action != "ls" and bool(chosen) == arguments.all:
        print(f"p2pmsg dead-letters: {action} needs sequences, or --all", file=sys.stderr)
        return 2
    box: DeadLetterBox
    if "://" in arguments.where:
        box = LiveBox(arguments.where, arguments.timeout)
    else:
        box = LogBox(arguments.where)
    try:
        if action in ("retry", "purge"):
            count = box.act(action, chosen, arguments.all)
            done = "made jobs again" if action == "retry" else "thrown away"
            print(f"{count} {done}")
            return _tell_missing(len(set(chosen)) - count)
        letters = [each for each in box.list() if not chosen or each.sequence in chosen]
    finally:
        box.close()
    if letters:
        _print(letters, action, arguments.json)
    return _tell_missing(len(set(chosen)) - len(letters))


def _tell_missing(count: int) -> int:
    """Say how many of those that were named are no dead letters; return the exit status."""
    if count <= 0:
        return 0
    what = "is no dead letter" if count == 1 else "are no dead letters"
    print(f"p2pmsg dead-letters: {count} of these sequences {what}", file=sys.stderr)
    return 1


def _print(letters: list[DeadLetter], action: str, as_json: bool) -> None:
    if as_json:
        for letter in letters:
            print(to_json(_fields(letter)))
    elif action == "show":
        print("\n\n".join(map(_page, letters)))
    else:
        titles = ("dead since", "why", "key", "reason", "sequence", "deliveries")
        rows = [
            (_time(each.dead_ns), each.why, each.key or "-", _short(each.reason), each.sequence,
             each.delivery_count)
            for each in letters
        ]  # fmt: skip
        print(render_columns(titles, rows, 4))


def _page(letter: DeadLetter) -> str:
    lines = [f"{name}: {value_text(value)}" for name, value in _fields(letter).items()
             if name != "history" and value is not None]  # fmt: skip
    lines += [
        f"  {_time(failure.at_ns)}  {failure.worker}: {value_text(failure.reason)}"
        for failure in letter.history
    ]
    return "\n".join(lines)


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        "sequence": letter.sequence,
        "why": letter.why,
        "value": letter.value,
        "key": letter.key,
        "priority": letter.priority,
        "message_id": letter.message_id,
        "headers": letter.headers,
        "delivery_count": letter.delivery_count,
        "pushed": _time(letter.pushed_ns),
        "first_delivered": _time(letter.first_delivered_ns),
        "last_delivered": _time(letter.last_delivered_ns),
        "dead_since": _time(letter.dead_ns),
        "history": [
            {"at": _time(f.at_ns), "worker": f.worker, "reason": f.reason} for f in letter.history
        ],
    }


def _time(ns: int) -> str:
    whole = datetime.fromtimestamp(ns // 10**9, UTC).replace(tzinfo=None)
    return f"{whole.isoformat()}.{ns % 10**9 // 10**6:03d}Z"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _REASON_CHARACTERS else f"{line[: _REASON_CHARACTERS - 1]}…"
