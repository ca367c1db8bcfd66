"""The keys of a sealed group: who has which, and when the next one is used."""

from collections import Counter
from random import Random

import pytest

from p2pmsg.multicast import group_keys, keys
from p2pmsg.multicast.group_keys import AGAIN_NS, CONFIRM_NS, ROTATE_NS, GroupKeys
from p2pmsg.multicast.keys import Keyring, Keys, KeysHeld, read_keys
from p2pmsg.multicast.seal import AES, SealingKey, make_secret
from p2pmsg.wire import Frame, FrameError, Kind, control_frame

SESSION, INCARNATION = 5, 9


class Group:
    """A publisher's keys and subscribers, over a channel that loses nothing."""

    def __init__(self, **others):
        self.now_ns = 10**9
        self.keys = GroupKeys(SESSION, INCARNATION, AES, Random(1), now_ns=self.now_ns, **others)
        self.rings, self.users = {}, {}

    def join(self, subscriber, user="", joined=True):
        self.rings[subscriber], self.users[subscriber] = Keyring(), user
        assert self.say_held(subscriber)
        self.say_held(subscriber)
        if joined:
            self.keys.admit(subscriber, b"%d" % subscriber, user)
        return self.rings[subscriber]

    def say_held(self, subscriber, ids=None, asks=True):
        """Send KEYS_HELD, and take the answer; returns whether there was one."""
        ring = self.rings[subscriber]
        body = KeysHeld(subscriber, ring.ids(SESSION) if ids is None else ids, asks)
        frame = Frame(control_frame(Kind.KEYS_HELD, SESSION, body))
        answer = self.keys.receive_held(
            b"%d" % subscriber, frame, now_ns=self.now_ns, user=self.users[subscriber]
        )
        if answer is not None:
            ring.take(SESSION, read_keys(Frame(answer)))
        return answer is not None

    def tick(self, answer=True, lose=()):
        """Handle the timer; those not in `lose` take what they are sent, and perhaps answer."""
        sent = self.keys.handle_timer(now_ns=self.now_ns)
        for requester, frame in sent:
            if int(requester) not in lose:
                body = read_keys(Frame(frame))
                self.rings[int(requester)].take(SESSION, body)
                if answer:
                    assert not self.say_held(int(requester), asks=False)
        return [int(requester) for requester, _ in sent]

    def opens(self, subscriber, datagram):
        invalid = Counter()
        view = memoryview(datagram)
        opened = self.rings[subscriber].open_train(0, view, 0, len(view), invalid)
        return opened is not None and opened.datagrams == 1


def test_the_next_key_is_used_once_all_who_joined_have_confirmed_it():
    group = Group()
    for subscriber in (1, 2):
        group.join(subscriber)
    group.join(3, joined=False)
    former = group.keys.group
    group.keys.rotate(now_ns=group.now_ns)
    assert sorted(group.tick(answer=False)) == [1, 2, 3]
    assert group.keys.group is former
    assert group.keys.next_deadline_ns() == group.now_ns + AGAIN_NS
    group.say_held(1)
    group.tick()
    assert group.keys.group is former
    group.say_held(2)
    assert group.keys.next_deadline_ns() <= group.now_ns
    group.tick()
    assert group.keys.group is not former
    assert (group.keys.rotations, group.keys.unconfirmed) == (1, 0)
    datagram = group.keys.group.seal(b"a frame")
    assert all(group.opens(subscriber, datagram) for subscriber in (1, 2, 3))


def rotating(*subscribers):
    """Return a group that they have joined, whose next key was just made, and its former one."""
    group = Group()
    for subscriber in subscribers:
        group.join(subscriber)
    former = group.keys.group
    group.keys.rotate(now_ns=group.now_ns)
    return group, former


def test_one_that_does_not_confirm_holds_nobody_up_for_longer_than_that():
    group, former = rotating(1, 2)
    group.tick(lose=[2])
    group.now_ns += CONFIRM_NS - 1
    group.tick(lose=[2])
    assert group.keys.group is former
    group.now_ns += 1
    group.tick(lose=[2])
    assert group.keys.group is not former
    assert group.keys.unconfirmed == 1
    datagram = group.keys.group.seal(b"a frame")
    assert group.opens(1, datagram)
    assert not group.opens(2, datagram)
    assert group.say_held(2)  # it asks, as it has seen that
    assert group.opens(2, group.keys.group.seal(b"a frame"))


def test_nobody_takes_the_place_of_another_users_subscriber():
    """Else it would be sent the next key, whether it may have it or not."""
    group = Group()
    group.join(1, "a user", joined=False)
    group.rings[2], group.users[2] = Keyring(), "another"
    with pytest.raises(FrameError, match="subscriber"):
        group.keys.admit(1, b"2", "another")
    body = KeysHeld(1, [], True)
    frame = Frame(control_frame(Kind.KEYS_HELD, SESSION, body))
    with pytest.raises(FrameError, match="subscriber"):
        group.keys.receive_held(b"2", frame, now_ns=group.now_ns, user="another")
    group.keys.rotate(now_ns=group.now_ns)
    assert group.tick() == [1]


