"""The state file: what a log must remember besides its segments. It is small and written whole.

JSON, after a line with its version and checksum::

    p2plog-state 1 CRC32C
    {"session": …, "clean": …, …}
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from crc32c import crc32c

from recovery.errors import LogWriteError, SyncFailedError
from recovery.log.index import SegmentIndex, StreamIndex
from recovery.log.store import LogStore

NAME: Final = "state"
VERSION: Final = 1
RESERVE: Final = 1024
"""How many sequences of a stream are reserved at a time, at first: so many are skipped and reported
lost after a crash of the operating system, at most."""
_TITLE: Final = "p2plog-state"
_UNLIMITED: Final = 2**63
_SOON: Final = 20
"""Syncs; a stream that needs a new mark within so many, 2 s, gets four times as much."""
_AMOUNT_MAX: Final = 2**26
"""A stream of 30 million messages a second then needs a mark every second."""


@dataclass(slots=True)
class LogState:
    """What the state file holds.

    Attributes:
        session: the session that the log's own streams belong to.
        boot: the boot id of the system under which it was written.
        clean: whether the log was closed, with everything on the disk.
        end: how many records there had been then.
        always: whether a frame was sent only when it was on the disk.
        in_tail: how many sequences of a stream a crash of the system may take that are in the tail
            file only, at most.
        identity: what distinguishes the state file from its copy, whose content is the same.
        floor: the sequence that a new stream begins with.
        marks: by topic, the sequence that no message in a segment has reached. A stream that is not
            there has none from `floor + RESERVE` on.
        tails: by topic, what the next sequence is not below: of streams that are in no segment any
            more, or perhaps in none that is on the disk.
        skips: by topic, the ranges that were skipped after crashes.

    """

    session: int
    boot: str = ""
    clean: bool = False
    end: int = 0
    always: bool = False
    in_tail: int = 0
    identity: str = ""
    floor: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    tails: dict[str, int] = field(default_factory=dict)
    skips: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def mark(self, topic: str) -> int:
        """Return the sequence that no message of the topic in a segment has reached."""
        return self.marks.get(topic, self.floor if self.clean else self.floor + RESERVE)


class StateFile:
    """The file of a state. Any thread may change it.

    Args:
        store: has the file.
        state: what it holds from the first `change` on.
        lock: held while it is written.
        is_copy: whether it is to stay the copy of another one.

    Attributes:
        state: what it holds, and nothing else: a mark that is not there would not survive a crash.
        has_failed: whether an fsync failed as it was written; see `LogWriter.has_failed`.

    """

    def __init__(
        self,
        store: LogStore,
        state: LogState,
        lock: AbstractContextManager[object],
        *,
        is_copy: bool = False,
    ) -> None:
        self._store = store
        self.state = state
        self._lock = lock
        self._is_copy = is_copy
        self._is_removed = self.has_failed = False

    def change(
        self,
        *,
        reserved: Mapping[str, int] | None = None,
        tails: Mapping[str, int] | None = None,
        **fields: Any,
    ) -> None:
        """Bring a changed state to the disk.

        Args:
            reserved: marks, by topic; none becomes lower by it.
            tails: the same of `LogState.tails`.
            fields: others, as they are to be.

        Raises:
            LogWriteError: it cannot be written, and stays as it was.

        """
        with self._lock:
            state = replace(
                self.state, marks=_grown(self.state.marks, reserved),
                tails=_grown(self.state.tails, tails),
            )  # fmt: skip
            state = replace(state, **fields)
            what = f"the log {self._store.path(NAME)} cannot be written"
            if self._is_removed:
                raise LogWriteError(what, OSError(9, "it was given up"))
            try:
                self._store.replace(
                    NAME, lambda identity: self._encode(state, identity), durable=True
                )
            except OSError as error:
                self.has_failed |= isinstance(error, SyncFailedError)
                raise LogWriteError(what, error) from error
            for name in LogState.__slots__:
                setattr(self.state, name, getattr(state, name))

    def _encode(self, state: LogState, identity: str) -> bytes:
        state.identity = "a copy" if self._is_copy else identity
        return encode_state(state)

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


def _grown(known: Mapping[str, int], new: Mapping[str, int] | None) -> dict[str, int]:
    found = dict(known)
    for topic, sequence in (new or {}).items():
        found[topic] = max(sequence, found.get(topic, 0))
    return found


class Reservations:
    """Keeps each stream of the log's own session below its mark.

    A mark is the sequence up to which all are reserved on the disk, before any is used.

    Args:
        state_file: has the marks.

    """

    def __init__(self, state_file: StateFile) -> None:
        self._file = state_file
        self._syncs = 0
        self._given: dict[str, tuple[int, int]] = {}  # when, in syncs, and how much

    def set(self, stream: StreamIndex) -> None:
        """Give a stream its mark; streams of other sessions have none."""
        is_ours = stream.session == self._file.state.session
        stream.mark = self._file.state.mark(stream.topic) if is_ours else _UNLIMITED
        stream.low = stream.mark - self._given.get(stream.topic, (0, RESERVE))[1] // 2

    def reserve(self, stream: StreamIndex, stop: int) -> None:
        """Move a stream's mark beyond `stop`, and wait for the disk."""
        self._file.change(reserved={stream.topic: stop + self._amount(stream.topic)})
        self.set(stream)

    def due(self, segment: SegmentIndex) -> dict[str, int]:
        """Return new marks of streams that have used up half, so that `append` need not wait.

        They hold when they are in the state file, and `renew` was called.
        """
        self._syncs += 1
        streams = segment.streams.values()
        if not any(s.stop > s.low for s in streams):
            return {}
        # Those too that have used up a quarter: they are spared a renewal of their own.
        low = [s for s in streams if s.stop > s.low - (s.mark - s.low) // 2]
        return {s.topic: s.stop + self._amount(s.topic) for s in low}

    def renew(self, segment: SegmentIndex) -> None:
        """Use the marks that the state file has, for the streams of the newest segment."""
        for stream in segment.streams.values():
            self.set(stream)

    def _amount(self, topic: str) -> int:
        """Return how many sequences a stream gets now: renewing costs two fsyncs."""
        last, amount = self._given.get(topic, (-_SOON, 0))
        amount = min(4 * amount, _AMOUNT_MAX) if self._syncs - last < _SOON else RESERVE
        self._given[topic] = self._syncs, amount
        return amount


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
