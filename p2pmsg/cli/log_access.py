"""What the log commands share: opening a log, and choosing and reading a part of it."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing

from p2pmsg.cli.arguments import TOPICS, directory, position
from p2pmsg.cli.command import option
from p2pmsg.cli.text import session_text
from p2pmsg.errors import LogError, MessageError
from p2pmsg.frames import decode_frame
from p2pmsg.log import LogReader
from p2pmsg.message import MessageBatch
from p2pmsg.toolkit import Start, matches

Key = tuple[int, str]

DIRECTORY = option("directory", "the directory of the log", "DIR", directory)
PART = (
    TOPICS,
    option("--from", "begin with this sequence, or with the first message of each stream at or "
           "after a time such as 2024-08-09T12:00:00Z (default: the earliest kept)", "WHERE",
           position, dest="start"),
    option("--to", "end before this sequence, or before the first message at or after a time",
           "WHERE", position, dest="stop"),
)  # fmt: skip
"""Options that choose a part of a log; `choose` applies them."""


def open_log(directory: str) -> AbstractContextManager[LogReader]:
    """Open a log to read."""
    return closing(LogReader(directory))


def choose(reader: LogReader, arguments: argparse.Namespace) -> dict[Key, range]:
    """Return the range of each stream that the arguments mean."""
    streams = {(one.session, one.topic): (one.earliest, one.next) for one in reader.streams()}
    for wanted in arguments.topics:
        if not any(matches(topic, [wanted]) for _, topic in streams):
            raise LogError(f"there is no stream {wanted!r} in the log")
    parts = {}
    for key, (earliest, end) in streams.items():
        if not arguments.topics or matches(key[1], arguments.topics):
            start = _resolve(reader, key, arguments.start, earliest, end)
            stop = _resolve(reader, key, arguments.stop, end, end)
            start, stop = max(start, earliest), min(stop, end)
            if start < stop:
                parts[key] = range(start, stop)
    return parts


def _resolve(reader: LogReader, key: Key, where: Start | None, default: int, end: int) -> int:
    if where is None:
        return default
    if where.kind == "sequence":
        return where.position
    kept = reader.first_at_or_after(*key, where.position)
    if kept is None:
        return end
    try:
        batch = decode_frame(bytes(kept.frame))
    except MessageError:
        return kept.start
    later = (message.sequence for message in batch if message.timestamp_ns >= where.position)
    return next(later, kept.start)


class Reading:
    """Reads the part of a log that the arguments mean, in the order in which it was appended.

    What is missing in it, and what is damaged, is reported and counted.

    Args:
        reader: the log.
        arguments: of the options in `PART`.
        report: called with each line of what is missing or damaged.

    Attributes:
        parts: the range of each stream.
        is_whole: whether so far nothing was missing or damaged.

    """

    def __init__(
        self, reader: LogReader, arguments: argparse.Namespace, report: Callable[[str], object]
    ) -> None:
        cut = reader.find_cut()
        self.parts = choose(reader, arguments)
        self.is_whole = True
        self._reader = reader
        self._findings = () if cut is None else (cut,)
        self._next = {key: part.start for key, part in self.parts.items()}
        self._report = report

    def batches(self) -> Iterator[tuple[MessageBatch, int]]:
        """Yield the messages, frame by frame, and when each frame was appended, in ns."""
        left = set(self.parts)
        ranges = {key: (part.start, part.stop) for key, part in self.parts.items()}
        for record in self._reader.records(parts=ranges):
            key = (record.session, record.topic)
            if key not in left:
                continue
            part = self.parts[key]
            if record.stop > part.start:
                batch = self._decode(key, record.start, record.frame)
                if batch is not None:
                    yield batch, record.appended_ns
            if record.stop >= part.stop:
                left.discard(key)
                if not left:
                    break
        for key, part in self.parts.items():
            self._pass_over(key, part.stop)
        for finding in (*self._reader.corrupt.values(), *self._findings):
            self.is_whole = False
            self._report(f"{finding.path}:{finding.offset}: {finding.what}")

    def _decode(self, key: Key, start: int, data: bytes) -> MessageBatch | None:
        """Return what is wanted of a frame; None where that is nothing."""
        topic = key[1]
        try:
            batch = decode_frame(data)
        except MessageError as error:
            self._report(f"the frame at {start} of {topic!r}: {error}")
            return None
        low = max(self._next[key], start) - start
        high = min(self.parts[key].stop - start, len(batch))
        if low >= high:
            return None
        self._pass_over(key, start + low)
        self._next[key] = start + high
        return batch.part(low, high)

    def _pass_over(self, key: Key, stop: int) -> None:
        start, self._next[key] = self._next[key], stop
        if start >= stop:
            return
        session, topic = key
        where = f"[{start}, {stop}) of {topic!r} (session {session_text(session)})"
        if any(low <= start and stop <= high for low, high in self._reader.skips(*key)):
            self._report(f"{where} was skipped after a crash")
        else:
            self.is_whole = False
            self._report(f"{where} is not in the log")


def as_rate(count: float, begin_ns: int, end_ns: int) -> float | None:
    """Return `count` a second; None where the times are equal."""
    return count * 1e9 / (end_ns - begin_ns) if end_ns > begin_ns else None
