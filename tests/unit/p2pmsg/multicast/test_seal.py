"""Sealed datagrams: what is opened, and what is not."""

import struct
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pmsg.errors import MissingExtraError
from p2pmsg.multicast import seal
from p2pmsg.multicast.run import SEAL_MAGIC, SEAL_OVERHEAD_BYTES
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


@pytest.mark.parametrize("cipher", CIPHERS)
def test_a_datagram_is_opened_once(cipher):
    sealer, opener = pair(cipher)
    made = sealer.seal(b"a frame")
    assert len(made) == len(b"a frame") + SEAL_OVERHEAD_BYTES
    assert b"frame" not in made
    assert opener.open(made) == b"a frame"
    with pytest.raises(FrameError, match="replayed"):
        opener.open(made)


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


def test_one_sealed_with_another_key_is_not_opened_even_if_it_says_the_same_id():
    sealer, opener = pair(seed=1)
    stranger = SealingKey(make_secret("aes-128-gcm", Random(2)))
    forged = sealer.seal(b"x")[:16] + stranger.seal(b"a frame")[16:]
    with pytest.raises(FrameError, match="unauthentic"):
        opener.open(forged)


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


def test_a_train_ends_where_another_key_begins():
    sealer, opener = pair()
    other = SealingKey(make_secret("aes-128-gcm", Random(2)))
    train = memoryview(b"".join([sealer.seal(b"1"), sealer.seal(b"2"), other.seal(b"3")]))
    opened = opener.open_train(0, train, 0, 33, Counter())
    assert (opened.frames, opened.after) == (b"12", 66)
    assert opener.open_train(0, train, 66, 33, Counter()) is None


def test_the_copies_of_two_lines_are_both_opened():
    sealer, opener = pair()
    made = sealer.seal(b"a frame")
    assert opener.open(made, 0) == opener.open(made, 1) == b"a frame"


def test_a_late_joiner_opens_nothing_from_before_it_had_the_key():
    sealer, opener = pair(first=2)
    before, _, after = (sealer.seal(b"%d" % number) for number in range(3))
    with pytest.raises(FrameError, match="replayed"):
        opener.open(before)
    assert opener.open(after) == b"2"


def test_a_train_is_sealed_as_its_datagrams_one_by_one():
    one, _ = pair()
    many, _ = pair()
    frames = [b"%05d" % number for number in range(5)]
    assert b"".join(many.seal_train(frames)) == b"".join(map(one.seal, frames))
    assert many.counter == one.counter == 5
    assert many.seal_train([]) == []
    assert many.counter == 5


def test_a_frame_that_cannot_be_sealed_takes_its_counter_along():
    sealer, opener = pair()
    with pytest.raises(TypeError):
        sealer.seal("no bytes")
    assert sealer.counter == 1
    assert opener.open(sealer.seal(b"a frame")) == b"a frame"


def test_a_key_shows_nothing_of_itself():
    sealer, opener = pair()
    secret = sealer.secret
    assert repr(secret) == f"Secret({secret.id.hex()})"
    for one in (sealer, opener, secret, [secret], {"key": secret}):
        assert secret.key.hex() not in f"{one!r}{one}"
        assert repr(secret.key) not in f"{one!r}{one}"


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


@given(st.lists(st.integers(0, 2**64 - 1), max_size=5))
def test_a_counter_beyond_the_last_one_is_never_taken(counters):
    window = ReplayWindow()
    for counter in counters:
        if counter > seal.COUNTER_MAX:
            with pytest.raises(FrameError, match="stale"):
                window.check(counter)


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


def test_a_key_whose_counters_are_used_up_seals_nothing_that_is_taken():
    """It is changed 2^31 times sooner; no counter ever comes again."""
    secret = make_secret(CIPHERS[0], Random(1))
    opener = OpeningKey(secret, 7, first=seal.COUNTER_MAX - 1)
    sealer = SealingKey(secret, seal.COUNTER_MAX)
    assert opener.open(sealer.seal(b"the last")) == b"the last"
    with pytest.raises(FrameError, match="stale"):
        opener.open(sealer.seal(b"beyond"))
