"""What a metrics client gathers, and what of it is on its way. No I/O."""

from collections import deque
from itertools import islice
from typing import Any, NamedTuple

from p2pmsg.metrics.deltas import Deltas

Change = tuple[str, str, Any]
"""Kind, key and value; see `Deltas.add`."""


class _State(NamedTuple):
    """Replaced as a whole, so that an exception leaves the one before or the one after."""

    leaving: Deltas | None
    """What is being sent; the sink may have accepted it."""

    deltas: Deltas
    """What leaves next."""

    waiting: list[Change]
    """Changes that are not added up yet."""

    counted: int
    """The sink's next sequence when the last message had been sent."""

    sent: int = 0
    lost: int = 0


class Gathering:
    """Adds changes up to messages, and says which of them was accepted.

    Args:
        bytes_max: how large a message may be, in bytes.
        following: the sink's next sequence.

    Attributes:
        changes: what programs append to, from any thread; it is taken from here.

    """

    def __init__(self, bytes_max: int, following: int) -> None:
        self.changes: deque[Change] = deque()
        self._bytes_max = bytes_max
        self._state = _State(None, Deltas(bytes_max), [], following)

    @property
    def sent(self) -> int:
        """How many messages were accepted."""
        return self._state.sent

    @property
    def lost(self) -> int:
        """How many could not be sent."""
        return self._state.lost

    def take(self) -> None:
        """Take the changes that there are now; it is one step, which no signal's handler breaks."""
        changes = self.changes
        self._state.waiting.extend(islice(iter(changes.popleft, None), len(changes)))

    def add_up(self) -> bool:
        """Add up what was taken; return whether not all of it fits into the next message."""
        state = self._state
        if not state.waiting:
            return False
        deltas, rest = state.deltas.copy(), []
        for at, change in enumerate(state.waiting):
            if not deltas.add(*change):
                rest = state.waiting[at:]
                break
        self._state = state._replace(deltas=deltas, waiting=rest)
        return bool(rest)

    def begin(self) -> Deltas | None:
        """Return the message to send now, the same one until `settle` says what became of it."""
        state = self._state
        if state.leaving is None and state.deltas:
            fresh = Deltas(self._bytes_max)
            self._state = state._replace(leaving=state.deltas, deltas=fresh)
        return self._state.leaving

    def settle(self, following: int, *, has_failed: bool = False) -> None:
        """Take the sink's next sequence: where it is another one, the message was accepted.

        Where it is not, and sending `has_failed`, the message is lost.
        """
        state = self._state
        accepted = following > state.counted
        if state.leaving is not None and (accepted or has_failed):
            self._state = state._replace(
                leaving=None,
                counted=following,
                sent=state.sent + accepted,
                lost=state.lost + (not accepted),
            )
