"""`p2pmsg log`: inspect a local log, check it, mend it, shorten it."""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from p2pmsg import log
from p2pmsg.cli import text
from p2pmsg.cli.arguments import COUNT, JSON, is_terminal, moment
from p2pmsg.cli.command import UsageError, command, note, one_line, option
from p2pmsg.cli.log_access import DIRECTORY, PART, Reading, as_rate, open_log
from p2pmsg.toolkit import time_text, to_json

_TITLES = (
    "topic", "session", "from", "to", "first", "next", "messages", "bytes", "messages/s", "bytes/s",
)  # fmt: skip
_TEXT_COLUMNS = 4


@command("log ls", DIRECTORY, JSON)
def ls(arguments: argparse.Namespace) -> int:
    """List the streams of a log.

    For each stream: its session, the times of its first and last frame (UTC), its first sequence
    and the next one, messages that are there, bytes, and the rate at which it was written. The last
    line says how long a window the disk holds at that rate, with what is free and what the log has.
    Whole segments are not read for that, as verify does; what damage is met is a line on standard
    error, and status 1.

    For example:
      p2pmsg log ls prices.log
    """
    directory = arguments.directory
    with open_log(directory) as reader:
        streams = sorted(reader.streams(), key=lambda stream: (stream.topic, stream.session))
        session, is_damaged = reader.session, bool(reader.corrupt)
        waiting = reader.waiting_count()
    if is_damaged:
        note("log ls", f"the log is damaged: `p2pmsg log verify {directory}` says where")
    log_bytes = directory_bytes(directory)
    result = summarize(streams, log_bytes, shutil.disk_usage(directory).free + log_bytes)
    if arguments.json:
        log_itself = {"directory": directory, "session": session and text.session_text(session)}
        print(to_json({**log_itself, **result, "waiting": waiting, "damaged": is_damaged}))
    else:
        print(render(result))
        if waiting:
            print(f"{waiting:,} more messages are in no frame yet: their publisher, or the next "
                  "one on this log, sends them")  # fmt: skip
    return 1 if is_damaged else 0


def directory_bytes(directory: str) -> int:
    """Return the size of the files in a directory; those that vanish meanwhile do not count."""
    size = 0
    for entry in os.scandir(directory):
        try:
            size += entry.stat().st_size if entry.is_file() else 0
        except FileNotFoundError:
            pass
    return size


def summarize(streams: Sequence[log.StreamSummary], log_bytes: int, disk: int) -> dict[str, Any]:
    """Return what `--json` prints."""
    messages = sum(stream.messages for stream in streams)
    first_ns = min((stream.appended_ns_first for stream in streams), default=0)
    last_ns = max((stream.appended_ns_last for stream in streams), default=0)
    bytes_s = as_rate(log_bytes, first_ns, last_ns)
    return {
        "streams": [_row(stream) for stream in streams],
        "messages": messages,
        "bytes": log_bytes,
        "messages_s": as_rate(messages, first_ns, last_ns),
        "bytes_s": bytes_s,
        "disk_bytes": disk,
        "window_s": disk / bytes_s if bytes_s else None,
    }


def _row(stream: log.StreamSummary) -> dict[str, Any]:
    appended = (stream.appended_ns_first, stream.appended_ns_last)
    return {
        "topic": stream.topic,
        "session": text.session_text(stream.session),
        "earliest": stream.earliest,
        "next": stream.next,
        "timestamp_ns_min": stream.timestamp_ns_min,
        "timestamp_ns_max": stream.timestamp_ns_max,
        "messages": stream.messages,
        "frames": stream.frames,
        "bytes": stream.bytes,
        "messages_s": as_rate(stream.messages, *appended),
        "bytes_s": as_rate(stream.bytes, *appended),
    }


def render(result: dict[str, Any]) -> str:
    """Return the table, and the window."""
    rows = [
        (
            one_line(row["topic"]), row["session"],
            *(time_text(row[f"timestamp_ns_{which}"], "microseconds") for which in ("min", "max")),
            row["earliest"], row["next"], row["messages"], row["bytes"],
            text.rate_text(row["messages_s"]), text.rate_text(row["bytes_s"]),
        )
        for row in result["streams"]
    ]  # fmt: skip
    if not rows:
        return "the log has no stream"
    lines = [text.render_columns(_TITLES, rows, _TEXT_COLUMNS)]
    total = f"{result['messages']:,} messages in {text.bytes_text(result['bytes'])}"
    if result["window_s"] is None:
        lines.append(f"{total}; too short to measure a rate")
    else:
        disk, window = text.bytes_text(result["disk_bytes"]), result["window_s"] / 3600
        lines.append(f"{total}, written at {text.bytes_text(result['bytes_s'])} a second")
        lines.append(f"{disk} (free, and the log itself) hold {window:,.1f} h at this rate")
    return "\n".join(lines)


