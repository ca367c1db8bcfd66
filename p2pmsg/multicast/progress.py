"""How far a subscriber has come in what its publishers sent, as their marks count it."""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from recovery import StreamReceiver

WAITING_MAX: Final = 64
"""Marks of a session with gaps before them that are remembered; the oldest go first."""
SESSIONS_MAX: Final = 4096

_Mark = tuple[int, list[tuple[StreamReceiver[Any], int]]]
"""A mark's position, and up to where each stream that missed something is to get."""


class ProgressMarks:
    """Remembers which marks were read, and which of them have no gap before them."""

    def __init__(self) -> None:
        self._places: dict[int, tuple[int, int]] = {}
        self._marks: dict[int, deque[_Mark]] = {}

    @property
    def waiting(self) -> bool:
        """Whether any mark has a gap before it."""
        return bool(self._marks)

    def note(self, session: int, position: int, gaps: Sequence[StreamReceiver[Any]]) -> None:
        """Note that a mark was read, while these streams of its session missed something."""
        if session not in self._places and len(self._places) >= SESSIONS_MAX:
            self.forget(next(iter(self._places)))
        complete = self._places.get(session, (0, 0))[1]
        read = position  # of this one: a false one must not stand for those that follow
        if not gaps:
            complete = read
            self._marks.pop(session, None)
        else:
            marks = self._marks.setdefault(session, deque(maxlen=WAITING_MAX))
            marks.append((position, [(receiver, receiver.head) for receiver in gaps]))
        self._places[session] = read, min(read, complete)

    def forget(self, session: int) -> None:
        """Forget a session's marks: its publisher was started again, and counts from 0."""
        self._places.pop(session, None)
        self._marks.pop(session, None)

    def completed(self) -> list[int]:
        """Return the sessions of which more is complete than before."""
        found: list[int] = []
        for session, marks in list(self._marks.items()):
            done = -1
            while marks and all(
                receiver.expected >= head or not receiver.missing for receiver, head in marks[0][1]
            ):
                done = marks.popleft()[0]
            if not marks:
                del self._marks[session]
            if done >= 0:
                read, _ = self._places[session]
                self._places[session] = read, min(read, done)
                found.append(session)
        return found

    def place(self, session: int) -> tuple[int, int]:
        """Return (the last mark read, the last one without a gap before it)."""
        return self._places.get(session, (0, 0))
