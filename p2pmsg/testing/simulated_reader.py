"""A simulated application: it takes its messages in all the ways in which users take them."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from p2pmsg.message import Message, MessageBatch
from p2pmsg.peers.subscriber import MANY, SubscriberPeer
from p2pmsg.subscriber.conflation import batch_of
from p2pmsg.testing.interrupts import Interrupted, interrupted

_FEW_MAX: Final = 3
_CALLS_MAX: Final = 60
_STOPS: Final = 0.95
"""How often it waits where nothing is there that it knows of; else it looks for more first."""


class SimulatedReader:
    """Reads as `receive`, `receive_many` and a loop do in turn.

    Some of its calls are interrupted, as by Ctrl-C: what they did not return comes again.

    Args:
        face: what it calls.
        peer: of the face.
        rng: chooses how each message is taken.
        deliver: gets what comes.
        interrupts: part of the calls that are interrupted.

    """

    def __init__(
        self,
        face: Any,
        peer: SubscriberPeer,
        rng: Random,
        deliver: Callable[[MessageBatch], object],
        *,
        interrupts: float,
    ) -> None:
        self._face = face
        self._peer = peer
        self._rng = rng
        self._deliver = deliver
        self._interrupts = interrupts

    @property
    def left(self) -> int:
        """How many messages were taken, and not returned to the application yet."""
        return self._peer.reading.left

    def waits(self) -> bool:
        """Whether it waits for the next message; else it looks for it a little later."""
        return self._rng.random() < 0.9

    def count_max(self) -> int:
        """Return how many messages it takes at a time."""
        rng = self._rng
        return MANY if rng.random() < 0.5 else 1 + int(rng.random() * _FEW_MAX)

    def read(self) -> bool:
        """Make one call; return whether there may be more."""
        rng, peer = self._rng, self._peer
        if not (peer.reading.left or peer.core.ready.entries) and rng.random() < _STOPS:
            return False
        call: Callable[[], Message | MessageBatch] = partial(self._face.receive, 0.0)
        if rng.random() < 0.5:
            call = partial(self._face.receive_many, self.count_max(), 0.0)
        try:
            if rng.random() < self._interrupts:
                taken = interrupted(call, int(rng.random() * _CALLS_MAX))
            else:
                taken = call()
        except TimeoutError:
            return False
        except Interrupted:
            return True
        self._deliver(batch_of(taken) if isinstance(taken, Message) else taken)
        return True
