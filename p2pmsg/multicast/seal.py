"""Sealed datagrams: encrypted and authenticated, each for itself. Pure: no I/O, no clock.

A sealed datagram has a header of 16 bytes, which is authenticated and not encrypted, in network
byte order::

    magic and version (4) | key id (4) | counter (8) | sealed(frame | zeros) | tag (16)

The nonce is a salt of 4 bytes, which belongs to the key, and the counter, which counts *datagrams*:
what is sent again takes a new one, so no nonce is ever used twice with a key. Keys are random and
live no longer than their process. Who opens datagrams takes each counter once, and none that is
more than `WINDOW` below the highest.

It takes the package `cryptography` (extra `security`), which is imported at the first key.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from random import Random
from typing import Any, Final, Literal, NamedTuple, get_args

from p2pmsg.errors import MissingExtraError
from p2pmsg.multicast.run import SEAL_MAGIC, SEAL_OVERHEAD_BYTES, is_sealed
from p2pmsg.wire import FrameError
from recovery import RangeSet

HEADER_BYTES: Final = 16
WINDOW: Final = 65_536
"""How far a datagram may be out of order: 90 MiB of them."""
COUNTER_MAX: Final = 2**63 - 1
ID_BYTES: Final = 4
_SALT_BYTES: Final = 4
_LEAD_BYTES: Final = len(SEAL_MAGIC) + ID_BYTES

Cipher = Literal["aes-128-gcm", "chacha20-poly1305"]
CIPHERS: Final[tuple[Cipher, ...]] = get_args(Cipher)
AES: Final = CIPHERS[0]
KEY_BYTES: Final[dict[str, int]] = {"aes-128-gcm": 16, "chacha20-poly1305": 32}

make_header: Final = struct.Struct("!8sQ").pack
make_nonce: Final = struct.Struct("!4sQ").pack


def pick_cipher(processor: str) -> Cipher:
    """Return the faster cipher: AES-128-GCM where the processor has instructions for it.

    Args:
        processor: what Linux's cpuinfo says.

    """
    for line in processor.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return AES if "aes" in flags.split() else "chacha20-poly1305"
    return "chacha20-poly1305"


def require_cryptography() -> Any:
    """Return the module that has the ciphers; raises `MissingExtraError`."""
    try:
        from cryptography.hazmat.primitives.ciphers import aead
    except ImportError:
        raise MissingExtraError("security", "cryptography", "security") from None
    return aead


class Secret(NamedTuple):
    """A key with all that belongs to it; its text shows the id only.

    Attributes:
        id: 4 bytes that name it in datagrams.
        cipher: what it is for.
        salt: 4 bytes, the first ones of each nonce.
        key: 16 or 32 bytes.

    """

    id: bytes
    cipher: Cipher
    salt: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Secret({self.id.hex()})"

    def check(self) -> None:
        """Raise `FrameError` where its parts do not fit: it came off the wire."""
        if (len(self.id), len(self.salt)) != (ID_BYTES, _SALT_BYTES):
            raise FrameError("keys")
        if len(self.key) != KEY_BYTES.get(self.cipher):
            raise FrameError("keys")


def make_secret(cipher: Cipher, rng: Random) -> Secret:
    """Return a new key; `rng` must be the system's, except in tests."""
    return Secret(
        rng.randbytes(ID_BYTES),
        cipher,
        rng.randbytes(_SALT_BYTES),
        rng.randbytes(KEY_BYTES[cipher]),
    )


def _aead(secret: Secret) -> Any:
    package = require_cryptography()
    kind = package.AESGCM if secret.cipher == AES else package.ChaCha20Poly1305
    return kind(secret.key)


class SealingKey:
    """Seals datagrams. No nonce is used twice, whatever is called and however it ends.

    Attributes:
        secret: the key.
        counter: the counter that the next datagram gets.

    """

    __slots__ = ("_encrypt", "_lead", "_salt", "_take", "counter", "secret")
    overhead_max = SEAL_OVERHEAD_BYTES
    """By how much a datagram may be larger than its frame."""

    def __init__(self, secret: Secret, counter: int = 0) -> None:
        self.secret = secret
        self.counter = counter
        self._encrypt: Callable[[bytes, Any, bytes], bytes] = _aead(secret).encrypt
        self._lead, self._salt = SEAL_MAGIC + secret.id, secret.salt
        # One step, which neither another thread nor a signal can come in between.
        self._take = count(counter).__next__

    @staticmethod
    def overhead_bytes(count: int) -> int:
        """Return by how much each of `count` datagrams of a train is larger than its frame."""
        return SEAL_OVERHEAD_BYTES

    def seal(self, frame: bytes | memoryview) -> bytes:
        """Return the datagram of a frame."""
        return b"".join(self.seal_train((frame,)))

    def seal_train(self, frames: Iterable[bytes | memoryview]) -> list[bytes]:
        """Return the parts of the datagrams of many frames, one after the other."""
        pieces: list[bytes] = []
        take, encrypt, lead, salt = self._take, self._encrypt, self._lead, self._salt
        counter = self.counter - 1
        for frame in frames:
            counter = take()
            header = make_header(lead, counter)
            pieces += (header, encrypt(make_nonce(salt, counter), frame, header))
        self.counter = counter + 1
        return pieces


