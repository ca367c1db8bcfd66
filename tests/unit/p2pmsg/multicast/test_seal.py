"""Sealed datagrams: what is opened, and what is not."""

import struct
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.errors import MissingExtraError
from p2pmsg.multicast import seal
from p2pmsg.multicast.run import SEAL_MAGIC
from p2pmsg.multicast.seal import (
    CIPHERS,
    WINDOW,
    OpeningKey,
    ReplayWindow,
    SealingKey,
    Secret,
    make_secret,
)
from p2pmsg.wire import FrameError


def pair(cipher=CIPHERS[0], seed=1, first=0):
    secret = make_secret(cipher, Random(seed))
    return SealingKey(secret), OpeningKey(secret, 7, first=first)


def test_the_layout_is_that_of_the_protocol_page():
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
        seal.require_cryptography("security")


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
