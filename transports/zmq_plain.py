"""ZeroMQ sockets whose other side is not ours: SUB, PUB, PULL and PUSH, messages of any parts."""

from typing import TYPE_CHECKING, Final

import zmq

from transports.connections import SUBSCRIPTIONS_MAX
from transports.context import Context
from transports.endpoint import Endpoint
from transports.errors import AddressError
from transports.zmq_socket import ZmqConnectingSocket, report_subscription

if TYPE_CHECKING:
    from transports.curve import CurveClient, CurveServer

KINDS: Final = {"sub": zmq.SUB, "pub": zmq.XPUB, "pull": zmq.PULL, "push": zmq.PUSH}
"""The sockets by name. To a SUB an XPUB is a PUB; this side sees who has subscribed."""
_SILENCE_MS: Final = 24 * 3600 * 1000
"""A worker that is busy may leave its full queue alone for as long as it likes: a connection that
is given up loses what is in it."""
_NOBLOCK: Final = zmq.NOBLOCK
_BYTES_MAX: Final = 4 * 2**20
"""So many bytes `receive_many` returns at most, and a message more."""
_CHUNK_MESSAGES: Final = 32
_NOTES_MAX: Final = 1000
Parts = bytes | list[bytes]
"""A message: the bytes of its one part, or a list of several."""


