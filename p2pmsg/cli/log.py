"""`p2pmsg log`: inspect a local log, check it, mend it, replay it, shorten it."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from p2pmsg.cli import text
from p2pmsg.cli.arguments import COUNT, JSON, NO_BAR, byte_count, is_terminal, moment
from p2pmsg.cli.command import CommandGroup, UsageError, command, note, one_line, option
from p2pmsg.cli.log_access import (
    DIRECTORY,
    PART,
    Key,
    Reading,
    as_rate,
    choose,
    gone_of,
    on_tail_damage,
    on_waiting,
    open_log,
    translated,
)
from p2pmsg.cli.log_replay import replay
from p2pmsg.cli.progress import drawn
from p2pmsg.json_text import to_json
from p2pmsg.message import MessageBatch
from p2pmsg.publisher.logged_batch import frame_of
from p2pmsg.queue.journal import repair as queue_repair
from p2pmsg.queue.journal.reading import segments
from p2pmsg.wire import Frame, FrameError, decode_columns

if TYPE_CHECKING:
    from recovery.log import LogReader, StreamSummary

_LINES_PER_WRITE = 512
"""How many lines `dump` writes at once; on a terminal and at the end of a frame, fewer."""
_TITLES = (
    "topic", "session", "from", "to", "first", "next", "messages", "bytes", "messages/s", "bytes/s",
)  # fmt: skip
_TEXT_COLUMNS = 4


@command(
    "log ls", DIRECTORY,
    option("--disk", "compute the window for so many bytes: 500GB, 2TiB (default: what is free "
           "and what the log has)", "BYTES", byte_count),
    JSON,
)  # fmt: skip
def ls(arguments: argparse.Namespace) -> int:
    """List the streams of a log.

    For each stream: its session, the times of its messages (UTC), its first sequence and the next
    one, messages that are there, bytes, and the rate at which it was written. The last line says
    how long a window the disk holds at that rate: --disk, or else what is free and what the log
    has. Where the log is damaged, or messages are missing, standard error says so, and the status
    is 1. Whole segments are not read for that, as verify does.

    For example:
      p2pmsg log ls prices.log
      p2pmsg log ls prices.log --disk 500GB --json
    """
    directory = arguments.directory
    with open_log(directory) as reader:
        cut = reader.find_cut()
        streams = sorted(reader.streams(), key=lambda stream: (stream.topic, stream.session))
        begins = {(s.session, s.topic): begin_ns(reader, s) for s in streams}
        gone = count_gone(reader, streams, cut.ranges)
        session = reader.session
        is_damaged = bool(reader.corrupt or cut.findings)
        if is_damaged:
            note("log ls", f"the log is damaged: `p2pmsg log verify {directory}` says where")
        is_damaged |= on_tail_damage("ls", reader)
        waiting = on_waiting("ls", reader)
    skipped, missing = (sum(counts[at] for counts in gone.values()) for at in (0, 1))
    if skipped:
        note("log ls", f"crashes skipped {skipped:,} sequences, which no message has")
    if missing:
        what = f"{missing:,} messages are not in the log"
        note("log ls", f"{what}: `p2pmsg log dump {directory}` says which")
    log_bytes = directory_bytes(directory)
    disk = arguments.disk
    if disk is None:
        disk = shutil.disk_usage(directory).free + log_bytes
    result = summarize(streams, begins, gone, log_bytes, disk)
    if arguments.json:
        named = {"directory": directory, "session": session and text.session_text(session)}
        counts = {"waiting": waiting, "skipped": skipped, "missing": missing}
        print(to_json({**named, **result, **counts, "damaged": is_damaged}))
    else:
        print(render(streams, result, is_stated=arguments.disk is not None))
    return 1 if is_damaged or missing else 0


def count_gone(
    reader: "LogReader", streams: "Sequence[StreamSummary]", cut: Mapping[Key, range]
) -> dict[Key, tuple[int, int]]:
    """Return of each stream how many messages crashes skipped, and how many are missing otherwise.

    `cut`: what is gone from the end of each stream, also of those of which nothing is left.
    """
    gone = {key: gone_of(reader, key, had, 0) for key, had in cut.items()}
    for stream in streams:
        key = (stream.session, stream.topic)
        end = max(stream.next, cut[key].stop) if key in cut else stream.next
        gone[key] = gone_of(reader, key, range(stream.earliest, end), stream.messages)
    return gone


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
    streams: "Sequence[StreamSummary]",
    begins: Mapping[Key, int],
    gone: Mapping[Key, tuple[int, int]],
    log_bytes: int,
    disk: int,
) -> dict[str, Any]:
    """Return what `--json` prints; `gone` is what `count_gone` returns."""
    rows = []
    for stream in streams:
        key = (stream.session, stream.topic)
        skipped, missing = gone[key]
        rows.append({**_row(stream, begins[key]), "skipped": skipped, "missing": missing})
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
    messages = stream.messages
    appended = (stream.appended_ns_first, stream.appended_ns_last)
    return {
        "topic": stream.topic,
        "session": text.session_text(stream.session),
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
            one_line(row["topic"]), row["session"],
            text.time_text(row["timestamp_ns_min"]), text.time_text(row["timestamp_ns_max"]),
            row["earliest"], row["next"], row["messages"], row["bytes"],
            text.rate_text(row["messages_s"]), text.rate_text(row["bytes_s"]),
        )
        for row in result["streams"]
    ]  # fmt: skip
    lines = [text.render_columns(_TITLES, rows, _TEXT_COLUMNS)]
    total = f"{result['messages']:,} messages in {text.bytes_text(result['bytes'])}"
    disk = text.bytes_text(result["disk_bytes"])
    what = disk if is_stated else f"{disk} (free, and the log itself)"
    if result["window_s"] is None:
        lines.append(f"{total}; too short to measure a rate")
    else:
        lines.append(f"{total}, written at {text.bytes_text(result['bytes_s'])} a second")
        lines.append(f"{what} hold {text.span_text(result['window_s'])} at this rate")
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
    with open_log(arguments.directory) as reader:
        cut = reader.find_cut()
        parts = choose(reader, arguments, cut.ranges)
        reading = Reading(reader, parts, partial(note, "log dump"), cut.findings)
        for batch in _first(reading, arguments.count):
            _write(batch)
        is_whole = not on_tail_damage("dump", reader) and reading.is_whole
        on_waiting("dump", reader)
    return 0 if is_whole else 1


def _first(reading: Reading, count: int | None) -> Iterator[MessageBatch]:
    """Return the batches up to `count` messages."""
    left = count
    for piece in reading.pieces():
        batch = piece.batch
        if left is not None:
            batch = batch.part(0, min(left, len(batch)))
            left -= len(batch)
        yield batch
        if left == 0:
            return


def _write(batch: MessageBatch) -> None:
    messages = iter(batch)
    while part := list(islice(messages, _LINES_PER_WRITE)):
        text.write_lines(map(text.log_message_json, part))
    if is_terminal(sys.stdout):
        sys.stdout.buffer.flush()


@command("log verify", DIRECTORY, NO_BAR)
def verify(arguments: argparse.Namespace) -> int:
    """Check every record of a log by its checksum.

    Each finding is a line: file, offset in bytes, what is wrong there. The last line is a summary.
    The status is 1 where anything is wrong. Nothing is changed.

    For example:
      p2pmsg log verify prices.log
    """
    count, checked = 0, [0]

    def add(size: int) -> None:
        checked[0] += size

    size = directory_bytes(arguments.directory)
    with (
        translated() as log,
        drawn("bytes", lambda: (min(checked[0], size), size), quiet=arguments.quiet),
    ):
        for finding in log.verify(arguments.directory, progress=add, check=frame_of):
            count += 1
            path = os.fspath(finding.path)
            print(one_line(f"{path}:{finding.offset}: {finding.what}"), flush=True)
    with open_log(arguments.directory) as reader:
        on_waiting("verify", reader)
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
    directory = arguments.directory
    lines = _repair_queue(directory) if segments(Path(directory)) else _repair_log(directory)
    for line in lines:
        print(one_line(line))
    print("everything else was kept" if lines else "there is nothing to repair")
    return 1 if lines else 0


def _repair_queue(directory: str) -> list[str]:
    unkept = queue_repair.repair(directory)
    places = [f"{path}:{at}: {size} bytes" for path, at, size in unkept.places]
    return [*places, *(f"jobs [{start}, {stop}) are gone" for start, stop in unkept.jobs)]


def _repair_log(directory: str) -> list[str]:
    with translated() as log:
        unkept = log.repair(directory, _stream_of)
    places = [f"{place.path}:{place.offset}: {place.what}" for place in unkept.places]
    return places + [
        f"at most [{start}, {stop}) of {topic!r} (session {text.session_text(session)}) are gone"
        for session, topic, start, stop in unkept.messages
    ]


def _stream_of(data: bytes) -> Key:
    try:
        frame = Frame(data)
    except FrameError as error:
        raise ValueError(f"no frame: {error}") from error
    return frame.session, frame.topic


@command(
    "log truncate", DIRECTORY,
    option("--before", "delete segments whose newest message was appended before this time, such "
           "as 2024-08-09T00:00:00Z", "TIME", moment),
    option("--keep", "delete segments until they take no more than so many bytes: 50GB, 500MiB",
           "BYTES", byte_count),
    NO_BAR,
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
    size = directory_bytes(directory)

    def count() -> tuple[int, int]:
        gone = size - directory_bytes(directory)
        return gone, gone if keep is None else max(gone, size - keep)

    with drawn("bytes", count, quiet=arguments.quiet):
        had = _ranges(directory)
        with translated() as log:
            deleted = log.truncate(directory, before_ns=before_ns, bytes_max=keep)
        has = _ranges(directory)
    for key, (start, stop) in had.items():
        earliest = has[key][0] if key in has else stop
        if earliest > start:
            session, topic = key
            where = f"[{start}, {earliest}) of {topic!r} (session {text.session_text(session)})"
            print(f"deleted {one_line(where)}")
    left = text.bytes_text(directory_bytes(directory))
    if deleted:
        print(f"deleted {text.bytes_text(deleted)}; {left} are left")
    else:
        print(f"nothing to delete; {left} stay")
    return 0


def _ranges(directory: str) -> dict[Key, tuple[int, int]]:
    """Return the first sequence kept and the next one, by stream."""
    with open_log(directory) as reader:
        return {(s.session, s.topic): (s.earliest, s.next) for s in reader.streams()}


log = CommandGroup(
    "log",
    """\
Inspect a local log, check it, mend it, replay it, shorten it.

All but repair and truncate only read, and may do so while a publisher writes.

For example:
  p2pmsg log ls prices.log
  p2pmsg log dump prices.log trades --from 2024-08-09T09:30:00Z --count 10
  p2pmsg log replay prices.log tcp://127.0.0.1:5556 --speed 10
""",
    (ls, dump, verify, repair, replay, truncate),
)
