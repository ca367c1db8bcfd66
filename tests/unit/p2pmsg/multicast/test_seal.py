"""Sealed and signed datagrams: what is opened, and what is not."""

import struct
from collections import Counter
from hashlib import sha256
from random import Random

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.errors import MissingExtraError
from p2pmsg.multicast import seal
from p2pmsg.multicast.run import SEAL_MAGIC
from p2pmsg.multicast.seal import (
    CIPHERS,
    COUNTER_MAX,
    WINDOW,
    OpeningKey,
    ReplayWindow,
    SealingKey,
    Secret,
    make_secret,
)
from p2pmsg.multicast.signing import (
    BLOCK_MAX,
    BLOCKS_MAX,
    BlockSigner,
    BlockVerifier,
    SignedSealingKey,
)
from p2pmsg.wire import FrameError


def pair(cipher=CIPHERS[0], seed=1, first=0):
    secret = make_secret(cipher, Random(seed))
    return SealingKey(secret), OpeningKey(secret, 7, first=first)


def test_the_layout_of_what_is_sealed_is_that_of_the_protocol_page():
    secret = Secret(b"KEY1", "aes-128-gcm", b"salt", bytes(range(16)))
    made = SealingKey(secret, counter=5).seal(b"a frame")
    assert made[:16] == SEAL_MAGIC + b"KEY1" + struct.pack("!Q", 5)
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = b"salt" + struct.pack("!Q", 5)
    assert AESGCM(secret.key).decrypt(nonce, made[16:], made[:16]) == b"a frame"


@pytest.mark.parametrize("cipher", CIPHERS)
@given(st.data())
def test_nothing_that_was_changed_or_cut_is_opened(cipher, data):
    sealer, opener = pair(cipher)
    made = sealer.seal(data.draw(st.binary(max_size=50)))
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, 8 * len(made) - 1))
        changed = bytearray(made)
        changed[at // 8] ^= 1 << at % 8
    else:
        changed = made[: data.draw(st.integers(0, len(made) - 1))]
    with pytest.raises(FrameError):
        opener.open(bytes(changed))
    assert opener.window(0).following == 0  # nobody moves the window without the key
    opener.open(made)


def test_those_of_a_train_that_are_forged_or_replayed_are_left_out_and_counted():
    sealer, opener = pair()
    made = [sealer.seal(b"%05d" % number) for number in range(6)]
    made[2] = made[2][:-1] + bytes((made[2][-1] ^ 1,))
    train = memoryview(b"".join([*made, made[0], sealer.seal(b"end")]))
    invalid = Counter()
    opened = opener.open_train(0, train, 0, len(made[0]), invalid)
    assert (opened.frames, opened.segment, opened.datagrams) == (b"00000" b"00001" b"00003" b"00004"
                                                                 b"00005" b"end", 5, 6)  # fmt: skip
    assert opened.after == len(train)
    assert invalid == {"unauthentic": 1, "replayed": 1}


def test_a_frame_that_cannot_be_sealed_takes_its_counter_along():
    sealer, opener = pair()
    with pytest.raises(TypeError):
        sealer.seal("no bytes")
    sealed = sealer.seal(b"a frame")
    assert (int.from_bytes(sealed[8:16], "big"), sealer.counter) == (1, 2)
    assert opener.open(sealed) == b"a frame"


def test_without_the_package_an_error_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers", None)
    with pytest.raises(MissingExtraError, match=r"p2pmsg\[security\]"):
        seal.require_cryptography()


class SlowWindow:
    """Remembers all."""

    def __init__(self):
        self.taken, self.following = set(), 0

    def takes(self, counter):
        if counter < self.following - WINDOW or counter in self.taken:
            return False
        self.taken.add(counter)
        self.following = max(self.following, counter + 1)
        return True


near = st.integers(-20, 20) | st.sampled_from([-WINDOW - 1, -WINDOW, 1 - WINDOW, WINDOW, 70_000])


@given(st.lists(near, max_size=60))
def test_a_window_takes_each_counter_once_and_none_that_is_too_old(steps):
    window, model = ReplayWindow(), SlowWindow()
    for step in steps:
        counter = max(0, model.following + step)
        try:
            window.check(counter)
        except FrameError:
            taken = False
        else:
            taken = True
            window.note(counter)
        assert taken == model.takes(counter)
        assert window.following == model.following


def test_a_window_keeps_a_bounded_number_of_ranges():
    window = ReplayWindow()
    for counter in range(1, 2 * WINDOW, 2):
        window.check(counter)
        window.note(counter)
    assert len(window._missing) <= WINDOW // 2 + 1


@pytest.mark.parametrize(
    ("processor", "cipher"),
    [
        ("processor : 0\nflags\t\t: fpu vme aes avx\n", "aes-128-gcm"),
        ("Features\t: fp asimd aes pmull\n", "aes-128-gcm"),
        ("flags\t\t: fpu vme avx vaes\n", "chacha20-poly1305"),
        ("model name : aes\n", "chacha20-poly1305"),
        ("", "chacha20-poly1305"),
    ],
)
def test_the_cipher_is_the_one_that_the_processor_has_instructions_for(processor, cipher):
    assert seal.pick_cipher(processor) == cipher


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


def test_the_layout_of_what_is_signed_is_that_of_the_protocol_page():
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
