"""Checks the handshakes of connections that were made with keys."""

from collections.abc import Iterable
from typing import Final

import transports
from p2pmsg.errors import AuthenticationError

EVERY_NS: Final = 50_000_000
"""How often they are checked."""
Connecting = transports.ZmqReceiver | transports.ZmqRecoveryClient


class KeyWatch:
    """Keeps what is to be raised of refused connections, once for each refusal.

    Attributes:
        refused: what to raise where nothing else is to be returned; None: nothing.

    """

    def __init__(self) -> None:
        self.refused: AuthenticationError | None = None
        self._due_ns = 0

    def look(self, clients: Iterable[Connecting], now_ns: int) -> None:
        """Check the handshakes, and make connections again that were refused, when that is due."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + EVERY_NS
        for client in clients:
            if client.look():
                self.refused = AuthenticationError(client.endpoint, client.refusal)
            elif not client.refusal and self.refused and self.refused.endpoint == client.endpoint:
                self.refused = None  # it is connected meanwhile

    def note(self, closed: Iterable[tuple[str, str]]) -> None:
        """Note endpoints that need keys, where there are none; see `Unanswered.take_closed`."""
        for place, found in closed:
            self.refused = AuthenticationError(place, found)

    def raise_refused(self) -> None:
        """Raise `AuthenticationError` where a connection was refused since the last call."""
        refused, self.refused = self.refused, None
        if refused is not None:
            raise refused
