"""What the log commands share: opening a log, and choosing and reading a part of it."""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from p2pmsg.cli.arguments import (
    SESSION_DIGITS,
    TOPICS,
    directory,
    position,
    session_prefix,
)
from p2pmsg.cli.command import note, option
from p2pmsg.cli.text import session_text
from p2pmsg.errors import LogError
from p2pmsg.message import MessageBatch
from p2pmsg.publisher.logged_batch import count_of, frame_of
from p2pmsg.start import Start
from p2pmsg.wire import Frame, FrameError, decode_columns
from recovery.ranges import RangeSet

if TYPE_CHECKING:
    from recovery.log import Finding, LogReader

CHUNK_BYTES = 4 * 2**20
"""How much of one stream is in memory at a time."""
_LOOK_S = 0.1
"""A publisher that runs makes a frame of what it has gathered within less, by default."""
Key = tuple[int, str]
Report = Callable[[str], object]

DIRECTORY = option("directory", "the directory of the log", "DIR", directory)
PART = (
    TOPICS,
    option("--from", "begin with this sequence, or with the first message of each stream at or "
           "after a time such as 2024-08-09T12:00:00Z (default: the earliest kept)", "WHERE",
           position, dest="start"),
    option("--to", "end before this sequence, or before the first message at or after a time",
           "WHERE", position, dest="stop"),
    option("--session", "only the streams of this session: its 16 hexadecimal digits, or so many "
           "of the first that no other session begins with them", "ID", session_prefix),
)  # fmt: skip
"""Options that choose a part of a log; `choose` applies them."""


_NAMED_MAX = 4
"""Sessions that an error names."""
_NOTHING_CUT: Mapping[Key, range] = {}


@contextmanager
def translated() -> Iterator[Any]:
    """Give `recovery.log`, and raise its errors as `LogError`."""
    import recovery.log as package  # not above: `p2pmsg --help` does without

    try:
        yield package
    except package.RecoveryError as error:
        raise LogError(str(error)) from error


