"""Lets signals wake an event loop that waits."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_BYTES = 4096


@contextmanager
def woken_by_signals() -> Iterator[None]:
    """Have each signal wake the running event loop, whichever thread the system gives it to.

    Python's handlers run in the main thread when that does something; while it waits for events, a
    signal that another thread gets does not reach them. In other threads than the main one, and
    where the loop has arranged for it by itself, as uvloop does, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    read, write = socket.socketpair()
    with read, write:
        read.setblocking(False)
        write.setblocking(False)
        number = write.fileno()
        before = signal.set_wakeup_fd(number, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        loop.add_reader(read, _empty, read)
        try:
            yield
        finally:
            loop.remove_reader(read)
            now = signal.set_wakeup_fd(-1)
            if now != number:  # the program has set another one meanwhile
                signal.set_wakeup_fd(now)


def _empty(read: socket.socket) -> None:
    try:
        read.recv(_BYTES)
    except BlockingIOError:
        pass