class ZmqPlainSocket(ZmqConnectingSocket):
    """A socket that binds or connects, and speaks to programs that know nothing of p2pmsg.

    Args:
        kind: one of `KINDS`.
        endpoint: where it binds or connects: tcp, ipc or inproc.
        binds: whether it binds.
        context: the ZeroMQ context.
        queue_messages: the high-water mark of each peer's queue.
        message_bytes_max: the largest part that is received; a peer that sends a larger one is
            disconnected.
        curve: keys: a `CurveServer` where it binds, else a `CurveClient`. Default None: no
            encryption.

    Attributes:
        given_up: how often ZeroMQ had given up the connection, and it was made again by `check`.

    Raises:
        EndpointError, AddressError: as `ZmqSocket`.
        AddressError: the system refuses the endpoint.

    """

    def __init__(
        self,
        kind: str,
        endpoint: Endpoint,
        *,
        binds: bool,
        context: Context,
        queue_messages: int,
        message_bytes_max: int,
        curve: "CurveServer | CurveClient | None" = None,
    ) -> None:
        super().__init__(
            endpoint, binds=binds, context=context, kind=KINDS[kind],
            queue_frames=queue_messages, frame_bytes_max=message_bytes_max,
            silence_ms=_SILENCE_MS, curve=curve,
        )  # fmt: skip
        if kind == "pub":
            self.set_lossy(False)
        elif kind == "push":
            # Nothing is queued for a peer that is not there: what is, is lost with this process.
            self.socket.set(zmq.IMMEDIATE, 1)
        self.given_up = 0
        self._prefixes: set[bytes] | None = set() if kind == "pub" else None
        if binds:
            self._watch_connections()
            self._bind()
        elif endpoint.scheme != "inproc":
            self.watch_end()

    def open(self, prefixes: tuple[bytes, ...] = ()) -> None:
        """Subscribe a SUB to prefixes; then connect, unless it is bound."""
        for prefix in prefixes:
            self.socket.setsockopt(zmq.SUBSCRIBE, prefix)
        if self._bound:
            return
        try:
            self.connect()
        except AddressError:
            self.close()
            raise

    @property
    def connected(self) -> bool:
        """Whether who is connected to is there; True where that is not known."""
        return self._watch is None or self._watch.connected

    @property
    def connections(self) -> int:
        """How many connections it has made, one after the other; 0 where that is not known."""
        return 0 if self._watch is None else self._watch.connections

    @property
    def is_alone(self) -> bool:
        """Whether it is bound, and nobody is connected to it."""
        return self._connections is not None and not len(self._connections)

    def check(self) -> bool:
        """Check the connections; called a few times a second.

        ZeroMQ gives up an endpoint permanently, and silently, where the peer breaks the protocol,
        is no ZeroMQ peer, or sends a part that is too large. So it is connected to again. For
        `curve` see `ZmqConnectingSocket.check`.
        """
        if self._connections is not None:
            self._connections.update_soon()
        if self._prefixes is not None:
            self.has_subscriber()
        refused = super().check()
        if self.was_ended_here():
            self.given_up += 1
            self.reconnect()
        return refused

    def set_lossy(self, lossy: bool) -> None:
        """Let a PUB drop a message for peers whose queues are full; else `send` returns False."""
        self.socket.set(zmq.XPUB_NODROP, 0 if lossy else 1)

    def has_subscriber(self) -> bool:
        """Whether anybody has subscribed to a PUB, to any of its topics.

        ZeroMQ keeps what it has to report of that without a bound: it is fetched by `look`, too.
        """
        prefixes = self._prefixes
        assert prefixes is not None
        for _ in range(_NOTES_MAX):
            if not self.has_message():
                break
            self._read_note(prefixes)
        return bool(prefixes)

    def _read_note(self, prefixes: set[bytes]) -> None:
        """Take one report: who took up a prefix first, or gave it up last."""
        try:
            note = self.socket.recv(_NOBLOCK, copy=False)
            has_more = note.more
            while has_more:  # a message of a peer that is no SUB
                has_more = self.socket.recv(_NOBLOCK, copy=False).more
        except zmq.Again:
            return  # it went with its connection
        except zmq.ZMQError as error:
            raise self._error(error) from error
        data = note.bytes
        if data[:1] == b"\1" and len(prefixes) < SUBSCRIPTIONS_MAX:
            prefixes.add(data[1:])
        elif data[:1] == b"\0":
            prefixes.discard(data[1:])
        if self._connections is not None:
            report_subscription(note, self._connections)

    def wait_for_space(self, timeout_ms: int) -> bool:
        """Wait at most so long until something can be sent; return whether it can."""
        return bool(self.socket.poll(timeout_ms, zmq.POLLOUT))

    def receive_many(self, count_max: int) -> tuple[list[Parts], int, bool]:
        """Return messages that have come, their bytes, and whether there may be more.

        It does not wait.
        """
        receive = self.socket.recv
        taken: list[Parts] = []
        take = taken.append
        size = 0
        try:
            while len(taken) < count_max and size < _BYTES_MAX:
                # The copy is cheap, and asking the socket for RCVMORE takes three times as long.
                frame = receive(_NOBLOCK, False, False)
                data = frame.bytes
                size += len(data)
                if not frame.more:
                    take(data)
                    continue
                parts = [data]
                while frame.more:  # they come whole, or not at all
                    frame = receive(_NOBLOCK, False, False)
                    parts.append(frame.bytes)
                    size += len(parts[-1])
                take(parts)
        except zmq.Again:
            return taken, size, False
        except zmq.ZMQError as error:
            if not taken:  # else the next call fails with it, too
                raise self._error(error) from error
        return taken, size, True

    def receive_singles(self, count_max: int) -> tuple[list[Parts], int, bool]:
        """Do as `receive_many`, in a third of the time, where every message has one part.

        The first message is looked at; where that has several parts, it is `receive_many`. Parts of
        a later one come as messages of their own.
        """
        receive = self.socket.recv
        taken, size, has_more = self.receive_many(1)
        if not has_more or type(taken[0]) is list:
            return taken, size, has_more
        take = taken.append
        seen = 1
        try:
            while len(taken) < count_max and size < _BYTES_MAX:
                for _ in range(_CHUNK_MESSAGES):
                    take(receive(_NOBLOCK))
                size += sum(map(len, taken[seen:]))
                seen = len(taken)
        except zmq.Again:
            return taken, size + sum(map(len, taken[seen:])), False
        except zmq.ZMQError:  # the next call fails with it, too
            size += sum(map(len, taken[seen:]))
        return taken, size, True

    def send(self, parts: list[bytes]) -> bool:
        """Send a message; return False where there is no space for it, or nobody to take it."""
        try:
            self.socket.send_multipart(parts, _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise self._error(error) from error
        return True
