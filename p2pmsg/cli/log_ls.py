"""`p2pmsg log ls`: what a log has, how fast it grows, and how long a window the disk holds."""

import argparse
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from p2pmsg.cli import arguments as kinds
from p2pmsg.cli.log_access import Key, add_directory, as_rate, note, note_waiting, open_log
from p2pmsg.cli.log_text import bytes_text, rate_text, session_text, span_text, time_text
from p2pmsg.cli.text import render_columns, to_json
from p2pmsg.wire import Frame, FrameError, decode_columns

if TYPE_CHECKING:
    from recovery.log import LogReader, StreamSummary

_TITLES = (
    "topic", "session", "from", "to", "first", "next", "messages", "bytes", "messages/s", "bytes/s",
)  # fmt: skip
_TEXT_COLUMNS = 4
_DESCRIPTION = """\
List the streams of a log.

Of each stream: its session, the times of its messages (UTC), its first sequence and the next one,
messages, bytes, and the rate at which it was written. Below stands how long a window the disk holds
at that rate: of --disk, else of what is free and what the log has.

examples:
  p2pmsg log ls var/prices
  p2pmsg log ls var/prices --disk 500GB --json
"""


def add_parser(commands: Any) -> None:
    """Add the command."""
    parser = kinds.add_command(commands, "ls", _DESCRIPTION, run, group="log")
    add_directory(parser)
    parser.add_argument(
        "--disk", metavar="BYTES", type=kinds.byte_count,
        help="reckon with so many bytes: 500GB, 2TiB (default: what is free and what the log has)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """List the streams."""
    directory = arguments.directory
    with open_log(directory) as reader:
        streams = sorted(reader.streams(), key=lambda stream: (stream.topic, stream.session))
        begins = {(s.session, s.topic): begin_ns(reader, s) for s in streams}
        session = reader.session
        if reader.corrupt:
            note("ls", f"the log is damaged: `p2pmsg log verify {directory}` tells where")
        waiting = note_waiting("ls", reader)
    log_bytes = directory_bytes(directory)
    disk = arguments.disk
    if disk is None:
        disk = shutil.disk_usage(directory).free + log_bytes
    result = summarize(streams, begins, log_bytes, disk)
    if arguments.json:
        named = {"directory": directory, "session": session and session_text(session)}
        print(to_json({**named, **result, "waiting": waiting}))
    else:
        print(render(streams, result, is_stated=arguments.disk is not None))
    return 0


def begin_ns(reader: "LogReader", stream: "StreamSummary") -> int:
    """Return the time of a stream's first message; the log itself knows each frame's newest."""
    key = (stream.session, stream.topic)
    kept = reader.frames(*key, stream.earliest, stream.earliest + 1, 1)
    try:
        frame = Frame(bytes(kept[0].frame))
        times: list[int] = decode_columns(frame)[1] or [frame.base_timestamp_ns]
        return min(times)
    except (FrameError, IndexError):
        return stream.timestamp_ns_min


def directory_bytes(directory: str) -> int:
    """Return the size of the files in a directory; those that vanish meanwhile do not count."""
    size = 0
    for entry in os.scandir(directory):
        try:
            size += entry.stat().st_size if entry.is_file() else 0
        except FileNotFoundError:
            pass
    return size


def summarize(
    streams: "Sequence[StreamSummary]", begins: Mapping[Key, int], log_bytes: int, disk: int
) -> dict[str, Any]:
    """Return what `--json` prints."""
    rows = [_row(stream, begins[stream.session, stream.topic]) for stream in streams]
    messages = sum(row["messages"] for row in rows)
    first_ns = min((stream.appended_ns_first for stream in streams), default=0)
    last_ns = max((stream.appended_ns_last for stream in streams), default=0)
    bytes_s = as_rate(log_bytes, first_ns, last_ns)
    return {
        "streams": rows,
        "messages": messages,
        "bytes": log_bytes,
        "messages_s": as_rate(messages, first_ns, last_ns),
        "bytes_s": bytes_s,
        "disk_bytes": disk,
        "window_s": disk / bytes_s if bytes_s else None,
    }


def _row(stream: "StreamSummary", begin_ns: int) -> dict[str, Any]:
    messages = stream.next - stream.earliest
    appended = (stream.appended_ns_first, stream.appended_ns_last)
    return {
        "topic": stream.topic,
        "session": session_text(stream.session),
        "earliest": stream.earliest,
        "next": stream.next,
        "timestamp_ns_min": min(begin_ns, stream.timestamp_ns_min),
        "timestamp_ns_max": stream.timestamp_ns_max,
        "messages": messages,
        "frames": stream.frames,
        "bytes": stream.bytes,
        "messages_s": as_rate(messages, *appended),
        "bytes_s": as_rate(stream.bytes, *appended),
    }


def render(streams: "Sequence[StreamSummary]", result: dict[str, Any], *, is_stated: bool) -> str:
    """Return the table, and the window."""
    if not streams:
        return "the log has no stream"
    rows = [
        (
            kinds.one_line(row["topic"]), row["session"],
            time_text(row["timestamp_ns_min"]), time_text(row["timestamp_ns_max"]),
            row["earliest"], row["next"], row["messages"], row["bytes"],
            rate_text(row["messages_s"]), rate_text(row["bytes_s"]),
        )
        for row in result["streams"]
    ]  # fmt: skip
    lines = [render_columns(_TITLES, rows, _TEXT_COLUMNS)]
    total = f"{result['messages']:,} messages in {bytes_text(result['bytes'])}"
    disk = bytes_text(result["disk_bytes"])
    what = disk if is_stated else f"{disk} (free, and the log itself)"
    if result["window_s"] is None:
        lines.append(f"{total}; too short to measure a rate")
    else:
        lines.append(f"{total}, written at {bytes_text(result['bytes_s'])} a second")
        lines.append(f"{what} hold {span_text(result['window_s'])} at this rate")
    return "\n".join(lines)
