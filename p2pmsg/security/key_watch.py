"""Checks the handshakes of connections that were made with keys, and what is denied over them."""

from collections.abc import Iterable
from typing import Final

from p2pmsg.errors import AccessDeniedError, AuthenticationError
from transports.base import ConnectingSocket
from transports.own_log import own_log as _log

EVERY_NS: Final = 50_000_000
"""How often they are checked."""
_DENIED_MAX: Final = 64


class KeyWatch:
    """Keeps what is to be raised of refused connections, once for each refusal.

    Attributes:
        refused: what to raise where nothing else is to be returned; None: nothing.
        denied: the same of what is denied, oldest first.

    """

    def __init__(self) -> None:
        self.refused: AuthenticationError | None = None
        self.denied: list[AccessDeniedError] = []
        self._logged: dict[str, str] = {}
        self._due_ns = 0

    def check(self, clients: Iterable[ConnectingSocket], now_ns: int) -> None:
        """Check the handshakes, and make connections again that were refused, when that is due."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + EVERY_NS
        for client in clients:
            if client.check():
                self.refused = AuthenticationError(client.endpoint, client.refusal)
            elif not client.refusal and self.refused and self.refused.endpoint == client.endpoint:
                self.refused = None  # it is connected meanwhile

    def note(self, closed: Iterable[tuple[str, str]]) -> None:
        """Note endpoints that need keys, where there are none; see `Unanswered.take_closed`."""
        for place, found in closed:
            self.refused = AuthenticationError(place, found)

    def _deny(self, place: str, error: AccessDeniedError) -> None:
        """Have it raised; where it is new, it is logged as well."""
        if len(self.denied) < _DENIED_MAX:
            self.denied.append(error)
        if self._logged.get(place) != str(error):
            self._logged[place] = str(error)
            _log.warning("%s: %s; it is tried again", place, error)

    def on_access(self, place: str, denied: AccessDeniedError | None, *, allowed: bool) -> None:
        """Have raised what is denied at an endpoint, or note that nothing is any more."""
        if denied is not None:
            self._deny(place, denied)
        elif allowed and self._logged.pop(place, None) is not None:
            _log.warning("%s: what was denied is allowed now", place)

    @property
    def has_error(self) -> bool:
        """Whether `raise_refused` would raise."""
        return self.refused is not None or bool(self.denied)

    def raise_refused(self) -> None:
        """Raise what was refused, or denied, since the last call.

        `AuthenticationError` where a connection was, `AccessDeniedError` where a right is lacking.
        """
        if self.denied:
            raise self.denied.pop(0)
        refused, self.refused = self.refused, None
        if refused is not None:
            raise refused
