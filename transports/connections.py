"""The connections of a bound socket: counted, and bounded.

libzmq accepts connections by itself, in its own thread, and has neither a limit for them nor a call
that ends one. Its monitor reports each, with its descriptor, and a descriptor can be shut down:
libzmq then finds the connection ended and closes it.
"""

import resource
import socket as system_socket
import time
from typing import Final

import zmq

from transports.context import Context, Socket
from transports.monitor import Monitor
from transports.own_log import own_log as _log
from transports.platform import open_files
from transports.trouble import Rarely

CONNECTIONS_MAX: Final = 65_536
"""Connections to one bound socket: as many as a publisher counts subscribers."""
FILES_SPARED_MIN: Final = 64
"""Descriptors that connections leave to the rest of the process (logs, cursors, other sockets):
these, or an eighth of what the system allows, whatever is more; but a quarter of that at most."""
SUBSCRIPTIONS_MAX: Final = 65_536
"""Prefixes that one connection may subscribe to: as many as a publisher has topics."""
SUBSCRIPTION_BYTES_MAX: Final = 512 * 1024
"""Their bytes. A `Subscriber` names at most 60,000 bytes of topics. libzmq takes up to 60 bytes of
memory for each byte, and 0.3 µs of the publisher to free it when the connection has ended."""
TOTAL_FACTOR: Final = 8
"""All connections together may have so many times as much; then the one that has most is ended."""

