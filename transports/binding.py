"""Binding where ZeroMQ does it badly: the files of ipc endpoints, and what was closed just now.

ZeroMQ unlinks whatever is at the path of an ipc endpoint before it binds, so that a second
publisher would take the endpoint from a living one, without an error on either side; and it unlinks
the file at some time after close, which by then may be another's. So the listening socket is made
here and passed to ZeroMQ.

It closes a socket in its own thread, a moment after `close`, so that a process that binds the same
endpoint next would find it taken by itself. So it is waited for.
"""

import errno
import os
import stat
import time
from typing import TYPE_CHECKING, Final

import zmq

from transports.endpoint import Endpoint
from transports.errors import AddressError

if TYPE_CHECKING:
    import socket

_BACKLOG: Final = 100
"""ZeroMQ's own default."""
_WAIT_S: Final = 1.0
"""How long after `close` an endpoint is waited for. A millisecond is usual."""
_OTHERS: Final = (
    "another process on this machine has bound it (a forked child keeps what its parent had bound);"
    " each process needs an endpoint of its own"
)
_IN_USE: Final = frozenset({errno.EADDRINUSE, errno.EEXIST})
_bound: dict[str, float | None] = {}
"""What this process has bound: None, or when it was closed."""
os.register_at_fork(after_in_child=_bound.clear)


class IpcFile:
    """A listening Unix-domain socket, and the file that stands for it.

    Attributes:
        fd: the descriptor, passed to ZeroMQ, which then closes it.

    Raises:
        AddressError: another socket listens there, or something that is not a socket is in the way.

    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._path = "" if endpoint.is_abstract else endpoint.path
        # Linux's abstract names begin with a zero byte, which endpoints write as "@".
        self._address = "\0" + endpoint.path[1:] if endpoint.is_abstract else endpoint.path
        self._pid = os.getpid()
        self._listener = _unix_socket()
        try:
            self._bind()
            self._listener.listen(_BACKLOG)
            # Else a client that hangs up at the wrong moment stops ZeroMQ's thread in accept().
            self._listener.setblocking(False)
            self._inode = os.stat(self._path).st_ino if self._path else 0
        except OSError as error:
            self._listener.close()
            if isinstance(error, AddressError):
                raise
            raise translate_bind(error, endpoint) from error
        self.fd = self._listener.fileno()

    def given_away(self) -> None:
        """Note that ZeroMQ has taken the descriptor."""
        self._listener.detach()

    def remove(self) -> None:
        """Remove the file, if it still is this socket's and this process made it."""
        self._listener.close()
        if not self._path or os.getpid() != self._pid:
            return
        try:
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        except OSError:
            # Gone already, or not ours to remove any more; the next bind copes with what is left.
            pass

    def _bind(self) -> None:
        try:
            self._listener.bind(self._address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            self._remove_stale()
            self._listener.bind(self._address)

    def _remove_stale(self) -> None:
        """Remove what is at the path if it is a socket on which nobody listens."""
        if self._path and not stat.S_ISSOCK(os.lstat(self._path).st_mode):
            reason = "the path is taken by something that is not a socket"
            raise AddressError(str(self._endpoint), reason)
        with _unix_socket() as probe:
            probe.setblocking(False)
            try:
                probe.connect(self._address)
            except ConnectionRefusedError:
                if self._path:
                    os.unlink(self._path)
                return
            except BlockingIOError:
                pass  # its backlog is full: there is a listener, only busy
        raise OSError(errno.EADDRINUSE, "somebody listens there")


def _unix_socket() -> "socket.socket":
    from socket import AF_UNIX, SOCK_STREAM, socket

    return socket(AF_UNIX, SOCK_STREAM)


def translate_bind(error: zmq.ZMQError | OSError, endpoint: Endpoint) -> AddressError:
    """Return this package's error for `error`, met while binding `endpoint`."""
    why = zmq.strerror(error.errno) if error.errno else str(error)  # without the address again
    if error.errno in _IN_USE:
        is_ours = _bound.get(_name(endpoint), 0.0) is None
        why = "this process has bound it already" if is_ours else _OTHERS
    return AddressError(str(endpoint), why, error.errno)


def on_bound(endpoint: Endpoint) -> None:
    """Note that this process has bound `endpoint`."""
    _bound[_name(endpoint)] = None


def on_closed(endpoint: Endpoint) -> None:
    """Note that a socket bound to `endpoint` was closed."""
    now = time.monotonic()
    for name, when in list(_bound.items()):
        if when is not None and now - when > _WAIT_S:
            _bound.pop(name, None)
    _bound[_name(endpoint)] = now


def wait_for(endpoint: Endpoint) -> bool:
    """Wait a little if `endpoint` was closed just now; False: somebody else has it."""
    when = _bound.get(_name(endpoint))
    if when is None or time.monotonic() - when > _WAIT_S:
        return False
    time.sleep(0.001)
    return True


def _name(endpoint: Endpoint) -> str:
    # Whatever interface it is on: *:5556 is taken by 127.0.0.1:5556.
    return f"tcp port {endpoint.port}" if endpoint.scheme == "tcp" else str(endpoint)
