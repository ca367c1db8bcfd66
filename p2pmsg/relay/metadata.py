"""What a relay keeps next to its log: who published its sessions, their heads and losses.

The log has frames only. Without this a relay that was restarted could serve them, but would not
know whose they are, why something is missing, nor that its log has lost its end. It is written
again, whole, when it changes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

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
"""Ranges that are remembered, over all streams; the oldest are forgotten first."""

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
        errors: how often it could not be written; it is tried again.

    Raises:
        RecoveryError: what is in it makes no sense.
        OSError: it cannot be read.

    """

    def __init__(self, file: "Store") -> None:
        self._file = file
        self._is_closed = False
        self._changed = True  # even one that knows nothing says whose the log is
        self._moved = False
        self._due_ns = 0
        self.errors = 0
        consequence = "a relay that is restarted meanwhile does not know all names and losses"
        self._trouble = Trouble(f"{file.path} cannot be written", consequence)
        try:
            self._sessions = {
                int(session, 16): (str(name), int(hops))
                for session, name, hops in file.rows("SELECT * FROM session")
            }
            self._losses = [
                (int(session, 16), str(topic), Loss(int(start), int(stop), LossReason(reason)))
                for _, session, topic, start, stop, reason in file.rows("SELECT * FROM loss")
            ]
            self._heads = {
                (int(session, 16), str(topic)): int(head)
                for session, topic, head in file.rows("SELECT * FROM head")
            }
        except (ValueError, TypeError) as error:
            raise RecoveryError(f"what is in it makes no sense: {error}") from error

    def session(self, session: int) -> tuple[str, int]:
        """Return a session's name and hops."""
        return self._sessions.get(session, ("", 1))

    def losses(self, session: int, topic: str) -> list[Loss]:
        """Return what is known to be lost of a stream, in order."""
        found = [loss for its, name, loss in self._losses if (its, name) == (session, topic)]
        return sorted(found, key=lambda loss: loss.start)

    def head(self, session: int, topic: str) -> int:
        """Return up to where a stream came, or is lost, at least; 0 where that is not known."""
        return self._heads.get((session, topic), 0)

    def on_head(self, session: int, topic: str, following: int) -> None:
        """Note that all of a stream before `following` came, or is lost."""
        self._heads[session, topic] = following
        self._moved = True

    def on_session(self, session: int, name: str, hops: int) -> None:
        """Note who published a session."""
        if self._sessions.get(session) != (name, hops):
            self._sessions[session] = (name, hops)
            self._changed = True

    def on_loss(self, session: int, topic: str, loss: Loss) -> None:
        """Note that a range was lost."""
        self._losses.append((session, topic, loss))
        del self._losses[:-LOSSES_MAX]
        self._changed = True

    def forget_session(self, session: int) -> None:
        """Forget a session."""
        if self._sessions.pop(session, None) is not None:
            self._losses = [entry for entry in self._losses if entry[0] != session]
            self._heads = {key: head for key, head in self._heads.items() if key[0] != session}
            self._changed = True

    def write(self, *, now_ns: int | None = None) -> None:
        """Write what has changed, if it was not just written; None: write it in any case.

        An error is counted, and it is tried again.
        """
        content = self.take(now_ns=now_ns)
        if content is not None:
            self.store(content)

    def is_due(self, *, now_ns: int) -> bool:
        """Whether `take` has something."""
        return (self._changed or self._moved) and now_ns >= self._due_ns

    def take(self, *, now_ns: int | None = None) -> Content | None:
        """Return what `write` would write now, or None; `store` it."""
        is_new = self._changed or self._moved
        if not is_new or (now_ns is not None and now_ns < self._due_ns):
            return None
        sessions = [(f"{session:016x}", *known) for session, known in self._sessions.items()]
        heads = [(f"{session:016x}", *rest, at) for (session, *rest), at in self._heads.items()]
        losses = [
            (None, f"{session:016x}", topic, loss.start, loss.stop, loss.reason.value)
            for session, topic, loss in self._losses
        ]
        row_count = len(sessions) + len(heads) + len(losses)
        self._due_ns = 0 if now_ns is None else now_ns + WRITE_NS + _ROW_NS * row_count
        # After a crash of the system older heads say less, and nothing false.
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
            self.errors += 1
            self._trouble.note(error)
        else:
            self._trouble.over()
        finally:
            self._changed |= not written  # Ctrl-C may have come

    def close(self) -> None:
        """Write what has changed, and close the file."""
        self.write()
        self._is_closed = True
        self._file.close()
