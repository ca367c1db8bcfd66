"""Batches over the directories of local logs: the same ranges, read from files.

Of a log it needs what `p2pmsg.log.LogReader` has: `streams`, `frames`, `first_at_or_after` and
`close`.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

import p2pmsg
from spark_bridge.checks import Found
from spark_bridge.errors import DataLossError, OptionError
from spark_bridge.offsets import Range
from spark_bridge.options import SourceOptions
from spark_bridge.selection import at_offsets, topics_of

_SCHEME: Final = "file:"
_READ_BYTES: Final = 8 * 2**20
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
                start, stop = _positions(log, options, endpoint, heads, stream.topic)
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
                report_loss(_lost(wanted, at, min(kept.start, wanted.stop)), options)
            start, stop = max(at, kept.start), min(kept.stop, wanted.stop)
            batch = p2pmsg.frames.decode_frame(
                kept.frame, value_type=value_type, fixed=value_type is None
            )
            yield batch.part(start - kept.start, stop - kept.start)
            at = stop
        if not frames:
            report_loss(_lost(wanted, at, wanted.stop), options)
            return


def _heads(session: int, streams: dict[str, p2pmsg.reader.StreamHead]) -> p2pmsg.reader.Heads:
    return p2pmsg.reader.Heads(publisher="", session=session, recovery_endpoint="", streams=streams)


def report_loss(lost: str, options: SourceOptions) -> None:
    """Raise `DataLossError` for what is lost, or log it, as `failOnDataLoss` says."""
    if options.failOnDataLoss:
        raise DataLossError(f"{lost}. failOnDataLoss is true; false goes on without these messages")
    _log.warning("%s; skipped", lost)


def _lost(wanted: Range, start: int, stop: int) -> str:
    return (
        f"lost {stop - start} messages [{start}, {stop}) of topic {wanted.topic!r} (session "
        f"{wanted.session:016x}): the log in {wanted.endpoint} has not got them"
    )


def _keep_longest(ranges: dict[tuple[int, str], Range], wanted: Range) -> None:
    """Keep a stream that two logs have (a relay's) once, from where there is most of it."""
    key = (wanted.session, wanted.topic)
    if key not in ranges or ranges[key].count < wanted.count:
        ranges[key] = wanted


def _positions(
    log: Any, options: SourceOptions, endpoint: str, heads: p2pmsg.reader.Heads, topic: str
) -> tuple[int, int]:
    """Return where a stream starts and ends."""
    following = heads.streams[topic].next
    times = (options.startingTimestamp, options.endingTimestamp)
    by_offsets = (
        at_offsets(options.startingOffsets, "earliest"),
        at_offsets(options.endingOffsets, "latest"),
    )
    start, stop = (
        offset(endpoint, topic, heads)
        if time_ns is None
        else _first_at(log, heads.session, topic, time_ns, following)
        for time_ns, offset in zip(times, by_offsets, strict=True)
    )
    return start, min(stop, following)


def _first_at(log: Any, session: int, topic: str, time_ns: int, following: int) -> int:
    kept = log.first_at_or_after(session, topic, time_ns)
    if kept is None:
        return following
    for message in p2pmsg.frames.decode_frame(kept.frame):
        if message.timestamp_ns >= time_ns:
            return message.sequence
    return int(kept.stop)
