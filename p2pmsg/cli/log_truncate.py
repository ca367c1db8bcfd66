"""`p2pmsg log truncate`: shorten a log."""

import argparse
from typing import Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.log_access import Key, add_directory, open_log, translated
from p2pmsg.cli.log_ls import directory_bytes
from p2pmsg.cli.log_text import bytes_text, session_text

_DESCRIPTION = """\
Delete the oldest messages of a log.

Whole segments go, the oldest first, and the newest one stays: the newest messages cannot be cut
off, since subscribers have them and their sequences would be used twice. With both options a
segment goes where either says so. A log that a publisher writes is refused; that publisher deletes
by itself, as its retention_bytes and retention_age_s say. A segment that somebody reads stays, and
so do those behind it.

examples:
  p2pmsg log truncate var/prices --before 2024-08-09T00:00:00Z
  p2pmsg log truncate var/prices --keep 50GB
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "truncate", _DESCRIPTION, run, group="log")
    add_directory(parser)
    parser.add_argument(
        "--before", metavar="TIME", type=kinds.moment,
        help="delete segments whose newest message was appended before 2024-08-09T00:00:00Z",
    )  # fmt: skip
    parser.add_argument(
        "--keep", metavar="BYTES", type=kinds.byte_count,
        help="delete segments until they take no more than so many bytes: 50GB, 500MiB",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Shorten it, and say what went."""
    directory, before_ns, keep = arguments.directory, arguments.before, arguments.keep
    if before_ns is None and keep is None:
        raise kinds.UsageError("say what is to go: --before TIME, --keep BYTES, or both")
    had = _ranges(directory)
    with translated() as log:
        deleted = log.truncate(directory, before_ns=before_ns, bytes_max=keep)
    has = _ranges(directory)
    for key, (start, stop) in had.items():
        earliest = has[key][0] if key in has else stop
        if earliest > start:
            session, topic = key
            where = f"[{start}, {earliest}) of {topic!r} (session {session_text(session)})"
            print(f"deleted {kinds.one_line(where)}")
    left = bytes_text(directory_bytes(directory))
    if deleted:
        print(f"deleted {bytes_text(deleted)}; {left} are left")
    else:
        print(f"nothing to delete; {left} stay")
    return 0


def _ranges(directory: str) -> dict[Key, tuple[int, int]]:
    """Return the first sequence kept and the next one, by stream."""
    with open_log(directory) as reader:
        return {(s.session, s.topic): (s.earliest, s.next) for s in reader.streams()}
