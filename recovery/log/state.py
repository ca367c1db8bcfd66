"""The state file: what a log must remember besides its segments. It is small and written whole.

JSON, after a line with its version and checksum::

    p2plog-state 1 CRC32C
    {"session": …, "clean": …, …}
"""

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from crc32c import crc32c

from recovery.errors import LogWriteError, SyncFailedError
from recovery.log.index import SegmentIndex, StreamIndex
from recovery.log.store import LogStore

NAME: Final = "state"
VERSION: Final = 1
_TITLE: Final = "p2plog-state"
_UNLIMITED: Final = 2**63
_SOON: Final = 20
"""Syncs; a stream that needs a new mark within so many, 2 s, gets four times as much."""
_RESERVE_MAX: Final = 2**16
"""Times `reserve`. A stream of 30 million messages a second then needs a mark every second."""


@dataclass(slots=True)
class LogState:
    """What the state file holds.

    Attributes:
        session: the session that the log's own streams belong to.
        boot: the boot id of the system under which it was written.
        clean: whether the log was closed, with everything on the disk.
        end: how many records there had been then.
        always: whether a frame was sent only when it was on the disk.
        gathered: how many sequences of a stream a killed process may have given out that are not
            in the log, at most.
        in_tail: how many sequences of a stream a crash of the system may take that are in the tail
            file only, at most.
        identity: what distinguishes the log's lock file from its copy.
        file: the same of the state file itself, whose content a copy put in its place may change.
        reserve, floor: a stream that is not in `marks` has no sequence at or above the sum; one
            that is new begins at `floor`.
        marks: by topic, the sequence that no message in a segment has reached.
        tails: by topic, what the next sequence is not below: of streams that are in no segment any
            more, or perhaps in none that is on the disk.
        skips: by topic, the ranges that were skipped after crashes.

    """

    session: int
    boot: str = ""
    clean: bool = False
    end: int = 0
    always: bool = False
    gathered: int = 0
    in_tail: int = 0
    identity: str = ""
    file: str = ""
    reserve: int = 0
    floor: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    tails: dict[str, int] = field(default_factory=dict)
    skips: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def mark(self, topic: str) -> int:
        """Return the sequence that no message of the topic in a segment has reached."""
        return self.marks.get(topic, self.floor + self.reserve)


class StateFile:
    """The file of a state; a state that could not be written goes back to what is in the file.

    Otherwise a mark could be relied upon that no crash survives.

    Args:
        store: has the file.
        state: what it is to hold.
        lock: held while it is written; `write_marks` may run while other methods are called.

    Attributes:
        has_failed: whether an fsync failed as it was written; see `LogWriter.has_failed`.
        writes: how often what `write_marks` had prepared became outdated.

    """

    def __init__(
        self, store: LogStore, state: LogState, lock: AbstractContextManager[object]
    ) -> None:
        self._store = store
        self.state = state
        self._lock = lock
        self._data: bytes | None = None
        self._is_removed = self.has_failed = False
        self.writes = 0

    def write(self) -> None:
        """Bring the state to the disk; raises `LogWriteError`."""
        with self._lock:
            self.writes += 1
            try:
                self._data = self._replace(self.state)
            except BaseException:
                if self._data is not None:
                    former = decode_state(self._data)
                    for name in LogState.__slots__:
                        setattr(self.state, name, getattr(former, name))
                raise

    def write_marks(self, state: LogState, writes: int) -> bool:
        """Bring to the disk what the state will be; raises `LogWriteError`.

        Returns False, and does nothing, where it was written since `writes` was counted.
        """
        with self._lock:
            if self._is_removed or self.writes != writes:
                return False
            self._data = self._replace(state)
            return True

    def supersede(self) -> None:
        """Let a `write_marks` that was prepared before do nothing, or count for nothing."""
        self.writes += 1

    def _replace(self, state: LogState) -> bytes:
        what = f"the log {self._store.path(NAME)} cannot be written"
        if self._is_removed:
            raise LogWriteError(what, OSError(9, "it was given up"))
        made = b""

        def encode(identity: str) -> bytes:
            nonlocal made
            state.file = identity
            made = encode_state(state)
            return made

        try:
            self._store.replace(NAME, encode, durable=True)
        except OSError as error:
            self.has_failed |= isinstance(error, SyncFailedError)
            raise LogWriteError(what, error) from error
        return made

    def let_go(self) -> None:
        """Write it no more: another writer may have the log."""
        with self._lock:
            self._is_removed = True

    def remove(self) -> None:
        """Delete it, so that no one goes on in the session; it may be called again.

        After a crash of the system it must not be there either, if the disk still does anything.
        """
        with self._lock:
            self._is_removed = True
            try:
                self._store.remove(NAME)
                self._store.sync_directory()
            except OSError:
                pass  # a writer that cannot delete cannot write either


class Renewal:
    """Marks that are reserved ahead: `write` may run while others use the log.

    Attributes:
        error: what went wrong in `write`.

    """

    def __init__(self, state_file: StateFile, amounts: dict[str, tuple[int, int]]) -> None:
        state = state_file.state
        self.amounts = amounts
        """By topic, the sequence from which on they are reserved, and how many are."""
        self.marks = {topic: stop + amount for topic, (stop, amount) in amounts.items()}
        self.error: LogWriteError | None = None
        self._file = state_file
        self._writes = state_file.writes
        self._state = replace(
            state, marks=state.marks | self.marks, tails=dict(state.tails), skips=dict(state.skips)
        )
        self._is_written = False

    def write(self) -> None:
        """Bring the marks to the disk. It never raises."""
        try:
            self._is_written = self._file.write_marks(self._state, self._writes)
        except LogWriteError as error:
            self.error = error

    @property
    def holds(self) -> bool:
        """Whether they are on the disk, and nothing has replaced them there."""
        return self._is_written and self._file.writes == self._writes


