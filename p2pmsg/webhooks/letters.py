"""Messages that failed, in a file: those that wait for their next attempt, and dead letters.

::

    magic │ length, CRC-32, record │ length, CRC-32, record │ …

A record puts a letter in, in the place of a former one, or removes it. What a crash cut off at the
end is removed when the file is opened; it was not counted on. When most of the file is of no use
any more, it is written again.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Final, Literal

from p2pmsg import codec
from p2pmsg.errors import LogFormatError, LogInUseError
from recovery.durable import holder_of, lock_file, make_folder, replace_file, sync_path, unlock_file
from transports.own_log import own_log as _log

MAGIC: Final = b"p2hooks\x01"
_HEADER: Final = struct.Struct("!II")
_COMPACT_BYTES: Final = 4 * 2**20
"""From which size on the file is written again when less than half of it is of use."""
_MODE: Final = 0o600
"""Messages are in it: for its owner alone, also where it is copied out of its folder."""
_OTHER_SENDER: Final = "another `p2pmsg hook out`, or webhooks.Sender"

Why = Literal["parked", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message that could not be delivered.

    Attributes:
        id: the webhook's id, the same for each attempt.
        why: `parked`: it waits for its next attempt; `dead`: it is not tried any more.
        topic: the stream's topic.
        session: the stream's session.
        sequence: the message's number in its stream.
        key: its key; None without one.
        attempts: how many failed.
        reason: why the last one failed.
        at_ns: when that was, in ns since the epoch.
        body: what is sent.
        headers: what is sent with it, signatures excepted.

    """

    id: str
    why: Why
    topic: str
    session: int
    sequence: int
    key: str | None = None
    attempts: int = 0
    reason: str = ""
    at_ns: int = 0
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many bytes it takes, about."""
        return len(self.body) + 300


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a record is; `why` is None where it removes a letter."""

    why: Why | None
    offset: int
    size: int


