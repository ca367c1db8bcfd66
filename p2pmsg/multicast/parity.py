"""Forward error correction: parity of a block of datagrams, so that some may be lost unasked.

After `data` frames their publisher sends `parity` frames of kind PARITY, with whose help as many of
the block can be worked out again. One is the exclusive or of all; more are Reed–Solomon's, by the
package zfec. A parity frame names the frames that it covers, so the data frames are as they always
are, and a receiver that cannot use parity ignores it. Its body is a msgpack array::

    [number of data frames, number of parity frames, which of these it is,
     topics, [[index into topics, sequence, length of the frame], …], parity]
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from p2pmsg import codec, wire
from p2pmsg.errors import MissingExtraError
from p2pmsg.wire import Frame, FrameError, Kind

DATA_MAX: Final = 64
PARITY_MAX: Final = 16
FRAMES_HELD_MAX: Final = 4096
BLOCKS_HELD_MAX: Final = 64
FRAME_BYTES_MAX: Final = 65_536
WAIT_NS: Final = 20_000_000
"""How long a gap waits for its block's parity before it is asked for. A block of 64 datagrams takes
a millisecond at full rate; what is published so slowly that it takes longer is asked for in part.
"""

_Topic = Annotated[str, codec.Meta(max_length=255)]
_Count = Annotated[int, codec.Meta(ge=1, le=DATA_MAX)]
_Small = Annotated[int, codec.Meta(ge=0, le=DATA_MAX)]
_Sequence = Annotated[int, codec.Meta(ge=0, le=2**63 - 1)]
_Length = Annotated[int, codec.Meta(ge=1, le=FRAME_BYTES_MAX)]
_Key = tuple[int, str, int]
"""Session, topic, sequence."""


class Parity(codec.Struct, array_like=True):
    """The body of a parity frame."""

    data: _Count
    parity: Annotated[int, codec.Meta(ge=1, le=PARITY_MAX)]
    index: _Small
    topics: Annotated[list[_Topic], codec.Meta(max_length=DATA_MAX)]
    frames: Annotated[list[tuple[_Small, _Sequence, _Length]], codec.Meta(max_length=DATA_MAX)]
    code: bytes


_decode: Final = codec.make_decoder(Parity).decode


def require_codec(parity: int) -> None:
    """Raise `MissingExtraError` where so many parity frames need a package that is not there."""
    if parity > 1 and _zfec() is None:
        raise MissingExtraError("fec_parity", "zfec", "fec", parity)


def overhead_bytes(data: int) -> int:
    """Return how much shorter than a datagram frames are to be, so that parity fits one too."""
    return 72 + 14 * data if data else 0


def _zfec() -> Any:
    try:
        import zfec
    except ImportError:
        return None
    return zfec


def _xor(pieces: Sequence[bytes]) -> bytes:
    total = 0
    for piece in pieces:
        total ^= int.from_bytes(piece, "big")
    return total.to_bytes(len(pieces[0]), "big")


def encode(pieces: Sequence[bytes], parity: int) -> list[bytes]:
    """Return `parity` codes of pieces of one length."""
    if parity == 1:
        return [_xor(pieces)]
    count = len(pieces)
    made: list[bytes] = (
        _zfec()
        .Encoder(count, count + parity)
        .encode(list(pieces), list(range(count, count + parity)))
    )
    return made


def decode(
    known: dict[int, bytes], codes: dict[int, bytes], count: int, parity: int
) -> dict[int, bytes]:
    """Return the pieces that are not known, by their index; empty where too many are not.

    `known` has pieces by index (0 to count - 1), `codes` codes by index (0 to parity - 1).
    """
    missing = [index for index in range(count) if index not in known]
    if not missing or len(codes) < len(missing):
        return {}
    if parity == 1:
        return {missing[0]: _xor([*known.values(), *codes.values()])}
    package = _zfec()
    if package is None:
        return {}
    blocks = dict(known)
    for index, code in sorted(codes.items())[: len(missing)]:
        blocks[count + index] = code
    numbers = sorted(blocks)[:count]
    found = package.Decoder(count, count + parity).decode([blocks[n] for n in numbers], numbers)
    return {index: found[index] for index in missing}


class ParityMaker:
    """Gathers what a publisher sends into blocks.

    Args:
        session: the publisher's.
        data, parity: how many frames make a block, and how many follow it.

    Attributes:
        blocks: blocks that parity was made of.

    """

    def __init__(self, session: int, data: int, parity: int) -> None:
        self._session = session
        self._data = data
        self._parity = parity
        self._frames: list[bytes] = []
        self.blocks = 0

    def follow(self, frame: bytes) -> list[bytes]:
        """Return the parity frames that follow a frame: none, or those of a block that is full.

        A heartbeat, which comes where data pause, ends the block.
        """
        kind = frame[frame.index(b"\0") + 4]
        if kind == Kind.DATA:
            self._frames.append(frame)
        if self._frames and (len(self._frames) == self._data or kind == Kind.HEARTBEAT):
            return self._make()
        return []

    def _make(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        size = max(map(len, frames))
        codes = encode([frame.ljust(size, b"\0") for frame in frames], self._parity)
        topics: dict[str, int] = {}
        rows = []
        for data in frames:
            frame = Frame(data)
            rows.append((topics.setdefault(frame.topic, len(topics)), frame.sequence, len(data)))
        self.blocks += 1
        return [
            wire.control_frame(
                Kind.PARITY,
                self._session,
                Parity(len(frames), self._parity, index, list(topics), rows, code),
                sequence=self.blocks,
            )
            for index, code in enumerate(codes)
        ]


class ParityReader:
    """Works out what a subscriber has lost, from what it has and the parity that comes.

    Attributes:
        recovered: messages that were missing and were worked out.

    """

    def __init__(self) -> None:
        self._held: OrderedDict[_Key, bytes] = OrderedDict()
        self._blocks: OrderedDict[tuple[int, int], dict[int, bytes]] = OrderedDict()
        self.recovered = 0

    def note(self, session: int, topic: str, sequence: int, frame: bytes) -> None:
        """Remember a frame that came, for a while."""
        self._held[session, topic, sequence] = frame
        if len(self._held) > FRAMES_HELD_MAX:
            self._held.popitem(last=False)

    def take(self, frame: Frame, wants: Callable[[bytes], bool]) -> list[bytes]:
        """Take a parity frame; returns frames that were lost. `FrameError` where it is malformed.

        Blocks with topics that are not wanted cannot be used: their frames were not kept.
        """
        try:
            body = _decode(memoryview(frame.data)[frame.body_at :])
        except (codec.CodecError, ValueError):
            raise FrameError("parity") from None
        size = len(body.code)
        if body.index >= body.parity or len(body.frames) != body.data:
            raise FrameError("parity")
        if any(at >= len(body.topics) or length > size for at, _, length in body.frames):
            raise FrameError("parity")
        if not all(wants(topic.encode()) for topic in body.topics):
            return []
        codes = self._blocks.setdefault((frame.session, frame.sequence), {})
        if any(len(code) != size for code in codes.values()):
            raise FrameError("parity")
        codes[body.index] = body.code
        if len(self._blocks) > BLOCKS_HELD_MAX:
            self._blocks.popitem(last=False)
        known: dict[int, bytes] = {}
        for index, (at, sequence, length) in enumerate(body.frames):
            held = self._held.get((frame.session, body.topics[at], sequence))
            if held is not None and len(held) == length:
                known[index] = held.ljust(size, b"\0")
        found = decode(known, codes, body.data, body.parity)
        return [piece[: body.frames[index][2]] for index, piece in found.items()]
