"""What a sender keeps of one endpoint in a folder: messages that failed, and why it was stopped.

`letters` is a file of SQLite: the sender writes it, and `p2pmsg hook dead-letters` marks in it what
is to be sent again, or removes it. Next to it is `cursor`: how far the stream was delivered.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

from p2pmsg import codec
from p2pmsg.store import Row, Store, make_folder, open_store

CURSOR: Final = "cursor"
_LETTERS: Final = "letters"
_LOCK: Final = "letters.lock"
_DEAD_MAX: Final = 100_000
_DEAD_BYTES_MAX: Final = 2**30
_OTHER_SENDER: Final = "another `p2pmsg hook out`, or webhooks.Sender"
_TABLES: Final = """
CREATE TABLE letters (
    id TEXT PRIMARY KEY, why TEXT NOT NULL, size INTEGER NOT NULL, record BLOB NOT NULL);
CREATE INDEX letters_of ON letters (why, size);
CREATE TABLE stopped (reason TEXT NOT NULL);
"""
_OTHERS: Final = """
SELECT count(*), coalesce(sum(size), 0) FROM letters
WHERE why='dead' AND id NOT IN (SELECT value FROM json_each(?))"""
_PUT: Final = "INSERT OR REPLACE INTO letters VALUES (?, ?, ?, ?)"

Why = Literal["parked", "dead", "asked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message that could not be delivered.

    Attributes:
        id: the webhook's id, the same for each attempt.
        why: `parked`: it waits for its next attempt; `dead`: it is not tried any more; `asked`: it
            was dead, and is to be sent again.
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


class Letters:
    """The letters of one endpoint, for any thread, one at a time.

    Args:
        folder: the endpoint's, which is made where it is missing.

    Raises:
        LogFormatError: the file is something else.
        OSError: it cannot be read or written; so all methods.

    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        make_folder(self.folder.parent)
        make_folder(self.folder)
        with suppress(PermissionError):
            os.chmod(self.folder, 0o700)
        self._lock: Store | None = None
        self._store = open_store(self.folder / _LETTERS, _TABLES, shared=True)

    def lock(self) -> None:
        """Be the endpoint's only sender; `LogInUseError` where there is another one."""
        lock = self.folder / _LOCK
        self._lock = open_store(lock, "CREATE TABLE sender (x);", used_by=_OTHER_SENDER)

    def close(self) -> None:
        """Close the file."""
        self._store.close()
        if self._lock is not None:
            self._lock.close()

    def all(self, why: Why, limit: int = -1) -> list[Letter]:
        """Return those that are there for a reason, in their order; -1: as many as there are."""
        statement = "SELECT record FROM letters WHERE why=? ORDER BY rowid LIMIT ?"
        found = self._store.rows(statement, (why, limit))
        return [Letter(**codec.decode(record) | {"why": why}) for (record,) in found]

    def count(self, why: Why) -> int:
        """Return how many are there for a reason."""
        return int(self._store.rows("SELECT count(*) FROM letters WHERE why=?", (why,))[0][0])

    def write(self, puts: Iterable[Letter] = (), drops: Iterable[str] = ()) -> None:
        """Put letters in, and remove others; on the disk on return, or nothing is."""
        rows: list[Row] = [(one.id, one.why, one.size, codec.encode(asdict(one))) for one in puts]
        drops = list(drops)
        dead = {row[0]: row[2] for row in rows if row[1] == "dead" and row[0] not in drops}
        if dead:
            changed = json.dumps([*drops, *(row[0] for row in rows)])
            count, size = self._store.rows(_OTHERS, (changed,))[0]
            if count + len(dead) > _DEAD_MAX or size + sum(dead.values()) > _DEAD_BYTES_MAX:
                what = f"more dead letters than {_DEAD_MAX} or {_DEAD_BYTES_MAX} bytes"
                raise OSError(None, what)
        gone = [(one,) for one in drops]
        self._store.write((_PUT, rows), ("DELETE FROM letters WHERE id=?", gone), durable=True)

    def ask(self, ids: Iterable[str]) -> None:
        """Ask the sender, which runs or will, to send dead letters again."""
        self._dead("UPDATE letters SET why='asked'", ids)

    def purge(self, ids: Iterable[str]) -> None:
        """Remove dead letters."""
        self._dead("DELETE FROM letters", ids)

    @property
    def stopped(self) -> str | None:
        """Why nothing is to be sent any more, also after a restart; None: it is."""
        rows = self._store.rows("SELECT reason FROM stopped")
        return str(rows[0][0]) if rows else None

    def stop(self, reason: str) -> None:
        """Note that nothing is to be sent any more."""
        self._store.write(("INSERT INTO stopped VALUES (?)", [(reason,)]), durable=True)

    def resume(self) -> None:
        """Note that it is to be sent again."""
        self._store.write(("DELETE FROM stopped", [()]), durable=True)

    def _dead(self, statement: str, ids: Iterable[str]) -> None:
        rows = [(each,) for each in ids if each.isascii()]
        self._store.write((f"{statement} WHERE id=? AND why='dead'", rows), durable=True)


def folders(state: str | Path) -> list[Path]:
    """Return the folders of all endpoints of a sender's state."""
    return [path.parent for path in sorted(Path(state).glob(f"*/{_LETTERS}"))]
