"""`p2pmsg log`: look into a local log, check it, play it again, shorten it."""

from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.log_dump import add_parser as add_dump
from p2pmsg.cli.log_ls import add_parser as add_ls
from p2pmsg.cli.log_replay import add_parser as add_replay
from p2pmsg.cli.log_truncate import add_parser as add_truncate
from p2pmsg.cli.log_verify import add_parser as add_verify

_DESCRIPTION = """\
Look into a local log, check it, play it again, shorten it.

All but truncate only read, and may do so while a publisher writes.

examples:
  p2pmsg log ls var/prices
  p2pmsg log dump var/prices trades --from 2024-08-09T09:30:00Z --count 10
  p2pmsg log replay var/prices tcp://127.0.0.1:5556 --speed 10
"""


def add_parser(commands: Any) -> None:
    """Add the commands."""
    summary = _DESCRIPTION.partition("\n")[0].rstrip(".")
    parser: kinds.Parser = commands.add_parser(
        "log", prog="p2pmsg log", description=_DESCRIPTION, help=summary
    )
    kinds.add_commands(parser, (add_ls, add_dump, add_verify, add_replay, add_truncate))
