"""Frames of requests and replies, over the wire format of `p2pmsg.wire`.

REQUEST has the topic ahead, the requester's id where the header has the session, the request's
number as the sequence, how long the requester waits, in ms, as the count (0: without limit), and
the value as body.
REPLY has the same id and number, a `Status` as the count, and as body the value, ``[type, text]``
of an exception, or ``["request", why]`` where the requester has no right to the topic.
"""

import enum
from collections.abc import Callable
from typing import Any, Final

from p2pmsg import codec
from p2pmsg.control import decoded
from p2pmsg.wire import HEADER, MAGIC, VERSION, Frame, Kind, encoder
from transports.zmq_socket import FRAME_BYTES_MAX

_decode: Final = codec.make_decoder().decode
_ErrorDecode = Callable[[memoryview], tuple[str, str]]
_decode_error: Final[_ErrorDecode] = codec.make_decoder(tuple[str, str]).decode
_COUNT_MAX: Final = 2**32 - 1
_ERROR_CHARACTERS_MAX: Final = 16_384
MESSAGE_BYTES: Final = (64, FRAME_BYTES_MAX)
"""The bounds of `message_bytes_max`: no frame carries more."""
VALUE_BYTES_MAX: Final = FRAME_BYTES_MAX - 1024
"""Largest packed value of a request or a reply: a frame takes 16 MiB with its topic and header, and
who gets a larger one ends the connection."""


class Status(enum.IntEnum):
    """What a reply says."""

    DONE = 0
    RAISED = 1
    NO_HANDLER = 2
    DENIED = 3


def wait_ms_of(seconds: float) -> int:
    """Return how long a requester waits as a request says it: 1 ms at least, as 0 is no limit."""
    return max(0, min(int(seconds * 1000), _COUNT_MAX - 1)) + 1


def request_frame(topic: bytes, requester: int, number: int, wait_ms: int, packed: bytes) -> bytes:
    """Return a request with a packed value."""
    header = HEADER.pack(
        MAGIC, VERSION, Kind.REQUEST, 0, 0, requester, number, max(0, min(wait_ms, _COUNT_MAX)),
        len(packed), 0,
    )  # fmt: skip
    return b"".join((topic, b"\0", header, packed))


def reply_frame(requester: int, number: int, status: Status, packed: bytes) -> bytes:
    """Return a reply with a packed body."""
    header = HEADER.pack(
        MAGIC, VERSION, Kind.REPLY, 0, 0, requester, number, status, len(packed), 0
    )
    return b"".join((b"\0", header, packed))


def error_body(error: BaseException) -> bytes:
    """Return an exception as the body of a reply."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    try:
        text = str(error)
    except Exception:  # an exception's own __str__ may fail, too
        text = ""
    text = text[:_ERROR_CHARACTERS_MAX].encode(errors="replace").decode()
    return encoder.encode((name, text))


def denied_body(why: str) -> bytes:
    """Return the body of a reply that says that there is no right, and why."""
    return encoder.encode(("request", why))


def body_of(frame: Frame) -> Any:
    """Return the value of a frame; `FrameError` where it is malformed."""
    return decoded(frame, _decode)


def error_of(frame: Frame) -> tuple[str, str]:
    """Return type and text of a remote exception; `FrameError` where it is malformed."""
    return decoded(frame, _decode_error)