class TailsUpdate:
    """Where streams go on, noted before a segment is deleted that alone says it.

    It is in the state from now on, so that whatever is written meanwhile has it, too; `write` may
    run while others use the log, and then `end` is called.
    """

    def __init__(self, state_file: StateFile, tails: dict[str, int]) -> None:
        state = state_file.state
        self._file = state_file
        self._tails = tails
        self._former = {topic: state.tails.get(topic) for topic in tails}
        state.tails.update(tails)
        self._writes = state_file.writes
        self._state = replace(
            state, marks=dict(state.marks), tails=dict(state.tails), skips=dict(state.skips)
        )
        self._is_written = False

    def write(self) -> bool:
        """Bring it to the disk; False where another state was written meanwhile.

        Raises:
            LogWriteError: it cannot be written.

        """
        self._is_written = self._file.write_marks(self._state, self._writes)
        return self._is_written

    def end(self) -> None:
        """Take back what was not written: it is noted again before anything is deleted."""
        tails = self._file.state.tails
        for topic, former in () if self._is_written else self._former.items():
            if tails.get(topic) != self._tails[topic]:
                continue
            if former is None:
                del tails[topic]
            else:
                tails[topic] = former


class Reservations:
    """Keeps each stream of the log's own session below its mark.

    A mark is the sequence up to which all are reserved on the disk, before any is used.

    Args:
        state_file: has the marks.
        reserve: how many sequences are reserved at a time.

    """

    def __init__(self, state_file: StateFile, reserve: int) -> None:
        self._file = state_file
        self._reserve = reserve
        self._syncs = 0
        self._given: dict[str, tuple[int, int]] = {}  # when, in syncs, and how much

    def set(self, stream: StreamIndex) -> None:
        """Give a stream its mark; streams of other sessions have none."""
        is_ours = stream.session == self._file.state.session
        stream.mark = self._file.state.mark(stream.topic) if is_ours else _UNLIMITED
        stream.low = stream.mark - self._given.get(stream.topic, (0, self._reserve))[1] // 2

    def reserve(self, stream: StreamIndex, stop: int) -> None:
        """Move a stream's mark beyond `stop`, and wait for the disk."""
        amount = self._amount(stream.topic)
        self._file.state.marks[stream.topic] = stop + amount
        self._file.write()
        self._given[stream.topic] = (self._syncs, amount)
        self.set(stream)

    def begin_renewal(self, segment: SegmentIndex) -> Renewal | None:
        """Begin to reserve for streams that have used up half, so that `append` need not.

        Its `write` is to be called, then `end_renewal`. None: there are no such streams.
        """
        self._syncs += 1
        streams = segment.streams.values()
        if not any(s.stop > s.low for s in streams):
            return None
        # Those too that have used up a quarter: they are spared a renewal of their own.
        low = [s for s in streams if s.stop > s.low - (s.mark - s.low) // 2]
        return Renewal(self._file, {s.topic: (s.stop, self._amount(s.topic)) for s in low})

    def end_renewal(self, renewal: Renewal, segment: SegmentIndex | None) -> None:
        """Use the marks of a renewal that was written, for the streams of the newest segment."""
        if not renewal.holds:
            return  # others were written meanwhile; the next sync begins again
        self._file.state.marks.update(renewal.marks)
        for topic, (_, amount) in renewal.amounts.items():
            self._given[topic] = (self._syncs, amount)
        for stream in () if segment is None else segment.streams.values():
            if stream.topic in renewal.marks:
                self.set(stream)

    def _amount(self, topic: str) -> int:
        """Return how many sequences a stream gets now: renewing costs two fsyncs."""
        last, amount = self._given.get(topic, (-_SOON, 0))
        if self._syncs - last < _SOON:
            return min(4 * amount, _RESERVE_MAX * self._reserve)
        return self._reserve


def encode_state(state: LogState) -> bytes:
    """Return the file's content."""
    body = json.dumps(asdict(state), separators=(",", ":")).encode()
    return f"{_TITLE} {VERSION} {crc32c(body):08x}\n".encode() + body


def decode_state(data: bytes) -> LogState:
    """Return the state; raises `ValueError` with what is wrong."""
    title, _, body = data.partition(b"\n")
    words = title.decode("ascii", "replace").split(" ")
    if len(words) != 3 or words[0] != _TITLE:
        raise ValueError("it is not the state of a log")
    if words[1] != str(VERSION):
        raise ValueError(f"it has version {words[1]}; this library knows {VERSION}")
    if words[2] != f"{crc32c(body):08x}":
        raise ValueError("its checksum is wrong")
    try:
        state = LogState(**json.loads(body))
    except TypeError as error:
        raise ValueError(f"its fields are not those of version {VERSION}: {error}") from error
    state.skips = {
        topic: [(start, stop) for start, stop in ranges] for topic, ranges in state.skips.items()
    }
    return state
