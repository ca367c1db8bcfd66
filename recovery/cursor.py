"""A subscriber's durable position: what it is, and how a file holds it.

::

    header: magic, version, length, CRC │ snapshot (JSON) │ record │ record │ …

A record has positions only. What must never be forgotten (which sessions were joined, and where) is
in the snapshot, which is replaced as a whole. So a torn or lost record costs duplicates and never a
message.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from recovery.checks import check_fields
from recovery.errors import RecoveryError

MAGIC: Final = b"p2cursor"
VERSION: Final = 1
_HEADER: Final = struct.Struct("!8sHHII")  # magic, version, zero, bytes of the snapshot, CRC
_RECORD: Final = struct.Struct("!IIQ")  # CRC of what follows, bytes of the entries, durable
_ENTRY: Final = struct.Struct("!QQH")  # session, next sequence, bytes of the topic after it
_SEQUENCE_MAX: Final = 2**63
JOURNAL_BYTES_MAX: Final = 8 * 2**20
"""Bytes of records until the file is written again: some 200,000 commits, read in half a second."""
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
    """The file. It and its folder are made where they are missing; a `.lock` file stays next to it,
    and a `.new` file may."""

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


def encode_snapshot(cursor: Cursor) -> bytes:
    """Return the beginning of a file that holds `cursor`."""
    sessions = [
        [f"{session:016x}", list(known.scope), list(known.streams.items())]
        for session, known in cursor.sessions.items()
    ]
    body = json.dumps({"endpoints": list(cursor.endpoints), "sessions": sessions}).encode()
    return _HEADER.pack(MAGIC, VERSION, 0, len(body), _snapshot_crc(len(body), body)) + body


def encode_entry(session: int, topic: str, following: int) -> bytes:
    """Return the position of a stream, as a record has it."""
    name = topic.encode()
    return _ENTRY.pack(session, following, len(name)) + name


def encode_record(entries: bytes, durable: int) -> bytes:
    """Return a record; the first `durable` bytes of the file are known to be on the disk."""
    rest = _RECORD.pack(0, len(entries), durable)[4:] + entries
    return zlib.crc32(rest).to_bytes(4, "big") + rest


def decode(data: bytes) -> tuple[Cursor, int, int]:
    """Return what a file holds, the length of its snapshot, and how much of the file is whole.

    What is after that is a torn end, as the crash of a process or of the operating system leaves.
    `RecoveryError` where it is no cursor, or damaged further in, in what was forced to the disk:
    nobody knows what else is wrong.
    """
    cursor, start = _decode_snapshot(data)
    at = start
    while at < len(data):
        entries = _record_at(data, at)
        if entries is None:
            _check_torn(data, at)
            break
        _apply(cursor, entries)
        at += _RECORD.size + len(entries)
    return cursor, start, at


def _snapshot_crc(length: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_HEADER.pack(MAGIC, VERSION, 0, length, 0)))


def _decode_snapshot(data: bytes) -> tuple[Cursor, int]:
    if data[: len(MAGIC)] != MAGIC:
        raise RecoveryError("it is empty" if not data else "it is not a cursor")
    if len(data) < _HEADER.size:
        raise RecoveryError("it is damaged: its header is cut short")
    _, version, zero, length, crc = _HEADER.unpack_from(data)
    if version != VERSION:
        raise RecoveryError(f"it is of version {version}; this p2pmsg reads {VERSION}")
    stop = _HEADER.size + length
    body = data[_HEADER.size : stop]
    if zero or len(body) != length or crc != _snapshot_crc(length, body):
        raise RecoveryError("it is damaged: its snapshot has another checksum")
    try:
        return _parse(json.loads(body)), stop
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecoveryError(f"its snapshot makes no sense: {error}") from error


def _parse(body: dict[str, Any]) -> Cursor:
    cursor = Cursor(endpoints=tuple(map(str, body["endpoints"])))
    for session, scope, streams in body["sessions"]:
        known = CursorSession(tuple(scope))
        for topic, following in streams:
            if type(topic) is not str or type(following) is not int:
                raise ValueError(f"a stream {topic!r} at {following!r}")
            if not 0 <= following <= _SEQUENCE_MAX:
                raise ValueError(f"sequence {following}")
            known.streams[topic] = following
        cursor.sessions[int(session, 16)] = known
    return cursor


def _record_at(data: bytes, at: int) -> bytes | None:
    """Return the entries of the record at `at`, or None where there is no whole one."""
    if at + _RECORD.size > len(data):
        return None
    crc, length, _ = _RECORD.unpack_from(data, at)
    stop = at + _RECORD.size + length
    if length < _ENTRY.size or stop > len(data):
        return None
    rest = memoryview(data)[at + 4 : stop]
    return data[at + _RECORD.size : stop] if zlib.crc32(rest) == crc else None


def _check_torn(data: bytes, at: int) -> None:
    """Raise unless what is wrong at `at` may be what a crash left."""
    for later in range(at + 1, len(data) - _RECORD.size - _ENTRY.size + 1):
        if _record_at(data, later) is not None and _RECORD.unpack_from(data, later)[2] > at:
            raise RecoveryError(f"it is damaged at byte {at}, in front of good records")


def _apply(cursor: Cursor, entries: bytes) -> None:
    at = 0
    try:
        while at < len(entries):
            session, following, length = _ENTRY.unpack_from(entries, at)
            at += _ENTRY.size + length
            topic = entries[at - length : at].decode()
            streams = cursor.sessions[session].streams
            streams[topic] = max(following, streams.get(topic, 0))
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise RecoveryError(f"a record of its makes no sense: {error!r}") from error


class CursorStore(Protocol):
    """One file that is appended to, or replaced as a whole."""

    @property
    def path(self) -> str:
        """Its name, for people."""

    def lock(self) -> None:
        """Keep others away until `close`, or the process's end; `RecoveryError`."""

    def read(self) -> bytes | None:
        """Return what it holds, or None where there is none."""

    def replace(self, data: bytes) -> None:
        """Write it again as a whole; on the disk on return, and the former one until then."""

    def sync_folder(self) -> None:
        """Force its name to the disk."""

    def append(self, data: bytes) -> None:
        """Append to it."""

    def sync(self) -> None:
        """Force what was appended to the disk."""

    def close(self) -> None:
        """Let go of it, and of the lock; it may be called again."""


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

    def __init__(self, store: CursorStore) -> None:
        """Lock the store and read it.

        Raises:
            RecoveryError: another subscriber has it, or it is no cursor, or damaged.
            OSError: from the store.

        """
        self._store = store
        self.commits = 0
        self.unsynced = False
        self.bytes_cut = self.sessions_dropped = self.streams_dropped = 0
        self._has_unconfirmed = False
        store.lock()
        try:
            data = store.read()
            if data is None:
                self.cursor = Cursor()
                self._replace()
                return
            store.sync_folder()  # the former process may have died between rename and this
            self.cursor, self._snapshot_bytes, self._bytes = decode(data)
            self._durable = self._snapshot_bytes
            self.bytes_cut = len(data) - self._bytes
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
        changed = former is None or self._has_unconfirmed
        if not (changed or new_scope or new_starts or new_places):
            cursor.sessions = {**others, session: known}  # it is the youngest now
            return False
        self._has_unconfirmed = True  # whatever comes from here on, the next write is of the whole
        if new_scope:
            known.scope = (known.scope + new_scope)[-max(_SCOPE_MAX, len(scope)) :]
        known.streams.update(new_starts)
        cursor.sessions = {**others, session: known}
        cursor.endpoints = (cursor.endpoints + new_places)[-_PLACES_MAX:]
        self._drop(session)
        self._replace()
        return True

    def advance(self, positions: Iterable[tuple[int, str, int]], *, durable: bool) -> int:
        """Commit: note the next sequence wanted of each (session, topic).

        With `durable` it is on the disk on return. A position never goes back, and a session that
        was not joined, or was forgotten, is left out. Returns how many streams advanced.
        """
        entries: list[bytes] = []
        is_whole, grows = self._has_unconfirmed, False
        self._has_unconfirmed = True  # until they are written
        for session, topic, following in positions:
            known = self.cursor.sessions.get(session)
            if known is not None and following > known.streams.get(topic, -1):
                grows |= topic not in known.streams
                known.streams[topic] = following
                entries.append(encode_entry(session, topic, following))
        if grows and self.cursor.stream_count > STREAMS_MAX:
            self._drop(None)
            is_whole = True
        if is_whole:
            self._replace()
        elif entries:
            self._write(b"".join(entries))
        self._has_unconfirmed = False
        self.commits += bool(entries)
        if durable:
            self.sync()
        return len(entries)

    def rewind(self, session: int, topic: str, following: int) -> None:
        """Let a stream resume at `following`, before what was committed; on the disk on return.

        For a publisher that has gone back itself and uses the sequences from there on again.
        """
        known = self.cursor.sessions.get(session)
        if known is None or known.streams.get(topic, 0) <= following:
            return
        self._has_unconfirmed = True
        known.streams[topic] = following
        self._replace()

    def sync(self) -> None:
        """Force what was written to the disk, if anything was not."""
        if self._has_unconfirmed:
            self._replace()
        elif self.unsynced:
            self._has_unconfirmed = True  # what an fsync that fails leaves is unknown
            self._store.sync()
            self._has_unconfirmed, self.unsynced, self._durable = False, False, self._bytes

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def _write(self, entries: bytes) -> None:
        journal_bytes = self._bytes - self._snapshot_bytes + len(entries)
        if journal_bytes > max(JOURNAL_BYTES_MAX, 4 * self._snapshot_bytes):
            self._replace()
            return
        record = encode_record(entries, self._durable)
        self._store.append(record)
        self._bytes += len(record)
        self.unsynced = True

    def _replace(self) -> None:
        """Write the whole again. It is on the disk on return, and the former one until then."""
        self._has_unconfirmed = True
        data = encode_snapshot(self.cursor)
        self._store.replace(data)
        self._bytes = self._snapshot_bytes = self._durable = len(data)
        self._has_unconfirmed = self.unsynced = False

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
