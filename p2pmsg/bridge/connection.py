"""Says who is not there, or is not what it should be, at the other side of a plain socket."""

import time
from typing import ClassVar, Final, Protocol

from p2pmsg.trouble import Rarely
from transports import Endpoint, describe_peer
from transports.own_log import own_log as _log

FIRST_NS: Final = 2_000_000_000
"""So long a connection may take until a warning says who is there instead."""
_WHY: Final = "the peer sends parts above part_bytes_max, or does not speak ZeroMQ's protocol"
_GIVEN_UP: Final = f"ZeroMQ had given up the connection, and it was made again: {_WHY}"
_ENDED: Final = f"ZeroMQ ended a connection, whose peer makes another one: {_WHY}"
_NNG_ENDED: Final = (
    "a connection ended, and it is made again: the peer has gone, or it sent a message above "
    "part_bytes_max, which is lost; nng does not say which"
)
_LOOK_NS: Final = 100_000_000


class Connecting(Protocol):
    """A plain socket."""

    given_up: int
    says_why: ClassVar[bool]
    """Whether a connection that is given up is one whose peer sent what is not taken."""

    @property
    def refused_by_key(self) -> int:
        """How many connections were refused: an unknown key, or none."""

    @property
    def refusal(self) -> str:
        """Why the last connection was refused, with keys; "" where it was not."""

    @property
    def connected(self) -> bool:
        """Whether who is connected to is there; True where that is not known."""

    def look(self) -> None:
        """Check the connections; called a few times a second."""


class Connection:
    """Watches a plain socket.

    Args:
        socket: the socket.
        name: whose it is, for the log.
        endpoint: where it connects.
        binds: whether it binds.

    Attributes:
        found: what is at the endpoint, if nobody has answered there for 2 s, or why it refuses the
            connection; else "".

    """

    def __init__(self, socket: Connecting, name: str, endpoint: Endpoint, binds: bool) -> None:
        self.socket = socket
        self._name = name
        self._endpoint = endpoint
        self._binds = binds
        self._due_ns = 0
        self._away_ns = time.monotonic_ns()
        self._given_up = 0
        self._said = Rarely()
        self.found = ""

    def look(self) -> None:
        """Look whether somebody is there; called often."""
        now_ns = time.monotonic_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _LOOK_NS
        socket = self.socket
        socket.look()
        if refusal := socket.refusal:  # it was logged where it was noticed
            self._given_up, self.found = socket.given_up, refusal
            return
        if socket.given_up > self._given_up and self._said.is_due():
            self._given_up = socket.given_up
            by_zmq = _ENDED if self._binds else _GIVEN_UP
            text = by_zmq if socket.says_why else _NNG_ENDED
            _log.warning("%s: %s; %d times so far", self._name, text, socket.given_up)
        if socket.connected:
            self._away_ns, self.found = now_ns, ""
        elif not self.found and now_ns - self._away_ns >= FIRST_NS:
            self.found = describe_peer(self._endpoint)
            _log.warning("%s: nobody answers: %s", self._name, self.found)
