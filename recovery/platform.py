"""What the operating system has for files: the one module here that asks for Linux's calls.

Elsewhere (macOS) something stands for each of them. No other module names them.
"""

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

KEEP_SIZE: Final = 1
"""FALLOC_FL_KEEP_SIZE; fallocate(2)."""
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_BOOT_ID_NAME: Final = b"kern.bootsessionuuid"
_FULL_SYNC: Final = 51
"""macOS's F_FULLFSYNC: there, fsync(2) leaves what it writes in the disk's own memory."""
_STATX_BYTES: Final = 256
_STATX_BTIME: Final = 0x800
_AT_EMPTY_PATH: Final = 0x1000
_BIRTH: Final = struct.Struct("=qI")
_BIRTH_AT: Final = 80
"""Of `stx_btime` in `struct statx`; statx(2)."""


def libc_function(name: str) -> Any:
    """Return a function of the C library; None where it has none of that name."""
    try:
        return getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    found = libc_function("fallocate")
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        found.restype = ctypes.c_int
    called: Callable[[int, int, int, int], int] | None = found
    return called


fallocate: Final = _find_fallocate()
"""Linux's fallocate(2), or None; Python has only POSIX's, which makes the file longer."""


@cache
def boot_id() -> str:
    """Return what is another one after each start of the operating system.

    Where the system has none, it is another one in each process: then a log whose process was
    killed is treated as after a crash of the system.
    """
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        pass
    ask, text, size = libc_function("sysctlbyname"), ctypes.create_string_buffer(64), 64
    if ask is not None:  # macOS
        length = ctypes.c_size_t(size)
        if ask(_BOOT_ID_NAME, text, ctypes.byref(length), None, ctypes.c_size_t(0)) == 0:
            return text.value.decode("ascii", "replace")
    return f"unknown-{os.urandom(16).hex()}"


def sync_data(fd: int) -> None:
    """Force what was written to a file to the disk; raises `OSError`."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    elif sys.platform == "darwin":
        import fcntl

        try:
            fcntl.fcntl(fd, _FULL_SYNC)
        except OSError:
            os.fsync(fd)  # a file system that has no such call
    else:
        os.fsync(fd)


def has_reserved(fd: int, start: int, byte_count: int) -> bool:
    """Reserve a part of a file; False where this system, or file system, cannot."""
    reserve = getattr(os, "posix_fallocate", None)
    if reserve is None:
        return False
    try:
        reserve(fd, start, byte_count)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        return False
    return True


def birth_of(fd: int) -> str:
    """Return when a file was made, which Python does not say on Linux; empty: it is not known."""
    statx, data = libc_function("statx"), ctypes.create_string_buffer(_STATX_BYTES)
    if statx is None or statx(fd, b"", _AT_EMPTY_PATH, _STATX_BTIME, data):
        return ""
    if not int.from_bytes(data.raw[:4], sys.byteorder) & _STATX_BTIME:
        return ""
    seconds, ns = _BIRTH.unpack_from(data.raw, _BIRTH_AT)
    return f"{seconds}.{ns}"


def identity_of(fd: int) -> str:
    """Return what distinguishes a file from its copy: its inode, and when that was made.

    A number alone is given to another file when this one is deleted. The other times of a file
    change with its owner and its rights.
    """
    return f"{os.fstat(fd).st_ino}-{birth_of(fd)}"
