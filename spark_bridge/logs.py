"""Batches over the directories of local logs: the same ranges, read from files.

Of a log it needs what `p2pmsg.log.LogReader` has: `streams`, `frames`, `first_at_or_after` and
`close`.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import p2pmsg
from spark_bridge.checks import Found
from spark_bridge.errors import DataLossError, OptionError
from spark_bridge.offsets import Range
from spark_bridge.options import SourceOptions
from spark_bridge.selection import Start, end_of, start_of, topics_of

_SCHEME: Final = "file:"
_READ_BYTES: Final = 8 * 2**20
_NOT_THERE: Final = "the log has not got them"
_log: Final = logging.getLogger("spark_bridge")


def open_log(directory: str) -> Any:
    """Return a reader of a log; `OptionError` where there is none."""
    try:
        return p2pmsg.log.LogReader(directory)
    except Exception as error:
        raise OptionError("path", f"has no log in {directory!r}: {error}") from error


def log_ranges(options: SourceOptions) -> tuple[list[Range], Found]:
    """Return what a batch reads of its logs, as they are now, and what they have.

    Of what they have each session comes once, with a log that has it and the highest heads of all.
    """
    ranges: dict[tuple[int, str], Range] = {}
    found: dict[int, tuple[str, dict[str, p2pmsg.reader.StreamHead]]] = {}
    for directory in options.path:
        log, endpoint = open_log(directory), f"{_SCHEME}{directory}"
        try:
            for stream in log.streams():
                head = p2pmsg.reader.StreamHead(stream.earliest, stream.next)
                heads = _heads(stream.session, {stream.topic: head})
                known = found.setdefault(stream.session, (endpoint, {}))[1]
                if stream.topic not in known or known[stream.topic].next < stream.next:
                    known[stream.topic] = head
                if stream.topic not in topics_of(options, endpoint, heads):
                    continue
                by_time = partial(_at_time, log)
                starts, ends = start_of(options, "earliest", by_time), end_of(options, by_time)
                start = starts(endpoint, stream.topic, heads)
                stop = min(ends(endpoint, stream.topic, heads), stream.next)
                if start < stop:
                    wanted = Range(endpoint, stream.session, stream.topic, start, stop)
                    _keep_longest(ranges, wanted)
        finally:
            log.close()
    return [ranges[key] for key in sorted(ranges)], [
        (endpoint, _heads(session, streams)) for session, (endpoint, streams) in found.items()
    ]


def read_logs(
    ranges: Iterable[Range], options: SourceOptions, value_type: Any
) -> Iterator[p2pmsg.MessageBatch]:
    """Yield the messages of `ranges`; what a log lacks raises `DataLossError`, or is skipped."""
    logs: dict[str, Any] = {}
    try:
        for wanted in ranges:
            directory = wanted.endpoint.removeprefix(_SCHEME)
            if directory not in logs:
                logs[directory] = open_log(directory)
            yield from _read(logs[directory], wanted, options, value_type)
    finally:
        for log in logs.values():
            log.close()


def _read(
    log: Any, wanted: Range, options: SourceOptions, value_type: Any
) -> Iterator[p2pmsg.MessageBatch]:
    at = wanted.start
    while at < wanted.stop:
        frames = log.frames(wanted.session, wanted.topic, at, wanted.stop, _READ_BYTES)
        for kept in frames:
            if kept.start > at:
                report_loss(replace(wanted, start=at).until(kept.start), _NOT_THERE, options)
            start, stop = max(at, kept.start), min(kept.stop, wanted.stop)
            batch = p2pmsg.frames.decode_frame(
                kept.frame, value_type=value_type, fixed=value_type is None
            )
            yield batch.part(start - kept.start, stop - kept.start)
            at = stop
        if not frames:
            report_loss(replace(wanted, start=at), _NOT_THERE, options)
            return


def _heads(session: int, streams: dict[str, p2pmsg.reader.StreamHead]) -> p2pmsg.reader.Heads:
    return p2pmsg.reader.Heads(publisher="", session=session, recovery_endpoint="", streams=streams)


def report_loss(lost: Range, reason: str, options: SourceOptions) -> None:
    """Raise `DataLossError` for what is lost, or log it, as `failOnDataLoss` says."""
    text = f"lost {lost}: {reason}"
    if options.failOnDataLoss:
        raise DataLossError(f"{text}. failOnDataLoss is true; false goes on without these messages")
    _log.warning("%s; skipped", text)


def _keep_longest(ranges: dict[tuple[int, str], Range], wanted: Range) -> None:
    """Keep a stream that two logs have (a relay's) once, from where there is most of it."""
    key = (wanted.session, wanted.topic)
    if key not in ranges or ranges[key].count < wanted.count:
        ranges[key] = wanted


def _at_time(log: Any, time_ns: int) -> Start:
    """Return where streams start, or end, at a time: at the first message of it or later."""

    def at(endpoint: str, topic: str, heads: p2pmsg.reader.Heads) -> int:
        kept = log.first_at_or_after(heads.session, topic, time_ns)
        if kept is None:
            return heads.streams[topic].next
        for message in p2pmsg.frames.decode_frame(kept.frame):
            if message.timestamp_ns >= time_ns:
                return message.sequence
        return int(kept.stop)

    return at
