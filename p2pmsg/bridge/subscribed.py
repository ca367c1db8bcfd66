"""Decides whether a message may go to a plain PUB, which drops what nobody subscribes to."""

from enum import Enum
from typing import Final

SETTLE_NS: Final = 250_000_000
"""So long further subscribers are waited for, once the first is there: who lost its connection, as
when a bridge is restarted, tries again after 0.1 to 0.2 s, by the defaults of ZeroMQ and nng."""


class Verdict(Enum):
    """What to do with a message."""

    SEND = "send"
    WAIT = "wait"
    NOBODY = "nobody"


class FirstSubscriber:
    """Waits for a subscriber where there is none: at the start, and when all have left.

    Args:
        patience_ns: how long to wait, each time there is none. With 0 nothing is waited for.
        now_ns: when the socket was opened.

    """

    def __init__(self, patience_ns: int, *, now_ns: int) -> None:
        self._patience_ns = patience_ns
        self._settle_ns = min(SETTLE_NS, patience_ns)
        self._opened_ns = now_ns
        self._until_ns: int | None = None
        self._settled_ns: int | None = None
        self._is_sending = self._gave_up = False

    def look(self, is_there: bool, *, now_ns: int) -> Verdict:
        """Return what to do with a message that is to be sent now.

        Args:
            is_there: whether anybody has subscribed.
            now_ns: monotonic, in ns.

        """
        if is_there:
            return self._found(now_ns)
        self._is_sending = False
        self._settled_ns = None
        if self._until_ns is None:
            self._until_ns = now_ns + self._patience_ns
        self._gave_up = self._gave_up or now_ns >= self._until_ns
        return Verdict.NOBODY if self._gave_up else Verdict.WAIT

    def _found(self, now_ns: int) -> Verdict:
        if not self._is_sending and not self._gave_up:
            if self._settled_ns is None:  # it may have been there for long, if nothing was sent
                since_ns = self._opened_ns if self._until_ns is None else now_ns
                self._settled_ns = since_ns + self._settle_ns
            if now_ns < self._settled_ns:
                return Verdict.WAIT
        self._is_sending, self._gave_up = True, False
        self._until_ns = self._settled_ns = None
        return Verdict.SEND
