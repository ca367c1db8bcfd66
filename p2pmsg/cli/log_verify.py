"""`p2pmsg log verify`: check every record of a log."""

import argparse
import os
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.log_access import add_directory, note_waiting, open_log, translated
from p2pmsg.cli.log_ls import directory_bytes
from p2pmsg.cli.log_text import bytes_text

_DESCRIPTION = """\
Check every record of a log by its checksum.

Each finding is a line: file, offset in bytes, what is wrong there. The last line is a summary. The
status is 1 where anything is wrong. Nothing is changed.

example:
  p2pmsg log verify var/prices
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "verify", _DESCRIPTION, run, group="log")
    add_directory(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check all of it; 1 where something is wrong."""
    count = 0
    with translated() as log:
        for finding in log.verify(arguments.directory):
            count += 1
            path = os.fspath(finding.path)
            print(kinds.one_line(f"{path}:{finding.offset}: {finding.what}"), flush=True)
    with open_log(arguments.directory) as reader:
        note_waiting("verify", reader)
    size = bytes_text(directory_bytes(arguments.directory))
    if count:
        print(f"{count:,} finding{'s' * (count != 1)} in {size}")
        return 1
    print(f"all is well in {size}")
    return 0
