"""Which requests were taken already, over restarts: a bounded table, and a file with it."""

import hashlib
import os
from pathlib import Path
from typing import Final

from p2pmsg.errors import LogFailedError, P2PError
from p2pmsg.store import Store, open_store
from p2pmsg.toolkit import Trouble
from p2pmsg.toolkit import own_log as _log

KEEP_S: Final = 80 * 3600
"""How long an id is kept: longer than the 75 hours of Standard Webhooks' schedule."""
IDS_MAX: Final = 500_000
"""How many are kept, in some 70 MB; the oldest is forgotten first, and counted."""
_OTHER_RECEIVER: Final = "another `p2pmsg hook in`, or webhooks.receive"
_CONSEQUENCE: Final = (
    "what is taken meanwhile is known in memory only: if it is sent again after a restart, it is "
    "published again"
)
_TABLES: Final = "CREATE TABLE ids (digest BLOB NOT NULL, taken INTEGER NOT NULL)"
_PUT: Final = "INSERT INTO ids VALUES (?, ?)"
_DROP: Final = "DELETE FROM ids WHERE rowid IN (SELECT rowid FROM ids ORDER BY rowid LIMIT ?)"


class SeenIds:
    """The ids of requests that were taken.

    For several threads, `add` and `close` need a lock; `has`, `len` and the attributes need none.
    An id outlasts the process, and not always a crash of the operating system. What fails at the
    file is logged, counted and tried again with the next id; the ids that it does not have are kept
    in memory until then.

    Args:
        path: the file; None: only in memory. It is made where it is missing.
        now: the time, in seconds since the epoch.

    Attributes:
        forgotten: ids that were forgotten before their time.
        failures: how often the file could not be written.

    Raises:
        LogInUseError: another process uses the file.
        LogFormatError: the file is something else.
        LogFailedError: it cannot be read or written.

    """

    def __init__(self, path: str | Path | None, now: float) -> None:
        self._ids: dict[bytes, int] = {}
        self._unwritten: dict[bytes, int] = {}
        self._stale = 0  # ids that are to be removed from the file, in which they are the first
        self.forgotten = self.failures = 0
        self._path = "" if path is None else os.path.abspath(path)
        self._store: Store | None = None
        self._trouble = Trouble(f"the file of webhook ids {self._path}", _CONSEQUENCE)
        if not self._path:
            return
        try:
            self._store = open_store(self._path, _TABLES, used_by=_OTHER_RECEIVER)
            self._ids.update(self._store.rows("SELECT digest, taken FROM ids ORDER BY rowid"))
        except P2PError:
            raise
        except OSError as error:
            reason = f"seen: the file {self._path} cannot be used: {error.strerror}"
            raise LogFailedError(reason, error.errno) from error
        self._expire(int(now))

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def unwritten(self) -> int:
        """How many ids are in memory only, since the file could not be written."""
        return len(self._unwritten)

    def has(self, request_id: str, now: float) -> bool:
        """Whether a request with this id was taken, not longer ago than ids are kept."""
        taken = self._ids.get(_digest(request_id))
        return taken is not None and taken > now - KEEP_S

    def add(self, request_id: str, now: float) -> None:
        """Note that it was taken; a process that is killed afterwards does not forget it."""
        digest, taken = _digest(request_id), int(now)
        self._expire(taken)
        if digest in self._ids:
            return
        self._ids[digest] = taken
        if self._store is not None:
            self._unwritten[digest] = taken
        self._expire(taken)
        self._write()

    def close(self) -> None:
        """Write what is not written yet, and close the file."""
        self._write()
        if self._unwritten:
            _log.warning(
                "%s: %d ids could not be written: if their requests are sent again, they are "
                "published again", self._path, len(self._unwritten),
            )  # fmt: skip
        if self._store is not None:
            self._store.close()

    def _expire(self, now: int) -> None:
        while self._ids:
            oldest = next(iter(self._ids))
            is_old = self._ids[oldest] <= now - KEEP_S
            if not is_old and len(self._ids) <= IDS_MAX:
                return
            self.forgotten += not is_old
            del self._ids[oldest]
            self._stale += self._unwritten.pop(oldest, None) is None

    def _write(self) -> None:
        """Write the ids that the file does not have, and remove those that are forgotten."""
        if self._store is None or not (self._unwritten or self._stale):
            return
        try:
            puts = (_PUT, list(self._unwritten.items()))
            self._store.write(puts, (_DROP, [(self._stale,)]), durable=False)
        except OSError as error:
            self.failures += 1
            self._trouble.note(error)
            return
        self._unwritten.clear()
        self._stale = 0
        self._trouble.over()


def _digest(request_id: str) -> bytes:
    return hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=16).digest()
