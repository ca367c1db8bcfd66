"""What a relay keeps next to its log: who published its sessions, their heads and losses.

The log has frames only. Without this a relay that was restarted could serve them, but would not
know whose they are, why something is missing, nor that its log has lost its end. It is written
again, whole, when that changes.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from p2pmsg.relay.session import RelayedSession
from recovery import Loss, LossReason, RecoveryError
from transports.trouble import Trouble

if TYPE_CHECKING:
    from recovery.store import Row, Store

NAME: Final = "relay.sqlite"
TABLES: Final = """
CREATE TABLE session (
    session TEXT PRIMARY KEY, name TEXT NOT NULL, hops INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE head (
    session TEXT, topic TEXT, next INTEGER NOT NULL, PRIMARY KEY (session, topic)) WITHOUT ROWID;
CREATE TABLE loss (
    number INTEGER PRIMARY KEY, session TEXT NOT NULL, topic TEXT NOT NULL, start INTEGER NOT NULL,
    stop INTEGER NOT NULL, reason TEXT NOT NULL);
"""
"""Sessions are in hexadecimal."""
LOSSES_MAX: Final = 4096
"""Ranges that are written, over all streams."""

WRITE_NS: Final = 200_000_000
"""It is written at most so often, and more rarely where there is much: see `_ROW_NS`."""
_ROW_NS: Final = 40_000
"""How much longer that is for each row: twenty times as long as writing takes."""


class Content(NamedTuple):
    """What is to be written."""

    changes: "Sequence[tuple[str, Sequence[Row]]]"
    is_durable: bool


class RelayMetadata:
    """The file next to a relay's log; not thread-safe.

    Args:
        file: the open file, which it closes.

    Attributes:
        sessions, heads: what was in it: names and hops by session, and by session and topic up to
            where a stream came, or is lost, at least.
        losses: by session and topic, losses of former incarnations, in order.

    Raises:
        RecoveryError: what is in it makes no sense.
        OSError: it cannot be read.

    """

    def __init__(self, file: "Store") -> None:
        self._file = file
        self._is_closed = False
        self._changed = self._moved = False
        self._due_ns = 0
        consequence = "a relay that is restarted meanwhile does not know all names and losses"
        self._trouble = Trouble(f"{file.path} cannot be written", consequence)
        self.losses: dict[tuple[int, str], list[Loss]] = {}
        try:
            self.sessions = {
                int(session, 16): (str(name), int(hops))
                for session, name, hops in file.rows("SELECT * FROM session")
            }
            for session, topic, start, stop, reason in file.rows(
                "SELECT session, topic, start, stop, reason FROM loss ORDER BY start"
            ):
                loss = Loss(int(start), int(stop), LossReason(reason))
                self.losses.setdefault((int(session, 16), str(topic)), []).append(loss)
            self.heads = {
                (int(session, 16), str(topic)): int(head)
                for session, topic, head in file.rows("SELECT * FROM head")
            }
        except (ValueError, TypeError) as error:
            raise RecoveryError(f"what is in it makes no sense: {error}") from error

    def on_move(self) -> None:
        """Note that a stream came further; after a crash of the system less of that is known."""
        self._moved = True

    def on_change(self) -> None:
        """Note that there are other sessions, or losses."""
        self._changed = True

    def is_due(self, *, now_ns: int) -> bool:
        """Whether what has changed is to be written."""
        return (self._changed or self._moved) and now_ns >= self._due_ns

    def take(self, served: Iterable[RelayedSession], *, now_ns: int) -> Content:
        """Return what is to be written of these sessions; `store` it."""
        sessions, heads, losses = [], [], []
        for one in served:
            session = f"{one.session:016x}"
            sessions.append((session, one.name, one.hops))
            for topic, stream in one.streams.items():
                heads.append((session, topic, stream.end))
                losses += [
                    (None, session, topic, loss.start, loss.stop, loss.reason.value)
                    for loss in stream.losses
                ]
        del losses[:-LOSSES_MAX]
        row_count = len(sessions) + len(heads) + len(losses)
        self._due_ns = now_ns + WRITE_NS + _ROW_NS * row_count
        is_durable, self._changed, self._moved = self._changed, False, False
        changes: list[tuple[str, Sequence[Row]]] = [
            *((f"DELETE FROM {table}", [()]) for table in ("session", "head", "loss")),
            ("INSERT INTO session VALUES (?, ?, ?)", sessions),
            ("INSERT INTO head VALUES (?, ?, ?)", heads),
            ("INSERT INTO loss VALUES (?, ?, ?, ?, ?, ?)", losses),
        ]
        return Content(changes, is_durable)

    def store(self, content: Content) -> None:
        """Write what `take` returned; any thread may call it, one at a time.

        Nothing once it is closed: `close` has written what is newer.
        """
        if self._is_closed:
            return
        written = False
        try:
            self._file.write(*content.changes, durable=content.is_durable)
            written = True
        except OSError as error:
            self._trouble.note(error)
        else:
            self._trouble.over()
        finally:
            self._changed |= not written  # Ctrl-C may have come

    def close(self, served: Iterable[RelayedSession]) -> None:
        """Write what has changed, and close the file."""
        if self._changed or self._moved:
            self.store(self.take(served, now_ns=self._due_ns))
        self._is_closed = True
        self._file.close()
