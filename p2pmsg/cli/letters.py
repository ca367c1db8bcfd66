"""`p2pmsg dead-letters` of a queue, and `p2pmsg hook dead-letters`."""

import argparse
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.command import UsageError, command, flag, note, one_line, option
from p2pmsg.cli.secured import SECURITY, security_of
from p2pmsg.cli.text import render_columns, value_text
from p2pmsg.queue import DeadLetter, LiveBox, LogBox
from p2pmsg.toolkit import json_value, time_text, to_json

_CELL_CHARACTERS = 60
_ACTION = option("action", "what to do", choices=("ls", "show", "retry", "purge"))
_ALL = flag("--all", "all of them")
_JSON = flag("--json", "a JSON object a line")
_QUEUE_COLUMNS = ("dead_since", "why", "key", "reason", "sequence", "delivery_count")
_HOOK_COLUMNS = ("id", "endpoint", "topic", "since", "reason", "sequence", "attempts")


@command(
    "dead-letters", _ACTION,
    option("where", "a pusher's endpoint, or a log's directory", "WHERE"),
    option("chosen", "which of them", "SEQUENCE", kinds.count(0, 2**63 - 1), nargs="*", default=[]),
    _ALL, _JSON,
    option("--timeout", "how long to wait for the pusher, in seconds (default 5)", "S",
           kinds.seconds, default=5.0),
    *SECURITY,
)  # fmt: skip
def of_queue(arguments: argparse.Namespace) -> int:
    """List, show, retry or purge dead letters of a queue.

    WHERE is the endpoint of a pusher that runs, or the directory of a log. A log can be listed
    and shown at any time, and changed while its pusher does not run. A pusher that is bound to
    more than loopback or a Unix socket refuses, unless it allows it (PusherConfig.admin).

    For example:
      p2pmsg dead-letters ls tcp://127.0.0.1:5557
      p2pmsg dead-letters show jobs.log 17
      p2pmsg dead-letters retry tcp://127.0.0.1:5557 17 18
      p2pmsg dead-letters purge jobs.log --all

    Exit status 1: a sequence that was named is no dead letter.

    """
    _check(arguments)
    action, chosen = arguments.action, arguments.chosen
    box: LiveBox | LogBox
    if "://" in arguments.where:
        box = LiveBox(arguments.where, arguments.timeout, security_of(arguments))
    else:
        box = LogBox(arguments.where)
    try:
        if action in ("retry", "purge"):
            done = box.act(action, chosen, arguments.all)
            print(f"{done} {'made jobs again' if action == 'retry' else 'thrown away'}")
            return _report_missing(len(set(chosen)) - done)
        found = [each for each in box.list() if not chosen or each.sequence in chosen]
    finally:
        box.close()
    _print([_queue_fields(each) for each in found], arguments, _QUEUE_COLUMNS)
    return _report_missing(len(set(chosen)) - len(found))


_OF_JOBS = (
    "sequence", "why", "reason", "value", "key", "priority", "message_id", "headers",
    "delivery_count",
)  # fmt: skip


def _queue_fields(letter: DeadLetter) -> dict[str, Any]:
    times = {
        "pushed": letter.pushed_ns,
        "first_delivered": letter.first_delivered_ns,
        "last_delivered": letter.last_delivered_ns,
        "dead_since": letter.dead_ns,
    }
    history = [
        {"at": time_text(f.at_ns, "milliseconds"), "worker": f.worker, "reason": f.reason}
        for f in letter.history
    ]
    return {
        **{name: getattr(letter, name) for name in _OF_JOBS},
        **{name: time_text(ns, "milliseconds") for name, ns in times.items()},
        "history": history,
    }


@command(
    "hook dead-letters", _ACTION,
    option("state", "the folder of `p2pmsg hook out --state`", "DIR", kinds.directory),
    option("chosen", "which of them", "ID", nargs="*", default=[]),
    _ALL, _JSON,
)  # fmt: skip
def of_hooks(arguments: argparse.Namespace) -> int:
    """List, show, retry or purge what no URL took.

    The sender may run or not: one that runs sends again what is asked within a second, another at
    its next start.

    For example:
      p2pmsg hook dead-letters ls hooks
      p2pmsg hook dead-letters show hooks msg_caf309e21b63153c6f0493e9fc9b18e4
      p2pmsg hook dead-letters retry hooks --all

    Exit status 1: an id that was named is no dead letter.

    """
    from p2pmsg.webhooks import Letters, folders

    _check(arguments)
    action, chosen = arguments.action, set(arguments.chosen)
    rows = []
    for folder in folders(arguments.state):
        with closing(Letters(folder)) as letters:
            found = [each for each in letters.all("dead") if not chosen or each.id in chosen]
            rows += [_hook_fields(folder.name, each) for each in found]
            if action in ("retry", "purge"):
                change = letters.ask if action == "retry" else letters.purge
                change([each.id for each in found])
    if action in ("retry", "purge"):
        print(f"{len(rows)} {'will be sent again' if action == 'retry' else 'thrown away'}")
    else:
        _print(rows, arguments, _HOOK_COLUMNS)
    return _report_missing(len(chosen - {row["id"] for row in rows}))


def _hook_fields(endpoint: str, letter: Any) -> dict[str, Any]:
    return {
        "id": letter.id,
        "endpoint": endpoint,
        "topic": letter.topic,
        "session": f"{letter.session:016x}",
        "sequence": letter.sequence,
        "key": letter.key,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "since": time_text(letter.at_ns, "seconds"),
        "body": json_value(letter.body),
    }


def _check(arguments: argparse.Namespace) -> None:
    if arguments.chosen and arguments.all:
        raise UsageError("those that are named and --all exclude one another")
    if arguments.action in ("retry", "purge") and not (arguments.chosen or arguments.all):
        raise UsageError(f"{arguments.action} needs those that it is for, or --all")


def _print(
    rows: Sequence[dict[str, Any]], arguments: argparse.Namespace, columns: tuple[str, ...]
) -> None:
    if arguments.json:
        for row in rows:
            print(to_json(row))
    elif arguments.action == "show":
        pages = (
            "\n".join(f"{name}: {one_line(value_text(value))}" for name, value in row.items()
                      if value is not None)
            for row in rows
        )  # fmt: skip
        print("\n\n".join(pages))
    elif rows:
        titles = [name.replace("_", " ") for name in columns]
        table = [tuple(_cell(row[name]) for name in columns) for row in rows]
        print(render_columns(titles, table, len(columns) - 2))


def _cell(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    line = one_line(value or "-")
    return line if len(line) <= _CELL_CHARACTERS else f"{line[: _CELL_CHARACTERS - 1]}…"


def _report_missing(missing: int) -> int:
    """Report how many of those that were named are no dead letters; return the exit status."""
    if missing <= 0:
        return 0
    what = "is no dead letter" if missing == 1 else "are no dead letters"
    note("dead-letters", f"{missing} of these {what}")
    return 1
