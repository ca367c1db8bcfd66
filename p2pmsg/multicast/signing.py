"""Datagrams that their publisher has signed, many at once. Pure: no I/O, no clock.

All members of a sealed group know its key, so each of them could seal what it likes. Where they do
not trust one another, the publisher signs: the datagrams of a train are the leaves of a hash tree,
whose root has one Ed25519 signature, and each carries what proves it alone. Sealed is then::

    frame | zeros | path (16 × levels) | signature (64) | index (1) | levels (1)

So what is lost leaves all others verifiable, nothing waits, and nothing is kept of a datagram that
is not verified. A leaf is the hash of the datagram's header, too: with another key or counter it is
another one, so members cannot repeat what was signed.

Hashes are the first 16 bytes of SHA-256. To forge takes a second preimage, since each signed
datagram has a counter and a time in ns that nobody else chooses.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from p2pmsg.multicast.run import SEAL_OVERHEAD_BYTES
from p2pmsg.multicast.seal import (
    SealingKey,
    Secret,
    make_header,
    make_nonce,
    require_cryptography,
)
from p2pmsg.wire import FrameError

KEY_BYTES: Final = 32
BLOCK_MAX: Final = 64
"""Datagrams that have one signature: as many as a train has."""
BLOCKS_MAX: Final = 64
"""Blocks whose verified hashes are remembered, 128 of each at most; the oldest goes first."""
_HASH_BYTES: Final = 16
_SIGNATURE_BYTES: Final = 64
_LEVELS_MAX: Final = (BLOCK_MAX - 1).bit_length()
_END_BYTES: Final = _SIGNATURE_BYTES + 2
PROOF_BYTES_MAX: Final = _LEVELS_MAX * _HASH_BYTES + _END_BYTES
"""By how much a signed datagram is larger than one that is sealed only, at most."""
_CONTEXT: Final = b"p2pmsg signed datagrams 1\0"
"""What is signed begins so; then come the number of levels and the root."""


def hash_leaf(header: bytes, content: bytes | memoryview) -> bytes:
    """Return the hash of a datagram with this header."""
    return sha256(b"".join((b"\0", header, content))).digest()[:_HASH_BYTES]


def hash_node(left: bytes, right: bytes) -> bytes:
    """Return the hash of two hashes."""
    return sha256(b"\1" + left + right).digest()[:_HASH_BYTES]


def _empty_hashes() -> list[bytes]:
    """Return what stands in each level of a tree for what has no leaves."""
    made = [bytes(_HASH_BYTES)]
    while len(made) <= _LEVELS_MAX:
        made.append(hash_node(made[-1], made[-1]))
    return made


_EMPTY: Final = _empty_hashes()


def levels_of(count: int) -> int:
    """Return how many levels a tree of so many leaves has above them."""
    return (count - 1).bit_length()


class BlockSigner:
    """Signs blocks of datagrams; its text shows nothing of the key.

    Args:
        secret: 32 bytes.

    Attributes:
        public: 32 bytes, by which others verify.

    """

    __slots__ = ("_sign", "public")

    def __init__(self, secret: bytes) -> None:
        require_cryptography()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(secret)
        self._sign: Callable[[bytes], bytes] = key.sign
        self.public: bytes = key.public_key().public_bytes_raw()

    def __repr__(self) -> str:
        return "BlockSigner(…)"

    def prove(self, leaves: list[bytes]) -> list[bytes]:
        """Return what each of 1 to `BLOCK_MAX` leaves has as its proof."""
        levels = levels_of(len(leaves))
        rows, row = [], list(leaves)
        for empty in _EMPTY[:levels]:
            if len(row) % 2:
                row.append(empty)
            rows.append(row)
            row = [hash_node(row[at], row[at + 1]) for at in range(0, len(row), 2)]
        level = bytes((levels,))
        proofs = [self._sign(_CONTEXT + level + row[0])]
        for row in reversed(rows):
            proofs = [row[at ^ 1] + proofs[at >> 1] for at in range(len(row))]
        return [
            proof + bytes((index,)) + level for index, proof in enumerate(proofs[: len(leaves)])
        ]


class BlockVerifier:
    """Verifies datagrams one by one; each signature once.

    Args:
        public: the key of who signs, 32 bytes.

    """

    __slots__ = ("_blocks", "_invalid", "_verify", "public")

    def __init__(self, public: bytes) -> None:
        require_cryptography()
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self.public = public
        self._verify: Callable[[bytes, bytes], None] = Ed25519PublicKey.from_public_bytes(
            public
        ).verify
        self._invalid: type[Exception] = InvalidSignature
        # By signature and levels: verified hashes by their place, the root at 1, and below the
        # one at n those at 2 n and 2 n + 1.
        self._blocks: OrderedDict[bytes, dict[int, bytes]] = OrderedDict()

    def verify(self, header: bytes, content: bytes) -> int:
        """Return how many bytes at the end of `content` prove it; `FrameError` where none do."""
        levels = content[-1] if content else _LEVELS_MAX + 1
        size = levels * _HASH_BYTES + _END_BYTES
        at = len(content) - size
        if levels > _LEVELS_MAX or at < 0 or content[-2] >> levels:
            raise FrameError("signature")
        node = hash_leaf(header, content[:at])
        place = 1 << levels | content[-2]
        block = content[-_END_BYTES:-2] + content[-1:]
        known = self._blocks.get(block, {})
        found = {place: node}
        while place not in known and place > 1:
            sibling = content[at : at + _HASH_BYTES]
            at += _HASH_BYTES
            found[place ^ 1] = sibling
            node = hash_node(sibling, node) if place % 2 else hash_node(node, sibling)
            place >>= 1
            found[place] = node
        if not known:
            try:
                self._verify(block[:-1], _CONTEXT + block[-1:] + node)
            except self._invalid:
                raise FrameError("signature") from None
            self._blocks[block] = found
            if len(self._blocks) > BLOCKS_MAX:
                self._blocks.popitem(last=False)
        elif known[place] != node:
            raise FrameError("signature")
        else:
            known.update(found)
        return size


class SignedSealingKey(SealingKey):
    """Seals datagrams that are signed first, those of a train at once."""

    __slots__ = ("_signer",)
    overhead_max = SEAL_OVERHEAD_BYTES + PROOF_BYTES_MAX

    def __init__(self, secret: Secret, signer: BlockSigner, counter: int = 0) -> None:
        super().__init__(secret, counter)
        self._signer = signer

    @staticmethod
    def overhead_bytes(count: int) -> int:
        """Return by how much each of `count` datagrams of a train is larger than its frame."""
        return SEAL_OVERHEAD_BYTES + _END_BYTES + _HASH_BYTES * levels_of(count)

    def seal_train(self, frames: Iterable[bytes | memoryview]) -> list[bytes]:
        """Return the parts of the datagrams of many frames; up to `BLOCK_MAX` have a signature."""
        every = list(frames)
        pieces: list[bytes] = []
        encrypt, salt = self._encrypt, self._salt
        for start in range(0, len(every), BLOCK_MAX):
            block = every[start : start + BLOCK_MAX]
            counters = [self._take() for _ in block]
            headers = [make_header(self._lead, counter) for counter in counters]
            self.counter = counters[-1] + 1
            proofs = self._signer.prove([*map(hash_leaf, headers, block)])
            for counter, header, frame, proof in zip(counters, headers, block, proofs, strict=True):
                content = b"".join((frame, proof))
                pieces += (header, encrypt(make_nonce(salt, counter), content, header))
        return pieces
