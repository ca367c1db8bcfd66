"""A log's files in memory, with crashes and a disk that fails: for tests and the simulator."""

import errno
from collections.abc import Callable, Sequence
from mmap import mmap
from random import Random
from typing import TYPE_CHECKING

from recovery.errors import LogLockedError, SyncFailedError

if TYPE_CHECKING:
    from recovery.memory_store import MemoryStoreFile
    from recovery.store import Store


class _Snapshot(dict[str, bytes]):
    """What all files hold, by name; `numbers` distinguishes them from copies."""

    def __init__(self, files: dict[str, "_Content"], stores: "dict[str, MemoryStoreFile]") -> None:
        super().__init__({name: bytes(content.data) for name, content in files.items()})
        self.numbers = {name: content.number for name, content in files.items()}
        self.stores = {name: file.states[-1] for name, file in stores.items()}


class _Content:
    """A file's bytes, and those of them that a crash leaves."""

    __slots__ = ("data", "durable", "is_deleted", "number", "readers")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.data = bytearray()
        self.durable = b""
        self.readers = 0
        self.is_deleted = False


class _File:
    """An open file; a killed process' file does nothing any more."""

    def __init__(self, store: "MemoryStore", content: _Content) -> None:
        self._store = store
        self._content = content
        self._incarnation = store.incarnations
        self._shares = self._is_closed = False

    def write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        joined = b"".join(parts)
        data = self._content.data
        space = self._store.space(joined, "write")
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + len(space)] = space
        if len(space) < len(joined):
            self._store.check("write")

    def read(self, byte_count: int, offset: int) -> bytes:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed")
        return bytes(self._content.data[offset : offset + byte_count])

    def size(self) -> int:
        return len(self._content.data)

    def sync(self) -> None:
        self._store.check_sync()
        if self._content.is_deleted:
            raise SyncFailedError(errno.ENOENT, "the file was deleted")
        self._content.durable = bytes(self._content.data)

    def truncate(self, byte_count: int) -> None:
        self._store.check("truncate")
        del self._content.data[byte_count:]

    def share(self) -> None:
        if not self._shares:
            self._shares = True
            self._content.readers += 1

    def close(self) -> None:
        if self._shares and self._incarnation == self._store.incarnations:
            self._content.readers -= 1
        self._shares, self._is_closed = False, True