def test_a_former_key_opens_nothing_once_a_later_one_was_used():
    group = Group()
    group.join(1)
    group.join(2, "removed")
    former = group.keys.group
    late, later = (former.seal(b"a frame") for _ in range(2))
    before = read_keys(Frame(group.keys._keys_of()))
    group.keys.revoke("removed", now_ns=group.now_ns)
    for _ in range(2):
        group.tick(lose=[2])
    assert group.keys.group is not former
    assert group.opens(1, late)  # what was sealed before comes first
    assert group.opens(1, group.keys.group.seal(b"a frame"))
    forged = SealingKey(former.secret, former.counter).seal(b"forged")
    assert not group.opens(1, forged)
    assert not group.opens(1, later)  # it is asked for, and comes with the key in use
    assert len(group.rings[1].ids(SESSION)) == 2
    group.rings[1].take(SESSION, before)  # which was late, too
    assert not group.opens(1, forged)


@pytest.mark.parametrize("why", ["time", "count"])
def test_a_key_is_not_used_for_ever(why, monkeypatch):
    monkeypatch.setattr(group_keys, "DATAGRAMS_MAX", 3)
    group = Group()
    group.join(1)
    assert group.keys.next_deadline_ns() == group.now_ns + ROTATE_NS
    if why == "time":
        group.now_ns += ROTATE_NS
    else:
        group.keys.group.seal_train([b"a frame"] * 3)
    group.tick()
    group.tick()
    assert group.keys.rotations == 1


def test_a_user_that_may_not_subscribe_gets_no_keys():
    group = Group(admits=lambda user: user == "one")
    group.join(1, "one")
    with pytest.raises(FrameError, match="access"):
        group.join(2, "two")
    assert group.keys.receivers == 1


def test_who_asks_for_keys_and_never_joins_takes_a_bounded_space(monkeypatch):
    monkeypatch.setattr(group_keys, "UNJOINED_MAX", 3)
    group = Group()
    group.join(0)
    for subscriber in range(1, 10):
        group.join(subscriber, joined=False)
    assert group.keys.receivers == 4
    monkeypatch.setattr(group_keys, "HOLDERS_MAX", 4)
    for subscriber in (7, 8, 9):
        group.keys.admit(subscriber, b"")
    with pytest.raises(FrameError, match="subscribers"):
        group.join(10)


def test_a_publisher_cannot_take_the_place_of_anothers_key():
    group = Group()
    ring = group.join(1)
    stolen = group.keys.group.secret
    for secret in (stolen, make_secret(AES, Random(3))._replace(id=stolen.id)):
        entry = keys.entry_of(secret, 0)
        own = keys.entry_of(make_secret(AES, Random(4)), 0)
        with pytest.raises(FrameError, match="keys"):
            ring.take(SESSION + 1, Keys(INCARNATION, [entry], own))
    assert not ring.holds(SESSION + 1)
    assert group.opens(1, group.keys.group.seal(b"a frame"))


def test_bounds_of_what_a_subscriber_holds(monkeypatch):
    monkeypatch.setattr(keys, "SESSIONS_MAX", 2)
    monkeypatch.setattr(keys, "OWN_MAX", 2)
    ring, rng = Keyring(), Random(1)

    def body(order):
        secrets = [make_secret(AES, rng) for _ in range(2)]
        return Keys(INCARNATION, [keys.entry_of(secrets[0], order)], keys.entry_of(secrets[1], 0))

    for order in range(20):
        ring.take(SESSION, body(order))
    assert len(ring.ids(SESSION)) == 1 + keys.KEYS_MAX
    ring.take(SESSION + 1, body(0))
    with pytest.raises(FrameError, match="sessions"):
        ring.take(SESSION + 2, body(0))
    assert len(ring._used) <= 2


@pytest.mark.parametrize(
    "entry",
    [
        keys.KeyEntry(b"1234", "rot13", b"1234", bytes(16), 0),
        keys.KeyEntry(b"1234", "aes-128-gcm", b"1234", bytes(32), 0),
        keys.KeyEntry(b"1234", "chacha20-poly1305", b"1234", bytes(16), 0),
        keys.KeyEntry(b"123", "aes-128-gcm", b"1234", bytes(16), 0),
    ],
)
def test_malformed_keys_are_refused(entry):
    good = keys.entry_of(make_secret(AES, Random(1)), 0)
    for body in (Keys(INCARNATION, [entry], good), Keys(INCARNATION, [good], entry)):
        ring = Keyring()
        with pytest.raises(FrameError):
            ring.take(SESSION, read_keys(Frame(control_frame(Kind.KEYS, SESSION, body))))
        assert not ring.holds(SESSION)


def test_what_a_group_signs_is_taken_only_with_its_signature():
    group = Group(signed=True)
    group.join(1)
    keys = group.keys
    assert group.opens(1, keys.group.seal(b"a frame"))
    forged = SealingKey(keys.group.secret, keys.group.counter)
    assert not group.opens(1, forged.seal(b"a frame"))
    keys.rotate(now_ns=group.now_ns)
    group.tick()
    group.tick()
    assert keys.rotations == 1
    assert group.opens(1, keys.group.seal(b"a frame"))


def test_who_signs_changes_only_with_its_process():
    group = Group(signed=True)
    ring = group.join(1)
    body = read_keys(Frame(group.keys._keys_of()))
    for signer in (None, bytes(32)):
        other = Keys(body.incarnation, body.group, None, signer)
        with pytest.raises(FrameError, match="keys"):
            ring.take(SESSION, other)
    started_again = GroupKeys(SESSION, INCARNATION + 1, AES, Random(2), now_ns=1, signed=True)
    ring.take(SESSION, read_keys(Frame(started_again._keys_of())))
    assert group.opens(1, group.keys.group.seal(b"it was on its way"))
    assert group.opens(1, started_again.group.seal(b"a frame"))