@contextmanager
def open_log(directory: str) -> "Iterator[LogReader]":
    """Open a log to read; its errors come as `LogError`."""
    with translated() as package, closing(package.LogReader(directory)) as reader:
        yield reader


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one frame, and when the frame was appended; 0 where that is not known."""

    batch: MessageBatch
    appended_ns: int


def choose(
    reader: "LogReader", arguments: argparse.Namespace, cut: Mapping[Key, range] = _NOTHING_CUT
) -> dict[Key, range]:
    """Return the range of each stream that the arguments mean.

    `cut`: what is gone from the end of each stream, which belongs to it all the same.
    """
    streams = {key: (had.start, had.stop) for key, had in cut.items()}
    for stream in reader.streams():
        key = (stream.session, stream.topic)
        streams[key] = (stream.earliest, max(stream.next, streams.get(key, (0, 0))[1]))
    if arguments.session is not None:
        session = _session_of(streams, arguments.session)
        streams = {key: ends for key, ends in streams.items() if key[0] == session}
    for wanted in arguments.topics:
        if not any(matches(topic, [wanted]) for _, topic in streams):
            raise LogError(f"there is no stream {wanted!r} in the log")
    parts = {}
    for key, (earliest, end) in streams.items():
        if matches(key[1], arguments.topics):
            start = _resolve(reader, key, arguments.start, earliest, end)
            stop = _resolve(reader, key, arguments.stop, end, end)
            start, stop = max(start, earliest), min(stop, end)
            if start < stop:
                parts[key] = range(start, stop)
    return parts


def _session_of(streams: Iterable[Key], prefix: str) -> int:
    """Return the one session whose digits begin with `prefix`."""
    found = sorted({session for session, _ in streams if session_text(session).startswith(prefix)})
    if not found:
        what = prefix if len(prefix) == SESSION_DIGITS else f"that begins with {prefix}"
        raise LogError(f"there is no session {what} in the log")
    if len(found) > 1:
        several = ", ".join(map(session_text, found[:_NAMED_MAX]))
        more = ", …" if len(found) > _NAMED_MAX else ""
        raise LogError(f"{len(found)} sessions begin with {prefix}: {several}{more}")
    return found[0]


def matches(topic: str, wanted: Sequence[str]) -> bool:
    """Whether a topic is among topics and prefixes; none at all means every topic."""
    return not wanted or any(
        topic.startswith(w[:-1]) if w.endswith("*") else topic == w for w in wanted
    )


def _resolve(reader: "LogReader", key: Key, where: Start | None, default: int, end: int) -> int:
    if where is None:
        return default
    if where.kind == "sequence":
        return where.position
    kept = reader.first_at_or_after(*key, where.position)
    if kept is None:
        return end
    try:
        frame = Frame(bytes(kept.frame))
        times = decode_columns(frame)[1]
    except FrameError:
        return kept.start
    for index, time_ns in enumerate(times or ()):
        if time_ns >= where.position:
            return kept.start + index
    return kept.start


class Reading:
    """Reads parts of a log in the order in which they were appended.

    What is missing in a part, and what is damaged, is reported and counted.

    Args:
        reader: the log.
        parts: what to read, as `choose` returns it.
        report: called with each line of what is missing or damaged.
        findings: what is known to be damaged beforehand; it is reported after the last message.

    Attributes:
        missing: how many messages of the parts are not there, and were not skipped by a crash.
        damaged: how many damaged places were met.

    """

    def __init__(
        self,
        reader: "LogReader",
        parts: Mapping[Key, range],
        report: Report,
        findings: "Sequence[Finding]" = (),
    ) -> None:
        self._reader = reader
        self._parts = parts
        self._next = {key: part.start for key, part in self._parts.items()}
        self._report = report
        self._findings = findings
        self.missing = self.damaged = 0

    @property
    def is_whole(self) -> bool:
        """Whether so far nothing was missing or damaged."""
        return not self.missing and not self.damaged

    @property
    def total(self) -> int:
        """How many messages there are to read, with those that are missing."""
        return sum(map(len, self._parts.values()))

    @property
    def streams(self) -> int:
        """How many streams there are to read."""
        return len(self._parts)

    @property
    def done(self) -> int:
        """How many of these have been read, or are missing."""
        return sum(self._next[key] - part.start for key, part in self._parts.items())

    def pieces(self, *, with_times: bool = False) -> Iterator[Piece]:
        """Return the messages, frame by frame; `with_times`: each with when it was appended."""
        frames = self._records() if with_times or len(self._parts) != 1 else self._of_stream()
        for key, start, frame, appended_ns in frames:
            part = self._parts.get(key)
            if part is None or start >= part.stop:
                continue
            batch = self._decode(key, start, frame)
            if batch is None:
                continue
            low = max(self._next[key], start) - start
            high = min(part.stop - start, len(batch))
            if low < high:
                self._pass_over(key, start + low)
                self._next[key] = start + high
                yield Piece(batch.part(low, high), appended_ns)
        for key, part in self._parts.items():
            self._pass_over(key, part.stop)
            self._next[key] = part.stop
        for finding in (*self._reader.corrupt.values(), *self._findings):
            self.damaged += 1
            self._report(f"{finding.path}:{finding.offset}: {finding.what}")

    def _records(self) -> Iterator[tuple[Key, int, bytes, int]]:
        left = set(self._parts)
        ranges = {key: (part.start, part.stop) for key, part in self._parts.items()}
        for record in self._reader.records(parts=ranges):
            key = (record.session, record.topic)
            if key in left:
                part = self._parts[key]
                if record.stop > part.start:
                    yield key, record.start, record.frame, record.appended_ns
                if record.stop >= part.stop:
                    left.discard(key)
                    if not left:
                        return

    def _of_stream(self) -> Iterator[tuple[Key, int, bytes, int]]:
        ((key, part),) = self._parts.items()
        at = part.start
        while at < part.stop:
            kept = self._reader.frames(*key, at, part.stop, CHUNK_BYTES)
            if not kept:
                return
            for one in kept:
                yield key, one.start, bytes(one.frame), 0
            at = kept[-1].stop

    def _decode(self, key: Key, start: int, data: bytes) -> MessageBatch | None:
        session, topic = key
        try:
            frame = Frame(data)
            values, timestamps, keys, headers = decode_columns(frame)
        except FrameError as error:
            self._report(f"the frame at {start} of {topic!r} is malformed: {error}")
            return None
        return MessageBatch(
            topic, session, "", start, frame.base_timestamp_ns, values, timestamps, keys, headers
        )

    def _pass_over(self, key: Key, stop: int) -> None:
        start = self._next[key]
        if start >= stop:
            return
        session, topic = key
        where = f"[{start}, {stop}) of {topic!r} (session {session_text(session)})"
        if any(low <= start and stop <= high for low, high in self._reader.skips(*key)):
            self._report(f"{where} was skipped after a crash")
        else:
            self.missing += stop - start
            self._report(f"{where} is not in the log")


def on_waiting(command: str, reader: "LogReader") -> int:
    """Report messages of a killed publisher that are in no frame yet; return how many.

    If the publisher runs, they are soon in a frame, and other messages take their place.
    """
    before = _waiting(reader)
    if before:
        time.sleep(_LOOK_S)
    count = sum(count for _, _, _, count in before) if before == _waiting(reader) else 0
    if count:
        note(
            f"log {command}",
            f"{count:,} more messages are in the log's tail file: their publisher was killed "
            "before it had made frames of them, and the next one on this log sends them",
        )
    return count


def _waiting(reader: "LogReader") -> list[tuple[int, str, int, int]]:
    """Return (session, topic, first sequence, count) of what is in no frame yet."""
    found = []
    for content in reader.waiting():
        try:
            found.append((content.session, content.topic, content.first, count_of(content)))
        except ValueError:
            pass  # it changes while it is read
    return found


def on_tail_damage(command: str, reader: "LogReader") -> bool:
    """Report a tail file that is damaged or missing; return whether it is."""
    finding = reader.find_tail_damage(frame_of)
    if finding is not None:
        note(
            f"log {command}",
            f"{finding.path}: {finding.what}; the next publisher on this log skips the messages "
            "that it may have had, and they are reported lost (crash)",
        )
    return finding is not None


def gone_of(reader: "LogReader", key: Key, had: range, messages: int) -> tuple[int, int]:
    """Return how many of a stream's messages crashes skipped, and how many are missing otherwise.

    `had` is what it has had, without what retention deleted, and `messages` how many are left.
    """
    skips = RangeSet(reader.skips(*key)).overlap(had.start, had.stop)
    skipped = sum(stop - start for start, stop in skips)
    return skipped, max(0, len(had) - messages - skipped)


def as_rate(count: float, begin_ns: int, end_ns: int) -> float | None:
    """Return `count` a second; None where the times are equal."""
    return count * 1e9 / (end_ns - begin_ns) if end_ns > begin_ns else None