class MemoryStore:
    """Files in memory. One object is the disk through all incarnations of its processes.

    Attributes:
        failing: what raises by operation: `write`, `sync`, `open`, `replace`, `remove`,
            `truncate`. A write that fails writes half of its bytes first, as a full disk does.
        incarnations: how often its process has died.
        boots: how often its operating system has.

    """

    def __init__(self) -> None:
        self.failing: dict[str, OSError] = {}
        self.incarnations = self.boots = self._contents = 0
        self._maps: dict[str, dict[int, mmap]] = {}
        self._files: dict[str, _Content] = {}
        self._stores: dict[str, MemoryStoreFile] = {}
        self._durable: dict[str, _Content] = {}
        self._is_locked = False

    def kill(self) -> None:
        """End the process: its locks are gone, what it wrote stays."""
        self.incarnations += 1
        self._is_locked = False
        for content in self._files.values():
            content.readers = 0
        for store in self._stores.values():
            store.kill()

    def crash(self, rng: Random | None = None) -> None:
        """End the operating system: what was not synced is gone.

        `rng`: of what was appended and not synced, a random part stays.
        """
        self.kill()
        self.boots += 1
        self._files = dict(self._durable)
        self._maps.clear()
        for store in self._stores.values():
            store.crash(rng)
        for content in self._files.values():
            kept, data = content.durable, bytes(content.data)
            if rng is not None and data.startswith(kept):
                kept = data[: rng.randint(len(kept), len(data))]
            content.data, content.durable = bytearray(kept), kept
            content.is_deleted = False  # that was not on the disk

    def copy(self) -> dict[str, bytes]:
        """Return what all files hold, as a snapshot of the disk: not what is mapped into memory."""
        return _Snapshot(self._files, self._stores)

    def restore(self, files: dict[str, bytes]) -> None:
        """Put what `copy` returned in the place of all files; they survive a crash.

        The files are then the ones of that time. Those of another dictionary are copies of them.
        """
        self._files.clear()
        self._durable.clear()
        self._maps.clear()
        numbers = files.numbers if isinstance(files, _Snapshot) else {}
        stores = files.stores if isinstance(files, _Snapshot) else {}
        self._stores.clear()
        for name, state in stores.items():
            self._new_store(name).states = [state]
        for name, data in files.items():
            self._files[name] = self._new_content(numbers.get(name))
            self.write(name, data)

    def _new_content(self, number: int | None = None) -> _Content:
        self._contents += 1
        return _Content(self._contents if number is None else number)

    def check(self, operation: str) -> None:
        """Raise what was put into `failing`."""
        error = self.failing.get(operation)
        if error is not None:
            raise OSError(error.errno, error.strerror)

    def check_sync(self) -> None:
        """Raise what was put into `failing` for `sync`."""
        try:
            self.check("sync")
        except OSError as error:
            raise SyncFailedError(error.errno, error.strerror) from error

    def space(self, data: bytes, operation: str) -> bytes:
        """Return what of `data` can be written."""
        return data[: len(data) // 2] if operation in self.failing else data

    def lock(self) -> None:
        """Become the writer."""
        if self._is_locked:
            raise LogLockedError("memory")
        self._is_locked = True

    def unlock(self) -> None:
        """Let another one write."""
        self._is_locked = False

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [*self._files, *(name for name in self._maps if name not in self._files)]

    def open(self, name: str, *, create: bool = False) -> _File:
        """Open a file."""
        self.check("open")
        content = self._files.get(name)
        if content is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "there is no such file", name)
            content = self._files[name] = self._new_content()
        return _File(self, content)

    def read(self, name: str) -> bytes | None:
        """Return a file's content, or None."""
        if name in self._maps:
            return b"".join(bytes(part) for _, part in sorted(self._maps[name].items()))
        content = self._files.get(name)
        return None if content is None else bytes(content.data)

    def map(self, name: str, start: int, byte_count: int) -> mmap:
        """Return a part of a file as memory that outlives its process, but not its system."""
        self.check("write")
        there = (self.read(name) or b"")[start : start + byte_count]
        part = mmap(-1, byte_count)
        part[: len(there)] = there
        parts = self._maps.get(name, {})
        outside = {at: one for at, one in parts.items() if not start <= at < start + byte_count}
        self._maps[name] = {**outside, start: part}
        return part

    def open_store(self, name: str, tables: str) -> "Store":
        """Open a file of SQLite."""
        return (self._stores.get(name) or self._new_store(name)).open(tables)

    def _new_store(self, name: str) -> "MemoryStoreFile":
        from recovery.memory_store import MemoryStoreFile  # SQLite, which logs do without

        made = self._stores[name] = MemoryStoreFile(name)
        return made

    def identity(self, name: str) -> str:
        """Return what no copy of a file has."""
        return str(self._files[name].number)

    def write(self, name: str, data: bytes) -> None:
        """Put bytes into a file, as a test damages it; they are there after a crash, too."""
        content = self._files.setdefault(name, self._new_content())
        content.data, content.durable = bytearray(data), bytes(data)
        self._durable[name] = content

    def replace(self, name: str, data: bytes | Callable[[str], bytes], *, durable: bool) -> None:
        """Replace a file as a whole."""
        self.check("replace")
        self._maps.pop(name, None)
        content = self._new_content()
        if not isinstance(data, bytes):
            data = data(str(content.number))
        content.data = bytearray(data)
        self._files[name] = content
        if durable:
            content.durable = bytes(data)
            self.sync_directory()

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        self.check("remove")
        self._maps.pop(name, None)
        content = self._files.pop(name, None)
        if content is not None:
            content.is_deleted = True

    def remove_unshared(self, name: str) -> bool:
        """Delete a file unless somebody reads it."""
        content = self._files.get(name)
        if content is not None and content.readers:
            return False
        self.remove(name)
        return True

    def sync_directory(self) -> None:
        """Let the names survive a crash."""
        self.check_sync()
        self._durable = dict(self._files)

    def boot_id(self) -> str:
        """Return what is another one after each crash."""
        return f"boot {self.boots}"

    def path(self, name: str) -> str:
        """Return the file's name."""
        return name
