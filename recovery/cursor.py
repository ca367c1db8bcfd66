"""A subscriber's durable position: what it is, and how a file of SQLite holds it."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from recovery.checks import check_fields
from recovery.errors import RecoveryError

if TYPE_CHECKING:
    from recovery.store import Row, Store

TABLES: Final = """
CREATE TABLE session (
    session TEXT PRIMARY KEY, number INTEGER NOT NULL, scope TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE stream (
    session TEXT, topic TEXT, next INTEGER NOT NULL, PRIMARY KEY (session, topic)) WITHOUT ROWID;
CREATE TABLE endpoint (number INTEGER PRIMARY KEY, endpoint TEXT NOT NULL);
"""
"""Sessions are in hexadecimal, numbered in the order in which they were joined."""
_PUT_STREAM: Final = "INSERT OR REPLACE INTO stream VALUES (?, ?, ?)"
_PUT_SESSION: Final = "INSERT INTO session VALUES (?, ?, ?)"
_PUT_ENDPOINT: Final = "INSERT INTO endpoint VALUES (?, ?)"
SESSIONS_MAX = 1024
"""Sessions that are remembered; the one joined longest ago is forgotten first, and would be taken
from its beginning. More than there are publishers: one without a log has a new session at every
start."""
STREAMS_MAX = 65_536
"""Streams that are remembered, over all sessions; those of the session joined longest ago are
forgotten first. As many as a subscriber takes."""
_SCOPE_MAX: Final = 4096
_PLACES_MAX: Final = 4096

Fsync = Literal["always", "interval", "never"]


@dataclass(frozen=True, slots=True)
class CursorConfig:
    """Where a subscriber keeps its position, and how. `ValueError` for a value out of limits.

    Whatever `fsync` says, a process that dies loses no commit, and a crash of the operating system
    loses no message: it may only take back commits, so that more messages come twice.
    """

    path: str | Path
    """The file, a database of SQLite, which is made where it is missing. While it is open, and
    after a process was killed, a file `-wal` next to it belongs to it."""

    _: KW_ONLY

    fsync: Fsync = "interval"
    """When a commit is forced to the disk, to survive a crash of the operating system. `interval`
    (default): `commit()` before it returns, and so at `close()`; automatic commits once a second,
    since forcing takes about a millisecond. `always`: every commit before it is done. `never`:
    the operating system decides, half a minute later perhaps."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not str(self.path):
            raise ValueError("path must be a str or a Path, not ''")


@dataclass(slots=True)
class CursorSession:
    """What is known of a session.

    Attributes:
        scope: what of it was subscribed to when it was joined; the caller's words.
        streams: the next sequence wanted, by topic.

    """

    scope: tuple[str, ...]
    streams: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Cursor:
    """The position of a subscriber.

    Attributes:
        sessions: those that were joined, the one joined longest ago first.
        endpoints: where sessions were met; the caller's words.

    """

    sessions: dict[int, CursorSession] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()

    def next(self, session: int, topic: str) -> int | None:
        """Return the next sequence wanted of a stream, or None where it is not known."""
        known = self.sessions.get(session)
        return None if known is None else known.streams.get(topic)

    @property
    def stream_count(self) -> int:
        """How many streams are remembered."""
        return sum(len(known.streams) for known in self.sessions.values())


class CursorFile:
    """A subscriber's position, in memory and in a file.

    After a method raised, the file holds what it held or what was to be written, and the next write
    is of the whole. It opens the file again where that failed, since it may have been deleted.

    Args:
        open_file: opens the file that has the tables it is given.

    Attributes:
        cursor: the position; to be read only.
        path: the file's name, for people.
        commits: how many times positions were written.
        unsynced: whether something was written and not forced to the disk.
        sessions_dropped, streams_dropped: what was forgotten at the bounds.

    Raises:
        RecoveryError: another subscriber has it, or it is no cursor, or damaged.
        OSError: it cannot be read or written.

    """

    def __init__(self, open_file: "Callable[[str], Store]") -> None:
        self._open_file = open_file
        self.commits = self.sessions_dropped = self.streams_dropped = 0
        self.unsynced = True  # what the former process has written, perhaps
        self._is_ahead = self._has_failed = False
        self._store = open_file(TABLES)
        self.path = self._store.path
        try:
            self.cursor = _read(self._store)
        except BaseException:
            self._store.close()
            raise

    def join(
        self,
        session: int,
        scope: tuple[str, ...],
        starts: Mapping[str, int],
        endpoints: Iterable[str],
    ) -> bool:
        """Note that a session was joined, and where its streams begin; on the disk on return.

        Streams that are known already keep their position. Returns whether anything was new.
        """
        cursor = self.cursor
        former = cursor.sessions.get(session)
        known = CursorSession(()) if former is None else former
        new_scope = tuple(word for word in scope if word not in known.scope)
        new_starts = {
            topic: start
            for topic, start in starts.items()
            if start and topic not in known.streams  # 0 is what is taken for the unknown
        }
        new_places = tuple(place for place in endpoints if place not in cursor.endpoints)
        others = {name: other for name, other in cursor.sessions.items() if name != session}
        changed = former is None or self._is_ahead
        if not (changed or new_scope or new_starts or new_places):
            cursor.sessions = {**others, session: known}  # it is the youngest now
            return False
        self._begin_write()
        if new_scope:
            known.scope = (known.scope + new_scope)[-max(_SCOPE_MAX, len(scope)) :]
        known.streams.update(new_starts)
        cursor.sessions = {**others, session: known}
        cursor.endpoints = (cursor.endpoints + new_places)[-_PLACES_MAX:]
        self._drop(session)
        self._write_all()
        return True

    def advance(self, positions: Iterable[tuple[int, str, int]], durable: bool = False) -> int:
        """Commit: note the next sequence wanted of each (session, topic).

        With `durable` it is on the disk on return. A position never goes back, and a session that
        was not joined, or was forgotten, is left out. Returns how many streams advanced.
        """
        rows: list[tuple[str, str, int]] = []
        is_whole, grows = self._is_ahead and self._begin_write(), False
        self._is_ahead = True  # until they are written
        sessions = self.cursor.sessions
        for session, topic, following in positions:
            known = sessions.get(session)
            if known is not None and following > known.streams.get(topic, -1):
                grows |= topic not in known.streams
                known.streams[topic] = following
                rows.append((f"{session:016x}", topic, following))
        if grows and self.cursor.stream_count > STREAMS_MAX:
            self._drop(None)
            is_whole = True
        if is_whole:
            self._write_all()
        elif rows:
            self._write((_PUT_STREAM, rows), durable=durable)
        self._is_ahead = False
        self.commits += bool(rows)
        if durable and self.unsynced:
            self._sync()
        return len(rows)

    def rewind(self, session: int, topic: str, following: int) -> None:
        """Let a stream resume at `following`, before what was committed; on the disk on return.

        For a publisher that has gone back itself and uses the sequences from there on again.
        """
        known = self.cursor.sessions.get(session)
        if known is None or known.streams.get(topic, 0) <= following:
            return
        self._begin_write()
        known.streams[topic] = following
        self._write_all()

    def sync(self) -> None:
        """Force what was written to the disk, if anything was not."""
        if self._begin_write():
            self._write_all()
        elif self.unsynced:
            self._sync()
        self._is_ahead = False

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def _begin_write(self) -> bool:
        """Return whether the last write did not end, so that the next one is of the whole."""
        is_ahead, self._is_ahead = self._is_ahead, True
        if self._has_failed:
            self._store.close()
            self._store = self._open_file(TABLES)
            self._has_failed = False
        return is_ahead

    def _write(self, *changes: "tuple[str, Sequence[Row]]", durable: bool) -> None:
        try:
            self._store.write(*changes, durable=durable)
        except OSError:
            self._has_failed = True
            raise
        self.unsynced = not durable

    def _sync(self) -> None:
        try:
            self._store.sync()
        except OSError:
            self._is_ahead = self._has_failed = True  # what it leaves is unknown
            raise
        self.unsynced = False

    def _write_all(self) -> None:
        """Write the whole; on the disk on return."""
        sessions = {f"{name:016x}": known for name, known in self.cursor.sessions.items()}
        self._write(
            ("DELETE FROM session", [()]),
            ("DELETE FROM stream", [()]),
            ("DELETE FROM endpoint", [()]),
            (_PUT_ENDPOINT, list(enumerate(self.cursor.endpoints))),
            (
                _PUT_SESSION,
                [
                    (name, n, json.dumps(one.scope))
                    for n, (name, one) in enumerate(sessions.items())
                ],
            ),
            (
                _PUT_STREAM,
                [(name, *at) for name, one in sessions.items() for at in one.streams.items()],
            ),
            durable=True,
        )
        self._is_ahead = False

    def _drop(self, keep: int | None) -> None:
        """Keep within the bounds: forget the sessions joined longest ago, but not `keep`."""
        sessions = self.cursor.sessions
        count = self.cursor.stream_count
        for session in list(sessions):
            if len(sessions) <= SESSIONS_MAX and count <= STREAMS_MAX:
                return
            if session != keep and len(sessions) > 1:
                dropped = len(sessions.pop(session).streams)
                count -= dropped
                self.streams_dropped += dropped
                self.sessions_dropped += 1
        for known in sessions.values():
            for topic in list(known.streams)[: max(0, count - STREAMS_MAX)]:
                del known.streams[topic]
                count -= 1
                self.streams_dropped += 1


def _read(store: "Store") -> Cursor:
    cursor = Cursor()
    try:
        for session, scope in store.rows("SELECT session, scope FROM session ORDER BY number"):
            cursor.sessions[int(session, 16)] = CursorSession(tuple(map(str, json.loads(scope))))
        for session, topic, following in store.rows("SELECT session, topic, next FROM stream"):
            cursor.sessions[int(session, 16)].streams[str(topic)] = int(following)
        endpoints = store.rows("SELECT endpoint FROM endpoint ORDER BY number")
        cursor.endpoints = tuple(str(endpoint) for (endpoint,) in endpoints)
    except (ValueError, TypeError, KeyError) as error:
        raise RecoveryError(f"what is in it makes no sense: {error!r}") from error
    return cursor
