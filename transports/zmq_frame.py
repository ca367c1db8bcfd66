"""Frames in ZeroMQ's own memory, which it sends any number of times without a copy.

pyzmq can also send from Python's memory. But then a thread of its own gives the memory back, which
needs the interpreter for every frame, and is late where other threads keep it.
"""

import sys
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Final

import zmq

from transports.signals import defer_signals, interrupts_only

SHARED_BYTES: Final = 32 * 1024
"""From this size on sharing costs less than to copy a frame once more when it is sent. CPU time of
the publisher's thread for 64 KiB, made, kept and sent over TCP: 24 µs with a copy, 16 from Python's
memory, 12 so; of its whole process 64, 67 and 48."""


def make_zmq_frame(data: bytes | bytearray | memoryview) -> bytes | memoryview:
    """Copy `data` to where ZeroMQ sends it from; what is below 32 KiB becomes bytes."""
    if len(data) < SHARED_BYTES:
        return bytes(data)
    # The frame refers to what it was made of: released, the view keeps nothing of it.
    with memoryview(data) as view:
        frame = zmq.Frame(view, copy=True)
    return frame.buffer.toreadonly()


def sendable(frame: bytes | memoryview) -> bytes | memoryview | zmq.Frame:
    """Return what pyzmq is to send: the frame that a `make_zmq_frame` view is of, else the same."""
    if type(frame) is memoryview:
        owner: object = frame.obj
        if isinstance(owner, zmq.Frame) and len(owner) == len(frame):
            return owner
    return frame


class _Guard:
    """Raises what Ctrl-C raised where pyzmq freed a frame.

    `sys.unraisablehook` reports it. Deferring the handlers instead, as `defer_signals` does, takes
    4 µs between two frames of 64 KiB, with cold caches, and one takes 24.
    """

    def __init__(self) -> None:
        self._caught: BaseException | None = None
        self._is_on = False
        self._before: Callable[[sys.UnraisableHookArgs], object] = sys.__unraisablehook__

    def run(self, call: Callable[..., object], *arguments: object) -> None:
        """Call; what a handler raises meanwhile in this, the main thread, is raised afterwards."""
        if sys.unraisablehook is not _hook:
            self._before, sys.unraisablehook = sys.unraisablehook, _hook
        self._is_on = True
        try:
            call(*arguments)
        finally:
            self._is_on = False
            if sys.unraisablehook is _hook:
                sys.unraisablehook = self._before
            caught, self._caught = self._caught, None
            if caught is not None:
                raise caught

    def take(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Keep an exception of the main thread's, and pass on any other."""
        if self._is_on and get_ident() == _MAIN.ident:
            self._caught = unraisable.exc_value or unraisable.exc_type()
        else:
            self._before(unraisable)


_MAIN: Final = main_thread()
_guard: Final = _Guard()
_hook: Final = _guard.take


def send_frame(send: Callable[..., object], frame: bytes | memoryview, flags: int) -> None:
    """Call `send`, which copies bytes and sends a frame as it is; see `free_zmq_frames`."""
    if type(frame) is bytes:
        send(frame, flags)
    else:
        _guarded(send, sendable(frame), flags)


def _guarded(call: Callable[..., object], *arguments: object) -> None:
    """Call what frees frames, so that no exception of a signal handler gets lost."""
    if get_ident() != _MAIN.ident or _guard._is_on:
        call(*arguments)
    elif interrupts_only():
        _guard.run(call, *arguments)
    else:
        # A handler of the program's own may raise SystemExit, which would end it there and then.
        defer_signals(call, *arguments)


def free_zmq_frames(frames: list[bytes | memoryview]) -> None:
    """Empty a list of frames that are not needed any more.

    Where pyzmq frees a `Frame`, as it does after each send of one, it handles signals, and what
    their handlers raise has no place to go there: where a program published 64 KiB at a time, one
    Ctrl-C in twelve was printed and forgotten. So they are handled afterwards.
    """
    _guarded(frames.clear)
