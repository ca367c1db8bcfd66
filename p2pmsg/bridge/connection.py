"""Says who is not there, or is not what it should be, at the other side of a plain socket."""

import time
from typing import Final

from p2pmsg.plain import Endpoint, PlainSocket, describe_peer
from p2pmsg.toolkit import Rarely
from p2pmsg.toolkit import own_log as _log

FIRST_NS: Final = 2_000_000_000
"""So long a connection may take until a warning says who is there instead."""
_ENDED: Final = (
    "a connection ended, and it is made again: the peer has gone, sent a part above "
    "part_bytes_max, which is lost, or speaks another protocol"
)
_LOOK_NS: Final = 100_000_000


class Connection:
    """Watches a plain socket.

    Args:
        socket: the socket.
        name: whose it is, for the log.
        endpoint: where it connects.

    Attributes:
        found: what is at the endpoint, if nobody has answered there for 2 s, or why it refuses the
            connection; else "".

    """

    def __init__(self, socket: PlainSocket, name: str, endpoint: Endpoint) -> None:
        self.socket = socket
        self._name = name
        self._endpoint = endpoint
        self._due_ns = 0
        self._away_ns = time.monotonic_ns()
        self._given_up = 0
        self._logged = Rarely()
        self.found = ""

    def check(self) -> None:
        """Look whether somebody is there; called often."""
        now_ns = time.monotonic_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _LOOK_NS
        socket = self.socket
        socket.check()
        if refusal := socket.refusal:  # it was logged where it was noticed
            self._given_up, self.found = socket.given_up, refusal
            return
        if socket.given_up > self._given_up and self._logged.is_due():
            self._given_up = socket.given_up
            _log.warning("%s: %s; %d times so far", self._name, _ENDED, socket.given_up)
        if socket.connected:
            self._away_ns, self.found = now_ns, ""
        elif not self.found and now_ns - self._away_ns >= FIRST_NS:
            self.found = describe_peer(self._endpoint)
            _log.warning("%s: nobody answers: %s", self._name, self.found)
