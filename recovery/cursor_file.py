"""A cursor and its file: joins and commits, each there whole or not at all after a crash."""

from collections.abc import Iterable, Mapping
from typing import Final

from recovery.cursor import (
    Cursor,
    CursorConfig,
    CursorSession,
    decode,
    encode_named,
    encode_position,
    encode_record,
    encode_snapshot,
)
from recovery.cursor_store import CursorStore

JOURNAL_BYTES_MAX: Final = 8 * 2**20
"""Bytes of records after which the file is written anew: 290,000 commits, read in half a second."""
_SCOPE_MAX: Final = 4096
_PLACES_MAX: Final = 4096


class CursorFile:
    """A subscriber's position, in memory and in a store.

    After a method raised, the file holds what it held or what was to be written, and the next write
    is of the whole.

    Attributes:
        cursor: the position; to be read only.
        commits: how many times positions were written.
        unsynced: whether something was written and not forced to the disk.
        bytes_cut: length of the torn end that was found when it was opened.
        sessions_dropped, streams_dropped: what was forgotten at the bounds.

    """

    def __init__(self, store: CursorStore, config: CursorConfig) -> None:
        """Lock the store and read it.

        Raises:
            CursorLockedError: another subscriber has it.
            CursorFileError: it is no cursor, or damaged.
            OSError: from the store.

        """
        self._store = store
        self._config = config
        self.commits = 0
        self.unsynced = False
        self.bytes_cut = self.sessions_dropped = self.streams_dropped = 0
        self._suspect = False
        store.lock()
        try:
            data = store.read()
            if data is None:
                self.cursor = Cursor()
                self._replace()
                return
            store.sync_folder()  # the former process may have died between rename and this
            found = decode(data)
            self.cursor, self._numbers = found.cursor, found.numbers
            self._snapshot_bytes, self._bytes = found.snapshot_bytes, found.good_bytes
            self._durable = found.snapshot_bytes
            self.bytes_cut = len(data) - found.good_bytes
            self.unsynced = self._bytes > self._snapshot_bytes  # by the former process, perhaps
            if self.bytes_cut:
                self._replace()
        except BaseException:
            store.close()
            raise

    @property
    def path(self) -> str:
        """The name of the store, for people."""
        return self._store.path

    def join(
        self,
        session: int,
        scope: tuple[str, ...],
        starts: Mapping[str, int],
        places: Iterable[str],
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
        new_places = tuple(place for place in places if place not in cursor.places)
        others = {name: other for name, other in cursor.sessions.items() if name != session}
        changed = former is None or self._suspect
        if not (changed or new_scope or new_starts or new_places):
            cursor.sessions = {**others, session: known}  # it is the youngest now
            return False
        self._suspect = True  # whatever strikes from here on, the next write is of the whole
        if new_scope:
            known.scope = (known.scope + new_scope)[-max(_SCOPE_MAX, len(scope)) :]
        known.streams.update(new_starts)
        cursor.sessions = {**others, session: known}
        cursor.places = (cursor.places + new_places)[-_PLACES_MAX:]
        self._drop(session)
        self._replace()
        return True

    def advance(self, positions: Iterable[tuple[int, str, int]], *, durable: bool) -> int:
        """Commit: note the next sequence wanted of each (session, topic).

        With `durable` it is on the disk on return. A position never goes back, and a session that
        was not joined, or was forgotten, is left out. Returns how many streams advanced.
        """
        undo: list[tuple[dict[str, int], str, int | None]] = []
        entries: list[bytes] = []
        try:
            for session, topic, following in positions:
                known = self.cursor.sessions.get(session)
                if known is None:
                    continue
                former = known.streams.get(topic)
                if former is not None and following <= former:
                    continue
                undo.append((known.streams, topic, former))
                known.streams[topic] = following
                number = self._numbers.get((session, topic))
                if number is None:
                    self._numbers[session, topic] = len(self._numbers)
                    entries.append(encode_named(session, topic, following))
                else:
                    entries.append(encode_position(number, following))
            if entries:
                self._write(b"".join(entries))
                self.commits += 1
            if durable:
                self.sync()
        except BaseException:
            self._suspect = True
            for streams, topic, former in reversed(undo):
                if former is None:
                    streams.pop(topic, None)
                else:
                    streams[topic] = former
            raise
        return len(entries)

    def rewind(self, session: int, topic: str, following: int) -> None:
        """Let a stream resume at `following`, before what was committed; on the disk on return.

        For a publisher that has gone back itself and uses the sequences from there on again.
        """
        known = self.cursor.sessions.get(session)
        if known is None or known.streams.get(topic, 0) <= following:
            return
        self._suspect = True
        known.streams[topic] = following
        self._replace()

    def sync(self) -> None:
        """Force what was written to the disk, if anything was not."""
        if self._suspect:
            self._replace()
        elif self.unsynced:
            self._suspect = True  # what an fsync that fails leaves is unknown
            self._store.sync()
            self._suspect, self.unsynced, self._durable = False, False, self._bytes

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def _write(self, entries: bytes) -> None:
        journal_bytes = self._bytes - self._snapshot_bytes + len(entries)
        limit = max(JOURNAL_BYTES_MAX, 4 * self._snapshot_bytes)
        full = len(self._numbers) > self._config.streams_max
        if full:
            self._drop(None)
        if self._suspect or full or journal_bytes > limit:
            self._replace()
            return
        record = encode_record(entries, self._durable)
        self._suspect = True
        self._store.append(record)
        self._bytes += len(record)
        self._suspect, self.unsynced = False, True

    def _replace(self) -> None:
        """Write the whole anew. It is on the disk on return, and the former one until then."""
        self._suspect = True
        data = encode_snapshot(self.cursor)
        self._store.replace(data)
        self._numbers = self.cursor.numbers()
        self._bytes = self._snapshot_bytes = self._durable = len(data)
        self._suspect = self.unsynced = False

    def _drop(self, keep: int | None) -> None:
        """Keep within the bounds: forget the sessions joined longest ago, but not `keep`."""
        sessions, config = self.cursor.sessions, self._config
        count = self.cursor.stream_count
        for session in list(sessions):
            if len(sessions) <= config.sessions_max and count <= config.streams_max:
                return
            if session != keep and len(sessions) > 1:
                dropped = len(sessions.pop(session).streams)
                count -= dropped
                self.streams_dropped += dropped
                self.sessions_dropped += 1
        for known in sessions.values():
            for topic in list(known.streams)[: max(0, count - config.streams_max)]:
                del known.streams[topic]
                count -= 1
                self.streams_dropped += 1
