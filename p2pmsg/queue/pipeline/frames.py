"""Frames of a pipeline, over the wire format of `p2pmsg.wire`; `PROTOCOL.md` has the bytes.

===============  ============  ====================================================================
kind             from          what it says
===============  ============  ====================================================================
PIPE_HELLO       puller        I am here; the header's session is my id
PIPE_WELCOME     pusher        your share, and the endpoint of its PUSH socket
PIPE_JOBS        pusher        do these; the sequence is the frame's number in the share
PIPE_STATE       puller        I am alive, have done the frames below this one, and miss these
PIPE_HEAD        pusher        all frames of your share below this one were sent
PIPE_GONE        pusher        this share is not yours (any more): say hello
DENIED           pusher        your key gives you no right to `pull` here
===============  ============  ====================================================================
"""

from typing import Annotated, Final

from p2pmsg import codec
from p2pmsg.control import Denied, Id, Name, Range
from p2pmsg.queue.pipeline.dealing import Piece
from p2pmsg.queue.pipeline.taking import RANGES_MAX
from p2pmsg.wire import (
    HEADER,
    MAGIC,
    NO_COLUMNS,
    VERSION,
    Frame,
    Kind,
    decode_body,
    values_header,
)


class Hello(codec.Struct, array_like=True):
    """Puller to pusher."""

    name: Name


class Welcome(codec.Struct, array_like=True):
    """Pusher to puller."""

    share: Id
    endpoint: Annotated[str, codec.Meta(min_length=1, max_length=1024)]
    name: Name = ""
    """The pusher's."""


class State(codec.Struct, array_like=True):
    """Puller to pusher; the header's sequence is the first frame that is not wholly done."""

    part: Annotated[int, codec.Meta(ge=0, le=2**31)]
    """How many jobs of that frame are done."""
    missing: Annotated[list[Range], codec.Meta(max_length=RANGES_MAX)]
    """Frames that it misses, as ranges [start, stop)."""


class Gone(codec.Struct, array_like=True):
    """Pusher to puller."""

    session: Id
    """The pusher's: where it is another than before, nobody has the jobs of the share."""


decode_hello: Final = codec.make_decoder(Hello).decode
decode_welcome: Final = codec.make_decoder(Welcome).decode
decode_state: Final = codec.make_decoder(State).decode
decode_denied: Final = codec.make_decoder(Denied).decode
decode_gone: Final = codec.make_decoder(Gone).decode


def body_of(count: int, values: bytes | memoryview) -> bytes:
    """Return the body with `count` packed values."""
    return b"".join((values_header(count), values, NO_COLUMNS))


def jobs_frame(share: int, number: int, piece: Piece) -> bytes:
    """Return the frame of a piece in a share."""
    header = HEADER.pack(
        MAGIC, VERSION, Kind.PIPE_JOBS, 0, 0, share, number, piece.jobs, len(piece.body),
        piece.first,
    )  # fmt: skip
    return b"".join((b"\0", header, piece.body))


def values_of(frame: Frame) -> list[object]:
    """Return the jobs' values; `FrameError` where they are not as many as the header says."""
    return decode_body(frame.data, frame.body_at, frame.count, 0)[0]


def part_of(piece: Piece, start: int, stop: int) -> Piece:
    """Return a piece with the jobs [start, stop) of another."""
    values = decode_body(piece.body, 0, piece.jobs, 0)[0][start:stop]
    packed = b"".join(map(codec.exact_encoder.encode, values))
    return Piece(piece.first + start, len(values), body_of(len(values), packed))
