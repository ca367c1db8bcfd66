"""Frames in ZeroMQ's own memory, which it sends any number of times without a copy.

pyzmq can also send from Python's memory. But then a thread of its own gives the memory back, which
needs the interpreter for every frame, and is late where other threads keep it.
"""

import sys
from collections.abc import Callable
from threading import get_ident, main_thread
from typing import Final

import zmq

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


_MAIN: Final = main_thread()


def send_frame(send: Callable[..., object], frame: bytes | memoryview, flags: int) -> None:
    """Call `send`, which copies bytes and sends a frame as it is."""
    if type(frame) is bytes:
        send(frame, flags)
    else:
        _guarded(send, sendable(frame), flags)


def _guarded(call: Callable[..., object], *arguments: object) -> None:
    """Call what frees frames, and raise afterwards what a signal's handler raised meanwhile.

    Where pyzmq frees a `Frame`, as it does after each send of one, it runs the handlers of signals,
    and what they raise has no place to go there: where a program published 64 KiB at a time, one
    Ctrl-C in sixteen was printed and forgotten. A SystemExit ends the program there and then.
    """
    if get_ident() != _MAIN.ident:  # handlers run in the main thread only
        call(*arguments)
        return
    raised: list[BaseException] = []

    def keep(unraisable: "sys.UnraisableHookArgs") -> None:
        if get_ident() == _MAIN.ident:
            raised.append(unraisable.exc_value or unraisable.exc_type())
        else:
            before(unraisable)

    before = sys.unraisablehook
    try:
        sys.unraisablehook = keep
        call(*arguments)
    finally:
        sys.unraisablehook = before
        if raised:
            raise raised[0]


def free_zmq_frames(frames: list[bytes | memoryview]) -> None:
    """Empty a list of frames that are not needed any more."""
    _guarded(frames.clear)
