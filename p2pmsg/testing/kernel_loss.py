"""Kernel drops on demand, without privilege: a socket filter on the kernel's own random word.

The filter runs where a datagram is put into a socket's buffer, so the drop is the kernel's, it
shows in the socket's drop count, and neither end's code takes part in it. With UDP_GRO a whole
train is one unit to it.
"""

import ctypes
import socket
import struct
from typing import Any

from p2pmsg import Subscriber, aio

_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
_LOAD, _JUMP_GE, _RETURN = 0x20, 0x35, 0x06
_RANDOM = 0xFFFFF000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM


def lose(one: socket.socket, part: float) -> None:
    """Let the kernel drop `part` (0 to 1) of what comes to a socket; 0 takes the filter off."""
    if not part:
        try:
            one.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        except OSError:
            pass
        return
    limit = min(2**32 - 1, round(part * 2**32))
    code = b"".join(
        struct.pack("HBBI", *row)
        for row in (
            (_LOAD, 0, 0, _RANDOM),
            (_JUMP_GE, 1, 0, limit),
            (_RETURN, 0, 0, 0),
            (_RETURN, 0, 0, 0xFFFFFFFF),
        )
    )
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(code) // 8, ctypes.addressof(held))
    one.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def lose_datagrams(subscriber: Subscriber[Any] | aio.Subscriber[Any], part: float) -> None:
    """Let the kernel drop `part` (0 to 1) of the datagrams to `subscriber`; 0: none any more.

    The subscriber may be a threaded one or one of asyncio.
    """
    for one in subscriber._peer.datagram_sockets():
        lose(one, part)
