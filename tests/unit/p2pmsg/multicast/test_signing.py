"""Signed datagrams: each is verified alone, and nobody but the publisher makes one."""

from collections import Counter
from hashlib import sha256
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.multicast.seal import COUNTER_MAX, OpeningKey, SealingKey, make_secret
from p2pmsg.multicast.signing import (
    BLOCK_MAX,
    BLOCKS_MAX,
    BlockSigner,
    BlockVerifier,
    SignedSealingKey,
)
from p2pmsg.wire import FrameError

SECRET = make_secret("aes-128-gcm", Random(1))
SIGNER = BlockSigner(bytes(range(32)))


def opening(first=0):
    return OpeningKey(SECRET, 7, first=first, verify=BlockVerifier(SIGNER.public).verify)


def sealed(frames, counter=0):
    """Return the datagrams of a block."""
    pieces = SignedSealingKey(SECRET, SIGNER, counter).seal_train(frames)
    return [a + b for a, b in zip(pieces[::2], pieces[1::2], strict=True)]


def content_of(datagram):
    """Return what a member of the group sees."""
    return OpeningKey(SECRET, 0).open(datagram)


def frames_of(count, size=20):
    return [b"%0*d" % (size, number) for number in range(count)]


@given(st.integers(1, BLOCK_MAX), st.randoms())
def test_each_datagram_of_a_block_is_opened_alone_in_any_order_whatever_was_lost(count, rng):
    frames = frames_of(count)
    came = [*zip(frames, sealed(frames), strict=True)]
    rng.shuffle(came)
    opener = opening()
    for frame, datagram in came[rng.randrange(count) :]:
        assert opener.open(datagram) == frame
        with pytest.raises(FrameError, match="replayed"):
            opener.open(datagram)


@pytest.mark.parametrize("count", [1, 2, 3, 45, BLOCK_MAX, BLOCK_MAX + 1, 3 * BLOCK_MAX])
def test_a_train_is_opened_at_once_with_one_signature_for_each_block(count, monkeypatch):
    verified = []
    opener = opening()
    verify = opener._verify.__self__._verify
    opener._verify.__self__._verify = lambda *parts: (verified.append(parts), verify(*parts))
    frames = [*frames_of(count - 1), b"short"]
    train = sealed(frames)
    got, at, data, invalid = b"", 0, memoryview(b"".join(train)), Counter()
    while at < len(data):
        # The kernel joins datagrams of one size, whatever block they are of.
        opened = opener.open_train(0, data[: at + len(train[0])], at, len(train[0]), invalid)
        got += opened.frames
        at = opened.after
        if at + len(train[0]) > len(data):
            got += opener.open(train[-1]) if at < len(data) else b""
            break
    assert got == b"".join(frames)
    assert len(verified) == -(-count // BLOCK_MAX)
    assert not invalid


def test_the_layout_is_that_of_the_protocol_page():
    frames = [b"one", b"two", b"three"]
    datagrams = sealed(frames)
    leaves = [
        sha256(b"\0" + made[:16] + frame).digest()[:16]
        for made, frame in zip(datagrams, frames, strict=True)
    ]
    leaves.append(bytes(16))
    pairs = [sha256(b"\1" + leaves[at] + leaves[at + 1]).digest()[:16] for at in (0, 2)]
    root = sha256(b"\1" + pairs[0] + pairs[1]).digest()[:16]
    content = content_of(datagrams[2])
    assert content[:5] == b"three"
    path, signature, index, levels = content[5:37], content[37:101], content[101], content[102]
    assert (path, index, levels) == (leaves[3] + pairs[0], 2, 2)
    verifier = Ed25519PublicKey.from_public_bytes(SIGNER.public)
    verifier.verify(signature, b"p2pmsg signed datagrams 1\0\x02" + root)


class Member:
    """Has the group's key, and all that was sent; forges what the publisher has not signed."""

    def __init__(self):
        self.frames = frames_of(5)
        self.heard = sealed(self.frames)
        self.contents = [*map(content_of, self.heard)]
        self.proof = len(self.contents[0]) - len(self.frames[0])

    def seal(self, content, counter):
        return SealingKey(SECRET, counter).seal(content)


def forgeries(member, rng):
    """Yield datagrams, each of which the key of the group opens."""
    content, proof = member.contents[1], member.proof
    yield member.seal(b"forged", 9)
    yield member.seal(b"", 9)
    yield member.seal(b"forged" + content[-proof:], 1)  # with a proof of another frame
    yield member.seal(content, 9)  # another counter
    yield member.seal(content[:-1] + b"\7", 1)
    yield member.seal(content[:-1] + b"\0", 1)
    yield member.seal(content[:-2] + b"\x40\3", 1)
    yield member.seal(content[:-2] + b"\2" + content[-1:], 1)
    yield SignedSealingKey(SECRET, BlockSigner(rng.randbytes(32)), 1).seal(member.frames[1])
    yield member.seal(b"forged" + content[-proof:], COUNTER_MAX)
    frame_bytes = len(content) - proof
    for _ in range(50):
        at = rng.choice((rng.randrange(frame_bytes), rng.randrange(-66, 0))) % len(content)
        changed = content[:at] + bytes((content[at] ^ 1 << rng.randrange(8),)) + content[at + 1 :]
        yield member.seal(changed, 1)
    for _ in range(20):
        yield member.seal(rng.randbytes(rng.randrange(300)), rng.randrange(1, 20))


@pytest.mark.parametrize("heard_before", [False, True])
def test_what_a_member_forges_is_refused_and_uses_up_no_counter(heard_before):
    member, opener = Member(), opening()
    if heard_before:
        opener.open(member.heard[0])
    for forged in forgeries(member, Random(2)):
        with pytest.raises(FrameError, match="signature"):
            opener.open(forged)
    for frame, datagram in [*zip(member.frames, member.heard, strict=True)][heard_before:]:
        assert opener.open(datagram) == frame


def test_a_changed_path_of_what_is_known_to_be_signed_opens_just_that():
    member, opener = Member(), opening()
    opener.open(member.heard[0])
    content = member.contents[1]
    at = len(content) - member.proof
    changed = content[:at] + bytes(16) + content[at + 16 :]
    assert opener.open(member.seal(changed, 1)) == member.frames[1]


def test_what_is_remembered_is_bounded_and_nothing_of_what_is_forged():
    opener = opening()
    for counter in range(0, 6 * BLOCKS_MAX, 3):
        for datagram in sealed(frames_of(3), counter):
            opener.open(datagram)
        with pytest.raises(FrameError):
            opener.open(SealingKey(SECRET, counter + 10**6).seal(b"forged" + bytes(66)))
    blocks = opener._verify.__self__._blocks
    assert len(blocks) == BLOCKS_MAX
    assert all(len(block) <= 2 * BLOCK_MAX for block in blocks.values())