@command("log dump", DIRECTORY, *PART, COUNT)
def dump(arguments: argparse.Namespace) -> int:
    """Print messages of a log as JSON lines.

    Each message is a JSON object: topic, session, sequence, key, timestamp_ns, headers, value;
    bytes that are not UTF-8 are {"base64": "…"}. The order is that in which they were appended.
    What is missing in between or at the end, or damaged, is reported on standard error, and the
    status is 1.

    For example:
      p2pmsg log dump prices.log trades --from 9000000 --count 10
      p2pmsg log dump prices.log --from 2024-08-09T09:30:00Z --to 2024-08-09T10:00Z | gzip > half.gz
    """
    left = arguments.count
    with open_log(arguments.directory) as reader:
        reading = Reading(reader, arguments, partial(note, "log dump"))
        for found, _ in reading.batches():
            batch = found if left is None else found.part(0, min(left, len(found)))
            text.write_lines(text.message_json(message, of_log=True) for message in batch)
            if is_terminal(sys.stdout):
                sys.stdout.buffer.flush()
            if left is not None:
                left -= len(batch)
                if not left:
                    break
    return 0 if reading.is_whole else 1


@command("log verify", DIRECTORY)
def verify(arguments: argparse.Namespace) -> int:
    """Check every record of a log by its checksum.

    Each finding is a line: file, offset in bytes, what is wrong there. The last line is a summary.
    The status is 1 where anything is wrong. Nothing is changed.

    For example:
      p2pmsg log verify prices.log
    """
    count = 0
    for finding in log.verify(arguments.directory):
        count += 1
        print(one_line(f"{finding.path}:{finding.offset}: {finding.what}"), flush=True)
    whole = text.bytes_text(directory_bytes(arguments.directory))
    if count:
        print(f"{text.plural(count, 'finding')} in {whole}")
        return 1
    print(f"all is well in {whole}")
    return 0


@command("log repair", DIRECTORY)
def repair(arguments: argparse.Namespace) -> int:
    """Keep what is intact in a damaged log, of messages or of a queue.

    Each segment with damage is written again without it. What could not be kept is printed: file,
    offset, what is wrong there, and the messages or jobs that are gone, at most. They are reported
    lost where they are missed; a job whose completion was not kept is done again. The status is 1
    where anything could not be kept. A log that a publisher or pusher has open is refused.

    For example:
      p2pmsg log repair var/prices
    """
    lines = _repair_log(arguments.directory)
    for line in lines:
        print(one_line(line))
    print("everything else was kept" if lines else "there is nothing to repair")
    return 1 if lines else 0


def _repair_log(directory: str) -> list[str]:
    unkept = log.repair(directory)
    places = [f"{place.path}:{place.offset}: {place.what}" for place in unkept.places]
    for session, topic, start, stop in unkept.messages:
        name = topic.removeprefix("\0")  # which the streams of a queue have
        stream = f"{name!r} (session {text.session_text(session)})"
        places.append(f"at most [{start}, {stop}) of {stream} are gone")
    return places


@command(
    "log truncate", DIRECTORY,
    option("--before", "delete segments whose newest message was appended before this time, such "
           "as 2024-08-09T00:00:00Z", "TIME", moment),
    option("--keep", "delete segments until they take no more than so many bytes: 50GB, 500MiB",
           "BYTES"),
)  # fmt: skip
def truncate(arguments: argparse.Namespace) -> int:
    """Delete the oldest messages of a log.

    Whole segments are deleted, the oldest first, and the newest one stays: the newest messages
    cannot be cut off, since subscribers have them and their sequences would be used twice. With
    both options a segment is deleted where either says so. A log that a publisher writes is
    refused; that publisher deletes by itself, as its retention_bytes and retention_age say. A
    segment that somebody reads stays, and so do those after it.

    For example:
      p2pmsg log truncate prices.log --before 2024-08-09T00:00:00Z
      p2pmsg log truncate prices.log --keep 50GB
    """
    directory, before_ns, keep = arguments.directory, arguments.before, arguments.keep
    if before_ns is None and keep is None:
        raise UsageError("say what is to go: --before TIME, --keep BYTES, or both")
    deleted = log.truncate(directory, before_ns=before_ns, bytes_max=keep)
    left = text.bytes_text(directory_bytes(directory))
    if deleted:
        print(f"deleted {text.bytes_text(deleted)}; {left} are left")
    else:
        print(f"nothing to delete; {left} stay")
    return 0