class LetterFile:
    """The letters of one endpoint; only one process writes it.

    Args:
        path: the file, made where it is missing.
        dead_max: how many dead letters it may have. Default 100,000.
        dead_bytes: how many bytes these may take. Default 1 GiB.

    Attributes:
        dead: how many dead letters there are.

    Raises:
        LogInUseError: another process, or sender, has it.
        LogFormatError: the file is something else.
        OSError: it cannot be read or written.

    """

    def __init__(self, path: str | Path, dead_max: int = 100_000, dead_bytes: int = 2**30) -> None:
        self._path = os.fspath(path)
        self._dead_max = dead_max
        self._dead_bytes = dead_bytes
        self._places: dict[str, _Place] = {}
        self._live_bytes = self._dead_size = self.dead = 0
        make_folder(os.path.dirname(self._path) or ".")
        try:
            self._lock = lock_file(self._path + ".lock")
        except BlockingIOError as error:
            folder, pid = os.path.dirname(self._path), holder_of(self._path + ".lock")
            raise LogInUseError(folder, "the folder", _OTHER_SENDER, pid) from error
        try:
            self._file = self._open()
            self._end = len(MAGIC)
            for letter_id, place in _records(self._file):
                self._note(letter_id, place)
                self._end = place.offset + place.size
            self._cut()
        except BaseException:
            unlock_file(self._lock)
            raise

    def __iter__(self) -> Iterator[Letter]:
        for letter_id in [*self._places]:
            yield self.get(letter_id)

    def __contains__(self, letter_id: str) -> bool:
        return letter_id in self._places

    def ids(self, why: Why) -> list[str]:
        """Return the ids of all that are parked, or dead, in their order."""
        return [letter_id for letter_id, place in self._places.items() if place.why == why]

    def get(self, letter_id: str) -> Letter:
        """Return a letter; `KeyError` where there is none."""
        place = self._places[letter_id]
        data = os.pread(self._file.fileno(), place.size, place.offset)
        return _letter(data)

    def why_full(self, letter: Letter) -> str:
        """Return why one more dead letter is too many; empty where it is not."""
        if self.dead < self._dead_max and self._dead_size + letter.size <= self._dead_bytes:
            return ""
        return (
            f"{self._path!r} has {self.dead} dead letters of {self._dead_size} bytes, and "
            f"the limits are {self._dead_max} and {self._dead_bytes}"
        )

    def write(self, puts: Iterable[Letter] = (), drops: Iterable[str] = ()) -> None:
        """Put letters in, and remove others; on the disk on return, or `OSError`."""
        parts: list[tuple[str, Why | None, bytes]] = [
            (letter.id, letter.why, _record(["put", asdict(letter)])) for letter in puts
        ]
        parts += [(each, None, _record(["drop", each])) for each in drops if each in self._places]
        if not parts:
            return
        data = b"".join(part[2] for part in parts)
        try:
            written = os.pwrite(self._file.fileno(), data, self._end)
            if written != len(data):
                raise OSError(f"{self._path!r} could be written in part only")
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), self._end)
            raise
        for letter_id, why, record in parts:
            self._note(letter_id, _Place(why, self._end, len(record)))
            self._end += len(record)
        if self._end > _COMPACT_BYTES and self._live_bytes < self._end // 2:
            self._compact()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        unlock_file(self._lock)

    def _open(self) -> FileIO:
        try:
            file = FileIO(self._path, "r+")
        except FileNotFoundError:
            replace_file(self._path, MAGIC, mode=_MODE).close()
            sync_path(os.path.dirname(self._path) or ".")
            return FileIO(self._path, "r+")
        if file.read(len(MAGIC)) != MAGIC:
            file.close()
            raise LogFormatError(self._path, 0, f"{self._path} is no file of letters")
        return file

    def _cut(self) -> None:
        """Remove what a crash left at the end; it is kept next to it, for people."""
        rest = os.fstat(self._file.fileno()).st_size - self._end
        if rest > 0:
            _log.warning("%s: %d bytes at its end are no letters; removed", self._path, rest)
            data = os.pread(self._file.fileno(), rest, self._end)
            replace_file(self._path + ".damaged", data, mode=_MODE).close()
            os.ftruncate(self._file.fileno(), self._end)

    def _note(self, letter_id: str, place: _Place) -> None:
        former = self._places.pop(letter_id, None)
        if former is not None:
            self._live_bytes -= former.size
            if former.why == "dead":
                self.dead -= 1
                self._dead_size -= former.size
        if place.why is None:
            return
        self._places[letter_id] = place
        self._live_bytes += place.size
        if place.why == "dead":
            self.dead += 1
            self._dead_size += place.size

    def _compact(self) -> None:
        places: dict[str, _Place] = {}
        source = self._file.fileno()

        def copy(target: int) -> bytes:
            at = os.write(target, MAGIC)
            for letter_id, place in self._places.items():
                os.write(target, os.pread(source, place.size, place.offset))
                places[letter_id] = _Place(place.why, at, place.size)
                at += place.size
            return b""

        try:
            file = replace_file(self._path, copy, mode=_MODE)
            sync_path(os.path.dirname(self._path) or ".")
        except OSError as error:
            _log.warning("%s could not be made shorter: %s", self._path, error)
            return
        self._file.close()
        self._file, self._places = file, places
        self._end = self._live_bytes + len(MAGIC)


def read_letters(path: str | Path) -> list[Letter]:
    """Return the letters of a file, which another process may be writing.

    Raises:
        LogFormatError: the file is something else.
        OSError: it cannot be read.

    """
    found: dict[str, _Place] = {}
    with FileIO(os.fspath(path), "r") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise LogFormatError(os.fspath(path), 0, f"{path} is no file of letters")
        for letter_id, place in _records(file):
            found.pop(letter_id, None)
            if place.why is not None:
                found[letter_id] = place
        return [
            _letter(os.pread(file.fileno(), place.size, place.offset)) for place in found.values()
        ]


def _records(file: FileIO) -> Iterator[tuple[str, _Place]]:
    """Yield the records after the magic, up to the first that is none."""
    offset, size = len(MAGIC), os.fstat(file.fileno()).st_size
    while True:
        header = os.pread(file.fileno(), _HEADER.size, offset)
        if len(header) < _HEADER.size:
            return
        length, crc = _HEADER.unpack(header)
        if not 0 < length <= size - offset - _HEADER.size:
            return
        data = os.pread(file.fileno(), length, offset + _HEADER.size)
        if len(data) != length or zlib.crc32(data) != crc:
            return
        kind, content = codec.decode(data)
        whole = length + _HEADER.size
        if kind == "put":
            yield content["id"], _Place(content["why"], offset, whole)
        else:
            yield content, _Place(None, offset, whole)
        offset += whole


def _record(content: list[Any]) -> bytes:
    data = codec.encode(content)
    return _HEADER.pack(len(data), zlib.crc32(data)) + data


def _letter(record: bytes) -> Letter:
    return Letter(**codec.decode(record[_HEADER.size :])[1])
