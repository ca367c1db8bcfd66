"""How far a queue's log was written, in a file next to the segments.

Workers on other machines know numbers whose records are lost. If the next run gave them to other
jobs, a worker could claim, and acknowledge, a job that it never had. So this file is written after
each record (24 bytes into the page cache), outlives the process, and says three things:

- where the log ended: anything less on the disk means that records are gone;
- the next sequence and delivery number: the next run begins there at least;
- which files these are: inode and time of birth of itself and of `queue.lock`, which is made once.
  Files out of a copy have others, so a log that was restored is recognised; a change of owner or
  access changes neither. A snapshot of a whole disk that is put back, or content that is written
  back into the same files, is not recognised: delete this file after that.
"""

import hashlib
import os
import struct
import zlib
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from recovery.durable import replace_file, sync_path
from recovery.platform import identity_of

NAME: Final = "queue.position"
_MAGIC: Final = b"p2q1"
_HEAD: Final = struct.Struct("!4sI")
"""Magic, CRC-32 of the identity."""
_IDENTITY_BYTES: Final = 24
_ENDS: Final = struct.Struct("!QQQ")
"""Where the log ends, the next sequence, the next delivery number."""
_ENDS_AT: Final = _HEAD.size + _IDENTITY_BYTES
_SIZE_BITS: Final = 40
"""Of `Position.end`; the segment's number has the others. 1 TiB: `segment_bytes` and a record."""


@dataclass(frozen=True, slots=True)
class Position:
    """What the file says.

    Attributes:
        segment, size: the segment that was written last, and how long it was, in bytes.
        sequence, delivery: the next numbers.

    """

    segment: int
    size: int
    sequence: int
    delivery: int

    @property
    def end(self) -> int:
        """Segment and size as one number: what is written later has a larger one."""
        return self.segment << _SIZE_BITS | self.size


class PositionFile:
    """The file, open for writing.

    Args:
        folder: of the log.
        lock_fd: the log's lock file, open for writing.

    Attributes:
        found: what `read` found; None where there was none, or it was damaged, or it
            is that of another directory.

    """

    def __init__(self, folder: Path, lock_fd: int) -> None:
        self._folder = folder
        self._lock_fd = lock_fd
        self._file: FileIO | None = None
        self._fd = -1
        self.found: Position | None = None

    def read(self) -> None:
        """Find out what an earlier run left; raises `OSError`."""
        try:
            fd = os.open(self._folder / NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            data = os.pread(fd, _ENDS_AT + _ENDS.size, 0)
            is_ours = data[:_ENDS_AT] == self._head(fd)
        finally:
            os.close(fd)
        if is_ours and len(data) == _ENDS_AT + _ENDS.size:
            end, sequence, delivery = _ENDS.unpack_from(data, _ENDS_AT)
            size = end & (1 << _SIZE_BITS) - 1
            self.found = Position(end >> _SIZE_BITS, size, sequence, delivery)

    def begin(self, position: Position) -> None:
        """Replace the file; it is on the disk on return. Raises `OSError`."""
        ends = _ENDS.pack(position.end, position.sequence, position.delivery)

        def content(fd: int) -> bytes:
            return self._head(fd) + ends

        os.fsync(self._lock_fd)
        file = replace_file(self._folder / NAME, content, mode=0o644)
        try:
            fd = file.fileno()
            os.fsync(fd)
            sync_path(self._folder)
        except BaseException:
            file.close()
            raise
        self.close()
        self._file, self._fd = file, fd

    def note(self, segment: int, size: int, sequence: int, delivery: int) -> None:
        """Note where the log ends now.

        What cannot be written is left out: the file then says less than there is, which is how it
        is where a process dies between the two.
        """
        try:
            ends = _ENDS.pack(segment << _SIZE_BITS | size, sequence, delivery)
            os.pwrite(self._fd, ends, _ENDS_AT)
        except OSError:
            pass

    def close(self) -> None:
        """Close the file; it may be called again."""
        if self._file is not None:
            self._file.close()
            self._file, self._fd = None, -1

    def _head(self, fd: int) -> bytes:
        """Return how the file begins: with what a copy of these files does not have."""
        files = f"{identity_of(fd)} {identity_of(self._lock_fd)}".encode()
        identity = hashlib.blake2b(files, digest_size=_IDENTITY_BYTES).digest()
        return _HEAD.pack(_MAGIC, zlib.crc32(identity)) + identity
