"""What a relay keeps next to its log: who published its sessions, their heads and losses.

The log has frames only. Without this a relay that was restarted could serve them, but would not
know whose they are, why something is missing, nor that its log has lost its end. It is written
again, whole, when it changes.
"""

import json
from typing import TYPE_CHECKING, Any, Final

from p2pmsg.trouble import Trouble
from recovery import Loss, LossReason

if TYPE_CHECKING:
    from recovery.log import LogStore

NAME: Final = "relay.json"
VERSION: Final = 1
LOSSES_MAX: Final = 4096
"""Ranges that are remembered, over all streams; the oldest are forgotten first."""

WRITE_NS: Final = 200_000_000
"""It is written at most so often, and more rarely where it is large: see `_BYTE_NS`."""
_BYTE_NS: Final = 200
"""How much longer that is for each byte: twenty times as long as writing takes."""


class RelayMetadata:
    """The file next to a relay's log, in its store; not thread-safe.

    Attributes:
        is_damaged: whether there was a file that could not be read; it is begun again.
        errors: how often it could not be written; it is tried again.

    """

    def __init__(self, store: "LogStore") -> None:
        self._store = store
        self._sessions: dict[int, tuple[str, int]] = {}
        self._losses: list[tuple[int, str, Loss]] = []
        self._heads: dict[tuple[int, str], int] = {}
        self._changed = True  # even one that knows nothing says whose the log is
        self._moved = False
        self._due_ns = 0
        self._is_durable = True
        self.is_damaged = False
        self.errors = 0
        consequence = "a relay that is restarted meanwhile does not know all names and losses"
        self._trouble = Trouble(store.path(NAME), consequence)
        data = store.read(NAME)
        if data is not None:
            try:
                self._load(json.loads(data))
                self._changed = False
            except (ValueError, TypeError, LookupError, AttributeError):
                self.is_damaged = True

    def _load(self, content: Any) -> None:
        if content["version"] != VERSION:
            raise ValueError(content["version"])
        sessions = {int(key, 16): (str(a), int(b)) for key, (a, b) in content["sessions"].items()}
        losses = [
            (int(session, 16), str(topic), Loss(int(start), int(stop), LossReason(reason)))
            for session, topic, start, stop, reason in content["losses"]
        ]
        heads = {(int(s, 16), str(topic)): int(head) for s, topic, head in content["heads"]}
        self._sessions, self._losses, self._heads = sessions, losses, heads

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

    def take(self, *, now_ns: int | None = None) -> bytes | None:
        """Return what `write` would write now, or None; `store` it."""
        is_new = self._changed or self._moved
        if not is_new or (now_ns is not None and now_ns < self._due_ns):
            return None
        content = {
            "version": VERSION,
            "sessions": {f"{key:016x}": list(known) for key, known in self._sessions.items()},
            "losses": [
                [f"{session:016x}", topic, loss.start, loss.stop, loss.reason.value]
                for session, topic, loss in self._losses
            ],
            "heads": [[f"{s:016x}", topic, head] for (s, topic), head in self._heads.items()],
        }
        data = json.dumps(content).encode()
        self._due_ns = 0 if now_ns is None else now_ns + WRITE_NS + _BYTE_NS * len(data)
        self._is_durable, self._changed, self._moved = self._changed, False, False
        return data

    def store(self, content: bytes) -> None:
        """Write what `take` returned; it waits for the disk, and any thread may call it."""
        written = False
        try:
            # After a crash of the system older heads say less, and nothing false.
            self._store.replace(NAME, content, durable=self._is_durable)
            written = True
        except OSError as error:
            self.errors += 1
            what = f"it cannot be written: {error.strerror or error}"
            self._trouble.note(what, now_ns=self._due_ns)
        else:
            self._trouble.over()
        finally:
            self._changed |= not written  # Ctrl-C may have come
