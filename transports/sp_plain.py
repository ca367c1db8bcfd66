"""nanomsg's and nng's sockets by pynng, all but bus and pair; a message is one part."""

from typing import Any, Final

import pynng

from transports.endpoint import Endpoint
from transports.errors import AddressError, ClosedError, EndpointError, TransportError

_KINDS: Final = {
    "sub": pynng.Sub0, "pub": pynng.Pub0, "pull": pynng.Pull0, "push": pynng.Push0,
    "req": pynng.Req0, "rep": pynng.Rep0, "surveyor": pynng.Surveyor0,
    "respondent": pynng.Respondent0,
}  # fmt: skip
BUFFER_MESSAGES_MAX: Final = 8192
"""nng's own limit for its queues."""
_SEND_MS: Final = 100
_BYTES_MAX: Final = 4 * 2**20
Parts = bytes | list[bytes]


class SpPlainSocket:
    """A socket of the Scalability Protocols; it has the calls of `ZmqPlainSocket`.

    Args:
        kind: `sub`, `pub`, `pull`, `push`, `req`, `rep`, `surveyor` or `respondent`.
        endpoint: where it listens or dials: tcp or ipc.
        binds: whether it listens.
        queue_messages: how many messages its queue holds; at most 8,192 of them.
        message_bytes_max: the largest message; nng ends the connection of a peer that sends a
            larger one, and dials again.
        survey_ms: of a surveyor: how long answers are taken after `send`.

    Attributes:
        given_up: how often a connection ended that it had dialled. nng says to nobody why: the
            peer has gone, or sent a message above `message_bytes_max`. 0 where it listens, for
            there peers come and go. nng dials again by itself.
        refused_by_key: always 0: nng has no keys.

    Raises:
        EndpointError: the endpoint is not one of nng's.
        AddressError: it could not be bound.

    """

    def __init__(
        self,
        kind: str,
        endpoint: Endpoint,
        *,
        binds: bool,
        queue_messages: int,
        message_bytes_max: int,
        survey_ms: int = 1000,
    ) -> None:
        if endpoint.is_abstract:
            raise EndpointError(str(endpoint), "path", "nng has no such path here: an abstract one")
        self._endpoint = endpoint if binds else endpoint.require_connectable()
        self._binds = binds
        self._ahead: list[bytes] = []
        self.given_up = self.refused_by_key = 0
        self._closing = False
        size = min(queue_messages, BUFFER_MESSAGES_MAX)
        options = {"recv_max_size": message_bytes_max, "send_timeout": _SEND_MS}
        if kind in ("sub", "pull"):
            options["recv_buffer_size"] = size
        elif kind == "pub":
            options["send_buffer_size"] = size
        elif kind == "surveyor":
            options["survey_time"] = survey_ms
        self.socket: Any = _KINDS[kind](**options)
        if binds:
            self._listen()
        else:
            self.socket.add_post_pipe_remove_cb(self._ended)

    def _ended(self, _: Any) -> None:
        """Count the end of a connection; nng calls it in a thread of its own."""
        if not self._closing:
            self.given_up += 1

    @property
    def endpoint(self) -> str:
        """The endpoint as text; once bound, with the port that the system picked."""
        return str(self._endpoint)

    @property
    def peers(self) -> int:
        """How many are connected."""
        return len(self.socket.pipes)

    @property
    def is_alone(self) -> bool:
        """Whether it listens, and nobody is connected to it."""
        return self._binds and not self.socket.pipes

    @property
    def refusal(self) -> str:
        """Always "": nng has no keys."""
        return ""

    @property
    def connected(self) -> bool:
        """Whether somebody is there; True for a socket that listens."""
        return self._binds or bool(self.socket.pipes)

    def open(self, prefixes: tuple[bytes, ...] = ()) -> None:
        """Subscribe a SUB to prefixes; then dial, unless it listens."""
        for prefix in prefixes:
            self.socket.subscribe(prefix)
        if self._binds:
            return
        try:
            self.socket.dial(self.endpoint, block=False)
        except pynng.NNGException as error:
            self.close()
            raise self._error(error) from error

    def has_subscriber(self) -> bool:
        """Whether anybody is connected: nng's PUB does not know who subscribes to what."""
        return bool(self.socket.pipes)

    def set_lossy(self, lossy: bool) -> None:
        """Do nothing: a PUB of nng drops what has no space, and says it to nobody."""

    def check(self) -> None:
        """Do nothing: nng dials again by itself."""

    def wait(self, timeout_ms: int) -> bool:
        """Wait for a message at most so long; return whether there is one."""
        if self._ahead:
            return True
        self.socket.recv_timeout = timeout_ms
        try:
            self._ahead.append(self._receive())
        except (pynng.Timeout, pynng.BadState):  # the latter of a survey that is over
            return False
        except pynng.NNGException as error:
            raise self._error(error) from error
        return True

    def receive_many(self, count_max: int) -> tuple[list[Parts], int, bool]:
        """Do as `ZmqPlainSocket.receive_many`."""
        taken: list[Parts] = list(self._ahead)
        self._ahead.clear()
        receive = self._receive
        size = sum(map(len, taken))
        try:
            while len(taken) < count_max and size < _BYTES_MAX:
                data = receive(block=False)
                size += len(data)
                taken.append(data)
        except pynng.TryAgain:
            return taken, size, False
        except (pynng.NNGException, RuntimeError) as error:
            if not taken:  # else the next call fails with it, too
                raise self._error(error) from error
        return taken, size, True

    receive_singles = receive_many

    def wait_for_space(self, timeout_ms: int) -> bool:
        """Return at once: `send` itself waits."""
        return True

    def send(self, parts: list[bytes]) -> bool:
        """Send a message of one part; False: nobody took it within 100 ms. A PUB never waits."""
        try:
            self.socket.send(parts[0])
        except (pynng.Timeout, pynng.TryAgain):
            return False
        except pynng.NNGException as error:
            raise self._error(error) from error
        return True

    def close(self, linger_ms: int = 0) -> None:
        """Close; nng sends what is on its way in the background."""
        self._closing = True
        self.socket.close()

    def _receive(self, block: bool = True) -> bytes:
        """Return one message, also an empty one, at which `recv` of pynng 0.9 raises."""
        try:
            data: bytes = self.socket.recv(block)
        except RuntimeError as error:
            if "NULL" not in str(error):
                raise
            return b""  # it was taken, and there was nothing to copy
        return data

    def _listen(self) -> None:
        place = self._endpoint
        if place.is_wildcard and not place.is_ipv6:
            place = place.with_host("0.0.0.0")
        try:
            listener = self.socket.listen(str(place))
        except pynng.NNGException as error:
            self.close()
            raise AddressError(self.endpoint, str(error)) from error
        if place.scheme == "tcp":
            port = int(str(listener.local_address).rpartition(":")[2])
            self._endpoint = self._endpoint.with_port(port)

    def _error(self, error: Exception) -> TransportError:
        if isinstance(error, pynng.Closed):
            return ClosedError(self.endpoint)
        return TransportError(f"{self.endpoint!r}: {error}")
