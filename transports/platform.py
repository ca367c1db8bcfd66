"""What only Linux has for sockets: the one module here, and above, that asks for it.

Elsewhere (macOS) everything over TCP works, by what POSIX has. What cannot work is refused by name
when its endpoint is parsed: `udp://`, `mold://` and abstract names of `ipc://`.
"""

import fcntl
import os
import select
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterable
from typing import Any, Final

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
SIOCGIFMTU: Final = 0x8921
_TCP_INFO: Final = 11
_COUNT: Final = struct.Struct("=i")
_LAST_RECEIVED: Final = struct.Struct("=52xI")
"""`tcpi_last_data_recv` of `struct tcp_info` (linux/tcp.h), in ms."""
sched_yield: Final[Callable[[], object] | None] = getattr(os, "sched_yield", None)


ConnectionName = tuple[Any, Any]
"""The addresses of both ends, the own one first."""


class AnyReadable:
    """One descriptor that is readable when any of several is."""

    def __init__(self, fds: Iterable[int]) -> None:
        self._poll = select.epoll()
        for fd in fds:
            self._poll.register(fd, select.EPOLLIN)
        self.fileno, self.close = self._poll.fileno, self._poll.close

    def renew(self, fd: int) -> None:
        """Watch what stands under a descriptor now; what stood there was closed."""
        self._poll.register(fd, select.EPOLLIN)


def read_proc(path: str) -> str:
    """Return the text of a file under /proc; `OSError` where there is none."""
    with open(f"/proc/{path}", encoding="ascii", errors="replace") as file:
        return file.read()


def process_namespace() -> str:
    """Return the name of the name space of process ids; `OSError` where there is none."""
    return os.readlink("/proc/self/ns/pid")


def open_files() -> int | None:
    """Return how many descriptors this process has; None where that cannot be found out."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(os.listdir(folder))
        except OSError:
            continue  # not there, or no descriptor is left to read it with
    return None


def connection_of(fd: int) -> ConnectionName | None:
    """Return the addresses of both ends of a connection; None where there is none.

    Args:
        fd: its descriptor, which is another's.

    """
    try:
        with socket.socket(fileno=os.dup(fd)) as own:
            return own.getsockname(), own.getpeername()
    except OSError:
        return None  # it was closed, or no descriptor is left


def last_received_ms(fd: int) -> int | None:
    """Return how long ago the last byte came over a TCP connection; None where it is not known.

    Args:
        fd: its descriptor, which is another's.

    """
    if not IS_LINUX:
        return None
    try:
        # Of a second descriptor: the first is closed by its owner, and by nobody else.
        with socket.socket(fileno=os.dup(fd)) as own:
            found = own.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _LAST_RECEIVED.size)
    except OSError:
        return None  # it was closed, or is no TCP connection, or no descriptor is left
    return int(_LAST_RECEIVED.unpack(found)[0]) if len(found) == _LAST_RECEIVED.size else None


def unsent_bytes(fd: int) -> int | None:
    """Return how many bytes of a TCP connection have not arrived yet; None where not known.

    Args:
        fd: its descriptor, which is another's.

    """
    if not IS_LINUX:
        return None
    try:
        found = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(_COUNT.size))
    except OSError:
        return None  # it was closed, or is no connection
    return int(_COUNT.unpack(found)[0])
