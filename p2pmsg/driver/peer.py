"""What a driver drives: a peer, which joins an engine to its sockets."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import ClassVar, Final

from p2pmsg.checks import at_least
from p2pmsg.driver.lifecycle import INHERITED
from p2pmsg.driver.verbs import Verb
from p2pmsg.errors import ClosedError
from recovery.checks import to_ns

CLOSED: Final = "it is closed"


class Peer(ABC):
    """Sockets, engine and verbs of one peer: without a lock, a thread or a loop; it never waits.

    A driver calls each of these inside of the peer's section, one at a time; `abandon` excepted, at
    which nobody else is there. The verbs, which the peer adds, are generators that yield `Wait` or
    `Blocking` where they may wait; they too run inside, except for what they yield.

    Attributes:
        kind: for errors: "publisher".
        name: for errors and the log: "the publisher 'prices'".
        thread_name: of its thread: "p2pmsg-publisher"; "" where nothing goes on while no call
            waits, so that it needs none.
        now_ns: its clock, monotonic, in ns; another one on a network in memory.
        places: where it is bound, or connects to, for people.
        closed_why: why it cannot be used any more; "" while it can.

    """

    kind: ClassVar[str] = "peer"
    name: str
    places: str
    thread_name: ClassVar[str]
    now_ns: Callable[[], int] = staticmethod(time.monotonic_ns)
    closed_why = ""

    @property
    def is_closed(self) -> bool:
        """Whether it cannot be used any more."""
        return bool(self.closed_why)

    def check_open(self) -> None:
        """Raise `ClosedError` where it cannot be used any more."""
        if self.closed_why:
            raise ClosedError(f"the {self.kind}", self.closed_why)

    def deadline_ns(self, timeout: float | None) -> int | None:
        """Return when so many seconds will have passed; None: never. `ConfigError` for no time."""
        if timeout is None:
            return None
        at_least("timeout", timeout, 0)
        return self.now_ns() + to_ns(timeout)

    @abstractmethod
    def turn(self, now_ns: int) -> None:
        """Do one round: take what has come, do what is due, send what there is space for.

        A round takes at most 2 ms in an event loop, since other tasks wait meanwhile; where more is
        left, `next_deadline_ns` says so.
        """

    @abstractmethod
    def fds(self) -> Collection[int]:
        """Return the descriptors that become readable when a turn is worth it.

        The same object as long as they are the same. ZeroMQ's descriptors signal a change once: a
        peer whose turn leaves something there returns a deadline that has passed.
        """

    @abstractmethod
    def next_deadline_ns(self) -> int:
        """Return when the next turn is due at the latest, of the monotonic clock."""

    @abstractmethod
    def resync(self) -> None:
        """Put the engine right after an exception that came somewhere in it.

        A publisher cuts its open batches back to the last message that is whole in them, the one of
        the call that was interrupted perhaps; who receives
        drops what it was taking, and asks again; who sends or takes jobs says again what it has.
        """

    def upkeep(self) -> Verb[None] | None:
        """Return what goes on next to the turns, without end: waits for what a disk has to do.

        Default: nothing.
        """
        return None

    @abstractmethod
    def shut(self) -> None:
        """Close the sockets at once, and what else it has; it may be called again."""

    def abandon(self) -> None:
        """In a forked child: all is the parent's, and each later use raises `ClosedError`."""
        self.closed_why = INHERITED
