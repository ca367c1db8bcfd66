"""What only Linux has for sockets: the one module here, and above, that asks for it.

Elsewhere (macOS) everything over TCP works, by what POSIX has. What cannot work is refused by name
when its endpoint is parsed: `udp://`, `mold://` and abstract names of `ipc://`.
"""

import fcntl
import os
import select
import stat
import struct
import sys
import termios
from collections.abc import Callable, Iterable
from io import FileIO
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import socket

IS_LINUX: Final = sys.platform == "linux"
IPC_PATH_BYTES_MAX: Final = 107 if IS_LINUX else 103
"""`sockaddr_un.sun_path` has 108 bytes on Linux, 104 elsewhere, the last of them a zero."""
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SO_RXQ_OVFL: Final = 40
SO_MEMINFO: Final = 55
SO_BINDTOIFINDEX: Final = 62
SO_SNDBUFFORCE: Final = 32 if IS_LINUX else None
SO_RCVBUFFORCE: Final = 33 if IS_LINUX else None
IP_MTU: Final = 14
IPV6_MTU: Final = 24
SIOCGIFADDR: Final = 0x8915
_IPPROTO_TCP: Final = 6
_TCP_INFO: Final = 11
_COUNT: Final = struct.Struct("=i")
_RECEIVED: Final = struct.Struct("=52xI72xQ")
"""`tcpi_last_data_recv`, in ms, and `tcpi_bytes_received` of `struct tcp_info` (linux/tcp.h)."""
sched_yield: Final[Callable[[], object] | None] = getattr(os, "sched_yield", None)


ConnectionName = tuple[Any, Any]
"""The addresses of both ends, the own one first."""


class TcpState(NamedTuple):
    """What the kernel says of a connection."""

    name: ConnectionName
    quiet_ms: int
    """How long ago the last byte came, or the connection was made."""
    received: int
    """How many bytes have come."""


class AnyReadable:
    """One descriptor that is readable when any of several is."""

    def __init__(self, fds: Iterable[int]) -> None:
        self._poll = select.epoll()
        for fd in fds:
            self._poll.register(fd, select.EPOLLIN)
        self.fileno, self.close = self._poll.fileno, self._poll.close


def read_proc(path: str) -> str:
    """Return the text of a file under /proc; `OSError` where there is none."""
    with open(f"/proc/{path}", encoding="ascii", errors="replace") as file:
        return file.read()


def process_namespace() -> str:
    """Return the name of the name space of process ids; `OSError` where there is none."""
    return os.readlink("/proc/self/ns/pid")


def wake_files() -> tuple[FileIO, FileIO]:
    """Return two ends: what is written to the second, 8 bytes, makes the first readable.

    On Linux they are one eventfd, elsewhere a pipe. Neither end waits.
    """
    if eventfd := getattr(os, "eventfd", None):
        both = FileIO(eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), "r+")
        return both, both
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    os.set_blocking(write_fd, False)
    return FileIO(read_fd), FileIO(write_fd, "w")


def open_files() -> int | None:
    """Return how many descriptors this process has; None where that cannot be found out."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder))
        except OSError:
            continue  # not there, or no descriptor is left to read it with
    return None


def tcp_state(fd: int) -> TcpState | None:
    """Return what the kernel says of a TCP connection; None where it is not known.

    Args:
        fd: its descriptor, which is another's.

    """
    own = _second(fd) if IS_LINUX else None
    if own is None:
        return None
    with own:
        try:
            name = own.getsockname(), own.getpeername()
            found = own.getsockopt(_IPPROTO_TCP, _TCP_INFO, _RECEIVED.size)
        except OSError:
            return None  # it is no TCP connection, or no more
    if len(found) != _RECEIVED.size:
        return None
    return TcpState(name, *_RECEIVED.unpack(found))


def unsent_bytes(fd: int) -> int | None:
    """Return how many bytes of a TCP connection have not arrived yet; None where not known.

    Args:
        fd: its descriptor, which is another's.

    """
    if not IS_LINUX:
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None  # its number is something else's now
        found = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(_COUNT.size))
    except OSError:
        return None  # it was closed, or is no connection
    return int(_COUNT.unpack(found)[0])


def _second(fd: int) -> "socket.socket | None":
    """Return a second descriptor of a socket: the first is closed by its owner, and nobody else."""
    import socket  # most processes never need it

    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        own = os.dup(fd)
    except OSError:
        return None  # it was closed, or no descriptor is left
    try:
        return socket.socket(fileno=own)
    except BaseException as error:
        os.close(own)
        if isinstance(error, OSError):
            return None
        raise
