"""A sealed group under any sequence of operations: no nonce twice, and only those it is meant for.

The channel for keys loses, delays and repeats; subscribers begin again, leave and are revoked; a
stranger replays all that was ever sent.
"""

from collections import Counter
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p2pmsg.multicast.group_keys import GroupKeys
from p2pmsg.multicast.keys import Keyring, KeysHeld, read_keys
from p2pmsg.multicast.seal import CIPHERS
from p2pmsg.wire import Frame, FrameError, Kind, control_frame

SESSION = 5
SECOND = 10**9
subscribers = st.integers(1, 2)


class SealedGroup(RuleBasedStateMachine):
    """One publisher, which may be started again, and two subscribers."""

    def __init__(self):
        super().__init__()
        self.now_ns = SECOND
        self.rng = Random(1)
        self.incarnations = 0
        self.seen = {}  # (key, counter) by datagram
        self.sent = []  # datagrams to the group, and who may open them
        self.back, self.answers = [], []
        self.opened = Counter()
        self.rings = {}
        self.start_publisher()
        for subscriber in (1, 2):
            self.rings[subscriber] = Keyring()

    @rule()
    def start_publisher(self):
        self.incarnations += 1
        self.keys = GroupKeys(
            SESSION, self.incarnations, CIPHERS[self.incarnations % 2], self.rng, now_ns=self.now_ns
        )
        self.back.clear()

    def note(self, sealer, datagram):
        nonce = (sealer.secret.key, datagram[8:16])
        assert self.seen.setdefault(nonce, datagram) is datagram
        assert datagram[4:8] == sealer.secret.id

    @rule(count=st.integers(1, 4), again=st.booleans())
    def send(self, count, again):
        frames = [b"the same frame"] * count
        sealer = self.keys.group
        if again:
            made = [sealer.seal(frame) for frame in frames]
        else:
            pieces = sealer.seal_train(frames)
            made = [a + b for a, b in zip(pieces[::2], pieces[1::2], strict=True)]
        for datagram in made:
            self.note(sealer, datagram)
            self.sent.append(datagram)

    def arrive(self, subscriber, made):
        body = read_keys(Frame(made))
        self.rings[subscriber].take(SESSION, body)
        self.send_back(subscriber)

    @rule(subscriber=subscribers, asks=st.booleans(), is_lost=st.booleans())
    def ask(self, subscriber, asks, is_lost):
        """Send KEYS_HELD; its answer may be lost, or late."""
        body = KeysHeld(subscriber, self.rings[subscriber].ids(SESSION), asks)
        frame = Frame(control_frame(Kind.KEYS_HELD, SESSION, body))
        made = self.keys.receive_held(
            b"%d" % subscriber, frame, now_ns=self.now_ns, user=f"user {subscriber}"
        )
        if made is not None:
            self.answers.append((subscriber, made))
            if not is_lost:
                self.arrive(subscriber, made)

    @rule(at=st.integers(0, 5))
    def answer_late(self, at):
        """Have an answer arrive that was lost, or arrived before."""
        if self.answers:
            self.arrive(*self.answers[-1 - at % len(self.answers)])

    @rule(subscriber=subscribers)
    def join(self, subscriber):
        self.keys.admit(subscriber, b"%d" % subscriber, f"user {subscriber}")

    @rule(subscriber=subscribers)
    def cut(self, subscriber):
        self.keys.requester_gone(b"%d" % subscriber)

    @rule(subscriber=subscribers)
    def leave(self, subscriber):
        self.keys.dismiss(subscriber)

    @rule(subscriber=subscribers)
    def begin_again(self, subscriber):
        """Start another process that has the same id; it has another connection."""
        self.answers = [answer for answer in self.answers if answer[0] != subscriber]
        self.rings[subscriber] = Keyring()
        for key in [key for key in self.opened if key[0] == subscriber]:
            del self.opened[key]

    @rule(subscriber=subscribers)
    def forget(self, subscriber):
        self.rings[subscriber].forget(SESSION)
        for key in [key for key in self.opened if key[0] == subscriber]:
            del self.opened[key]

    @rule()
    def rotate(self):
        self.keys.rotate(now_ns=self.now_ns)

    @rule(subscriber=subscribers)
    def revoke(self, subscriber):
        ring, keys = self.rings[subscriber], self.keys
        if not keys.revoke(f"user {subscriber}", now_ns=self.now_ns):
            return
        self.now_ns += SECOND
        keys.handle_timer(now_ns=self.now_ns)
        keys.handle_timer(now_ns=self.now_ns)
        assert keys.group.secret.id not in ring.ids(SESSION)

    @rule(wait=st.sampled_from([0, SECOND // 4, SECOND, 11 * SECOND]))
    def wait(self, wait):
        self.now_ns += wait
        made = self.keys.handle_timer(now_ns=self.now_ns)
        self.answers += [(int(requester), frame) for requester, frame in made]

    @rule(subscriber=subscribers, at=st.integers(0, 30), line=st.integers(0, 1))
    def receive(self, subscriber, at, line):
        """Take one of all that was ever sent: late, again, or out of order."""
        if not self.sent:
            return
        datagram = self.sent[at % len(self.sent)]
        view, invalid = memoryview(datagram), Counter()
        ring = self.rings[subscriber]
        opened = ring.open_train(line, view, 0, len(view), invalid)
        if opened is not None and opened.datagrams:
            assert opened.frames == b"the same frame"
            self.opened[subscriber, line, datagram] += 1
            assert self.opened[subscriber, line, datagram] == 1

    @rule(subscriber=subscribers)
    def send_back(self, subscriber):
        own = self.rings[subscriber].own(SESSION)
        if own is not None:
            datagram = own.seal(b"a request")
            self.note(own, datagram)
            self.back.append((subscriber, datagram))

    @rule(at=st.integers(0, 30))
    def receive_back(self, at):
        if not self.back:
            return
        subscriber, datagram = self.back[at % len(self.back)]
        try:
            assert self.keys.open(datagram) == (subscriber, b"a request")
        except FrameError:
            return
        self.opened[datagram] += 1
        assert self.opened[datagram] == 1

    @invariant()
    def bounds_hold(self):
        keys = self.keys
        assert keys._lacking.keys() <= keys._holders.keys()
        assert keys.receivers <= 2
        assert len(keys._openers) <= 4 * keys.receivers
        assert all(len(ring.ids(SESSION)) <= 9 for ring in self.rings.values())


TestSealedGroup = SealedGroup.TestCase
TestSealedGroup.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
