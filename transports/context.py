"""The process's ZeroMQ context.

One context a process, because inproc endpoints and I/O threads belong to a context. A forked child
gets a new one: ZeroMQ's threads do not survive a fork, and a context without them hangs.
"""

import atexit
import os
import threading
import time

import zmq

from transports.errors import CLOSED, ClosedError

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]

IO_THREADS = 1
"""ZeroMQ's own rule is one thread for each GB/s of traffic; Python does not reach the first."""

SOCKETS_MAX = 65536
"""ZeroMQ's default of 1023 is soon met by a relay or by a test of many peers; the operating
system's limit of open files is met before this one."""


_KEPT_BYTES = 16 * 2**20
"""glibc gives memory back to the system when so much, then twice, lies free at the end of the heap,
and takes the size from the largest block that it has seen freed; it begins with 128 KiB. With that,
each frame was paid for with a page fault for every 4 KiB, a fifth of a subscriber's time; with half
of this a subscriber that catches up, 16 MiB at a time, took half as long again."""


class _State:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.context: Context | None = None
        self.linger_until = 0.0
        self.has_ender = False
        self.ending = threading.Event()
        self.ended = threading.Event()

    def end(self) -> None:
        """End the context, which waits until its closed sockets' frames have left."""
        self.ending.wait()
        if self.context is not None:
            self.context.term()
        self.ended.set()


_state = _State()
# Contexts of a parent process. They are kept, since collecting one would try to end its threads.
_inherited: list[_State] = []


def context() -> Context:
    """Return the context that all sockets of this process share; it is made at the first call.

    In a forked child this is a new context. Sockets that the child inherited are of no use to it.
    """
    with _state.lock:
        if _state.context is None or _state.context.closed:
            bytes(_KEPT_BYTES)  # made and freed: it is never written to, and takes no memory
            made: Context = zmq.Context(IO_THREADS)
            made.set(zmq.MAX_SOCKETS, SOCKETS_MAX)
            # Sockets linger 0 unless their close says otherwise: nothing may hang at the end.
            made.set(zmq.BLOCKY, 0)
            _state.context = made
            _start_ender(_state)
        return _state.context


def ended_at_exit(error: BaseException | None) -> bool:
    """Whether an error comes of the context's end, which came with the end of the process.

    Daemon threads still run then; what they meet is nobody's to repair.
    """
    if not _state.ending.is_set():
        return False
    while error is not None:
        if isinstance(error, ClosedError):
            return True
        if isinstance(error, zmq.ZMQError) and error.errno in CLOSED:
            return True
        error = error.__cause__ or error.__context__
    return False


def on_linger(used: Context, linger_ms: int) -> None:
    """Note that a socket of `used` was closed with frames that may take `linger_ms` to leave."""
    with _state.lock:
        if used is _state.context:
            until = time.monotonic() + linger_ms / 1000
            _state.linger_until = max(_state.linger_until, until)


def _start_again() -> None:
    global _state
    _inherited.append(_state)
    _state = _State()


def _let_frames_leave() -> None:
    """At exit, give closed sockets the rest of their linger time.

    pyzmq does not end its contexts at exit, so a program that publishes, closes and ends would lose
    its last frames. Ending a context waits for them, and for open sockets too; so a thread does it,
    and the time is limited. From Python 3.12 on it is too late to start one here, so that it has
    waited since the context was made. What is not gone by then must stay where it is: ZeroMQ's own
    thread goes on sending it until the process is gone.
    """
    left = _state.linger_until - time.monotonic()
    if _state.context is not None and left > 0:
        _state.ending.set()
        try:
            _state.ended.wait(left)
        except KeyboardInterrupt:
            pass  # the program has ended; nobody needs to read where this waited


def _start_ender(state: _State) -> None:
    """Start the thread that ends the context at exit, unless there is one."""
    if state.has_ender:
        return
    try:
        threading.Thread(target=state.end, name="p2pmsg-linger", daemon=True).start()
    except RuntimeError:
        return  # the interpreter exits already
    state.has_ender = True


os.register_at_fork(after_in_child=_start_again)
atexit.register(_let_frames_leave)