_COUNTED_AGAIN_S: Final = 0.2
_UPDATE_NS: Final = 5_000_000
_REASONS_MAX: Final = 16
"""Reasons that are logged at once, some with a key."""
_EVENTS: Final = int(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
"""Not EVENT_ACCEPT_FAILED: with no descriptor left libzmq reports 600,000 of them a second, more
than can be read, and what ends connections comes after them."""
_HANDSHAKE_FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_ACCEPTED: Final = int(zmq.EVENT_ACCEPTED)
_DISCONNECTED: Final = int(zmq.EVENT_DISCONNECTED)
_EVENTS_PER_CALL: Final = 4096


def _spared(limit: int) -> int:
    return max(min(FILES_SPARED_MIN, limit // 4), limit // 8)


class _Files:
    """How many connections the process may have, by the system's limit of open files."""

    def __init__(self) -> None:
        self.connections = 0
        self._others = 0
        self._counted_s = -1.0

    def has_space(self) -> bool:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return True
        space = limit - _spared(limit)
        if 2 * self.connections < space:
            return True
        now_s = time.monotonic()
        if now_s - self._counted_s > _COUNTED_AGAIN_S:
            self._counted_s = now_s
            opened = open_files()
            self._others = max(0, (limit if opened is None else opened) - self.connections)
        return self.connections + self._others <= space


_files: Final = _Files()


class Refusals:
    """Logs connections that are refused: the first one at once, then once a minute."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._rarely = Rarely()

    def note(self, why: str) -> None:
        """Count a refusal; of more reasons than a line of the log can have, none is kept."""
        if why in self.counts or len(self.counts) < _REASONS_MAX:
            self.counts[why] = self.counts.get(why, 0) + 1

    def log(self, place: str) -> None:
        """Log what was counted, where it is time to."""
        if self.counts and self._rarely.is_due():
            for why, count in self.counts.items():
                _log.warning("%s: refused, connections: %d, %s", place, count, why)
            self.counts.clear()


class Connection:
    """One connection of a bound socket.

    Attributes:
        user: the user id of the other end, where connections have keys and it has sent something.
        prefixes: what it subscribes to, where that is decided on, and whether it may have it.
        count, byte_count: how many prefixes it has, and their bytes.

    """

    __slots__ = ("byte_count", "count", "prefixes", "user")

    def __init__(self) -> None:
        self.user = ""
        self.prefixes: dict[bytes, bool] = {}
        self.count = self.byte_count = 0


class Connections:
    """The connections of one bound socket.

    Only the thread that owns the socket calls `update` and the like; the counters may be read by
    others.

    Args:
        socket: bound, or about to be.
        context: the socket's.
        secure: whether it is a socket with keys: handshakes that fail are counted. Default False.

    Attributes:
        fd: a descriptor that is readable when a connection may have come or ended.
        refused: connections that were ended at once, because there were too many.
        oversubscribed: connections that were ended because of their subscriptions.
        broken: connections that ended.
        without_key: connections that had no keys, or were made for the key of another server.
        revoked: connections that were ended by `revoke` and `end_user`.

    """

    def __init__(
        self,
        socket: Socket,
        context: Context,
        *,
        secure: bool = False,
    ) -> None:
        self._socket = socket
        self._refusals = Refusals()
        self.refused = self.oversubscribed = self.broken = 0
        self.without_key = self.revoked = 0
        self._open: dict[int, Connection] = {}  # by descriptor
        # All that anybody subscribes to, and with whom it is counted; he may have gone.
        self._prefixes: dict[bytes, Connection] = {}
        self._prefix_bytes = 0
        self._port: int | None = None
        self._due_ns = 0
        # What is reported is bounded by the connections between two calls of `update`.
        self._monitor = Monitor(socket, context, _EVENTS | _HANDSHAKE_FAILED if secure else _EVENTS)
        self.fd = self._monitor.fd

    def __len__(self) -> int:
        return len(self._open)

    def update_soon(self) -> None:
        """Do as `update` does, if it was not done for 5 ms."""
        now_ns = time.monotonic_ns()
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _UPDATE_NS
            self.update()

    def update(self) -> None:
        """Take note of who came and went; end those who are too many."""
        self._read_monitor()
        if self._refusals.counts:
            self._refusals.log(self._place())

    def known(self, fd: int) -> Connection | None:
        """Return the connection that had a descriptor at the last look, or None."""
        return self._open.get(fd)

    def find(self, fd: int) -> Connection | None:
        """Return the connection that has a descriptor, by all that was reported until now."""
        while self._read_monitor():
            pass
        return self._open.get(fd)

    def by_fd(self) -> list[tuple[int, Connection]]:
        """Return all that are there now, with their descriptors."""
        self.update()
        return list(self._open.items())

    def _read_monitor(self) -> bool:
        """Take what was reported; return whether there may be more."""
        for _ in range(_EVENTS_PER_CALL):
            event = self._monitor.read()
            if event is None:
                return False
            what, value = event
            if what == _ACCEPTED:
                self._forget(value)  # should its end have gone unnoticed
                self._open[value] = Connection()
                _files.connections += 1
                if len(self._open) > CONNECTIONS_MAX:
                    self._refuse(value, f"there are {CONNECTIONS_MAX:,} already")
                elif not _files.has_space():
                    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                    why = f"{_spared(limit):,} of {limit:,} open files are kept for all else"
                    self._refuse(value, f"{why} (ulimit -n)")
            elif what == _DISCONNECTED:
                self.broken += 1
                self._forget(value)
            else:
                self.without_key += 1
                self._refusals.note(
                    "since they have no keys, or were made for another server's key"
                )
        return True

    def subscribed(self, fd: int, prefix: bytes) -> None:
        """Note that a connection took up a prefix; `fd` is -1 where it is not known."""
        connection = self._open.get(fd)
        if connection is None and fd >= 0:
            self.update()  # it came since the last time
            connection = self._open.get(fd)
        if prefix not in self._prefixes:
            self._prefixes[prefix] = connection or Connection()
            self._prefix_bytes += len(prefix)
        if connection is None:
            return
        connection.count += 1
        connection.byte_count += len(prefix)
        if are_too_many(connection.count, connection.byte_count):
            self.end_oversubscribed(fd)
        elif are_too_many(len(self._prefixes), self._prefix_bytes, TOTAL_FACTOR):
            self.end_oversubscribed(max(self._open, key=lambda one: self._open[one].byte_count))

    def unsubscribed(self, prefix: bytes, fd: int = -1) -> None:
        """Note that a connection gave up a prefix, which it had.

        Without one (-1), that nobody has it any more, or that one gave up what nobody had.
        """
        holder = self._prefixes.pop(prefix, None)
        if holder is not None:
            self._prefix_bytes -= len(prefix)
        connection = self._open.get(fd, holder)
        if connection is not None:
            connection.count -= 1
            connection.byte_count -= len(prefix)

    def close(self) -> None:
        """Stop counting; before the socket is closed."""
        if self._monitor.closed:
            return
        for fd in list(self._open):
            self._forget(fd)
        self._monitor.close()

    def _refuse(self, fd: int, why: str) -> None:
        self.refused += 1
        self._refusals.note(f"since {why}")
        self.end(fd)

    def end_oversubscribed(self, fd: int) -> None:
        """End a connection because of its subscriptions."""
        self.oversubscribed += 1
        most = f"{SUBSCRIPTIONS_MAX:,} subscriptions, or {SUBSCRIPTION_BYTES_MAX:,} bytes of them"
        self._refusals.note(
            f"since one may have {most}, and all together {TOTAL_FACTOR} times as much"
        )
        self.end(fd)

    def end_user(self, user: str) -> None:
        """End all connections of a user that have sent something, since its key is revoked."""
        for fd, connection in self.by_fd():
            if connection.user == user:
                self.revoke(fd)

    def revoke(self, fd: int) -> None:
        """End a connection whose key is revoked."""
        self.revoked += 1
        self.end(fd)

    def end(self, fd: int) -> None:
        """End a connection."""
        self._forget(fd)
        hang_up(fd, self._bound_port())

    def _bound_port(self) -> int | None:
        if self._port is None:
            _, _, port = self._place().rpartition(":")
            self._port = int(port) if port.isdigit() else None
        return self._port

    def _place(self) -> str:
        try:
            return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        except zmq.ZMQError:
            return "a socket that is closed"

    def _forget(self, fd: int) -> None:
        if self._open.pop(fd, None) is not None:
            _files.connections -= 1


def are_too_many(count: int, byte_count: int, factor: int = 1) -> bool:
    """Whether prefixes are more than one connection may have, or so many."""
    return count > factor * SUBSCRIPTIONS_MAX or byte_count > factor * SUBSCRIPTION_BYTES_MAX


def hang_up(fd: int, port: int | None = None) -> None:
    """End the connection of a descriptor that another one owns and closes.

    Args:
        fd: the descriptor. Its connection may have ended since, and its number be another's.
        port: if given, only a connection to this port is ended, not another one of the program's.

    """
    try:
        connection = system_socket.socket(fileno=fd)
    except OSError:
        return  # it has been closed meanwhile
    try:
        if port is None or connection.getsockname()[1] == port:
            connection.shutdown(system_socket.SHUT_RDWR)
    except (OSError, IndexError):
        pass  # it has ended by itself, or another file has its number now
    finally:
        connection.detach()