class ReplayWindow:
    """Which counters were taken; it takes each once, and those too old never.

    Attributes:
        following: the counter after the highest one that was taken.

    """

    __slots__ = ("_missing", "following")

    def __init__(self, following: int = 0) -> None:
        self.following = following
        self._missing = RangeSet()

    def check(self, counter: int) -> None:
        """Raise `FrameError` for a counter that is not to be taken: `stale` or `replayed`."""
        if counter >= self.following:
            if counter > COUNTER_MAX:
                raise FrameError("stale")
        elif counter < self.following - WINDOW:
            raise FrameError("stale")
        elif counter not in self._missing:
            raise FrameError("replayed")

    def note(self, counter: int) -> None:
        """Take a counter that passed the check, once its datagram was authenticated."""
        following = self.following
        if counter < following:
            self._missing.remove(counter, counter + 1)
            return
        self.following = counter + 1
        if counter > following:
            oldest = max(0, counter + 1 - WINDOW)
            if oldest < counter:
                self._missing.add(max(following, oldest), counter)
            if oldest:
                self._missing.remove(0, oldest)


class Opened(NamedTuple):
    """Datagrams of one key that were opened: what they contain, and where the next one begins."""

    key: "OpeningKey"
    frames: bytes
    """Each with its zeros, one after the other."""
    segment: int
    """How long each of them is; the last one may be shorter."""
    datagrams: int
    after: int


class OpeningKey:
    """Opens datagrams, each once on each line.

    Args:
        secret, owner, order: as the attributes.
        first: the counter of the first datagram that is taken.
        verify: `BlockVerifier.verify`, where they are signed. Default None: they are not.

    Attributes:
        secret: the key.
        owner: whose datagrams it opens: a session, or a subscriber.
        order: the later a key of its owner was made, the higher it is.

    """

    __slots__ = (
        "_decrypt", "_first", "_invalid_tag", "_lead", "_salt", "_verify", "_windows", "order",
        "owner", "secret",
    )  # fmt: skip

    def __init__(
        self,
        secret: Secret,
        owner: int,
        *,
        order: int = 0,
        first: int = 0,
        verify: Callable[[bytes, bytes], int] | None = None,
    ) -> None:
        from cryptography.exceptions import InvalidTag

        self.secret = secret
        self.owner = owner
        self.order = order
        self._decrypt: Callable[[bytes, Any, bytes], bytes] = _aead(secret).decrypt
        self._invalid_tag: type[Exception] = InvalidTag
        self._lead, self._salt = SEAL_MAGIC + secret.id, secret.salt
        self._first = first
        self._verify = verify
        self._windows: dict[int, ReplayWindow] = {}

    def window(self, line: int) -> ReplayWindow:
        """Return what was taken on a line; the copies of A and B lines have the same counters."""
        window = self._windows.get(line)
        if window is None:
            window = self._windows[line] = ReplayWindow(self._first)
        return window

    def open(self, datagram: bytes | memoryview, line: int = 0) -> bytes:
        """Return what a datagram contains; `FrameError` where it is forged, cut or replayed."""
        invalid: Counter[str] = Counter()
        view = memoryview(datagram)
        opened = self.open_train(line, view, 0, len(view) or 1, invalid)
        if opened is None or not opened.datagrams:
            raise FrameError(next(iter(invalid), "forged"))
        return opened.frames

    def open_train(
        self, line: int, data: memoryview, at: int, segment: int, invalid: Counter[str]
    ) -> Opened | None:
        """Open the datagrams from `at` on that were sealed with this key; None: the first was not.

        `segment` is how long each is; the last one may be shorter. Those that are forged, cut or
        replayed are left out, and counted in `invalid`. It also ends before another size of proofs.
        The window takes no counter before its signature was verified: else any member could use up
        those of the publisher.
        """
        lead, salt, decrypt, verify = self._lead, self._salt, self._decrypt, self._verify
        proof_bytes = 0
        window = self.window(line)
        following = window.following
        pieces: list[bytes] = []
        first, end = at, len(data)
        while at < end:
            stop = min(at + segment, end)
            header = bytes(data[at : at + HEADER_BYTES])
            if not header.startswith(lead):
                break
            nonce = header[_LEAD_BYTES:]
            counter = int.from_bytes(nonce, "big")
            try:
                if counter != following or counter > COUNTER_MAX or verify is not None:
                    window.following = following
                    window.check(counter)
                    piece = decrypt(salt + nonce, data[at + HEADER_BYTES : stop], header)
                    if verify is not None:
                        size = verify(header, piece)
                        if pieces and size != proof_bytes:
                            break
                        proof_bytes = size
                        piece = piece[:-size]
                    window.note(counter)
                    following = window.following
                else:
                    piece = decrypt(salt + nonce, data[at + HEADER_BYTES : stop], header)
                    following = counter + 1
                pieces.append(piece)
            except FrameError as error:
                invalid[str(error)] += 1
            except (self._invalid_tag, ValueError):
                invalid["unauthentic"] += 1
            at = stop
        window.following = following
        if at == first:
            return None
        frame_bytes = segment - SEAL_OVERHEAD_BYTES - proof_bytes
        return Opened(self, b"".join(pieces), frame_bytes, len(pieces), at)


def key_id(datagram: bytes | memoryview) -> bytes | None:
    """Return which key a datagram was sealed with; None: it was not sealed."""
    return bytes(datagram[len(SEAL_MAGIC) : _LEAD_BYTES]) if is_sealed(datagram) else None
