"""What every subscriber's core needs of multicasts, without importing more of them."""

from typing import Final, NamedTuple

from p2pmsg.wire import Frame

SEAL_MAGIC: Final = b"p2s\x01"
"""How a sealed datagram begins; the last byte is the version."""
SEAL_OVERHEAD_BYTES: Final = 32
"""By how much a sealed datagram is larger than its frame: a header of 16 bytes, and a tag."""


class Run(NamedTuple):
    """Datagrams that became one frame: how many there were, and where the next one begins."""

    frame: Frame
    datagrams: int
    after: int


def is_sealed(datagram: bytes | memoryview) -> bool:
    """Whether a datagram says that it is sealed."""
    return datagram[: len(SEAL_MAGIC)] == SEAL_MAGIC
