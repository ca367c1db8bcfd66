"""A publisher's keys: who has which, and when the next one is used. No I/O.

::

    rotate, 24 h, 2^32 datagrams, a peer that is revoked
        ──▶ KEYS(current, next) to all who joined ──KEYS_HELD from all, or 2 s──▶ next is used

So nobody waits for a key whose KEYS arrived. One whose KEYS were lost is sent them again, and asks
for them when it sees datagrams of a key that it does not have. One whose connection is gone is sent
none until it is heard again, and no rotation waits for it.
"""

from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Final

from p2pmsg import wire
from p2pmsg.multicast.keys import SOURCES_MAX, Keys, entry_of, read_held, require_sealed
from p2pmsg.multicast.seal import Cipher, OpeningKey, SealingKey, Secret, make_secret
from p2pmsg.multicast.signing import KEY_BYTES, BlockSigner, SignedSealingKey
from p2pmsg.wire import Frame, FrameError, Kind

ROTATE_NS: Final = 24 * 3600 * 10**9
"""How long a key is used at most."""
DATAGRAMS_MAX: Final = 2**32
"""How many datagrams are sealed with a key until the next one is begun."""
CONFIRM_NS: Final = 2 * 10**9
"""How long the next key waits for those who have not confirmed it."""
REVOKE_NS: Final = 10**9
"""The same where a peer was revoked, which reads on until then."""
AGAIN_NS: Final = 250_000_000
"""After so long KEYS are sent again, then at twice the time, up to `AGAIN_NS_MAX`."""
AGAIN_NS_MAX: Final = 4 * 10**9
AT_ONCE: Final = 256
"""KEYS that are sent one after the other, without leaving the publisher's lock."""
UNJOINED_MAX: Final = 4096
"""Those who asked for keys and have not joined; the first one is forgotten first."""
HOLDERS_MAX: Final = 65_536
OWN_MAX: Final = 4
"""Keys of one subscriber that open what it sends: it may have asked again before the first came."""


class _Holder:
    """One subscriber that was given keys."""

    __slots__ = ("is_gone", "joined", "openers", "requester", "user")

    def __init__(self) -> None:
        self.openers: dict[bytes, OpeningKey] = {}  # of its own keys, the oldest first
        self.requester = b""  # none while its connection is gone
        self.is_gone = False
        self.user = ""
        self.joined = False


class GroupKeys:
    """The keys of one sealed multicast; `MissingExtraError` without the package `cryptography`.

    Args:
        session, incarnation: of the publisher.
        cipher: for all keys.
        rng: draws the keys: the system's, except in tests.
        now_ns: the time.
        admits: says whether a user may have the keys. Default None: each that gets so far may.
        signed: whether what is sealed is signed, too, by a key of this process alone.
        sources: returns where the datagrams come from, each as `keys.source_of` has it. Subscribers
            send answers to no other place. Default None: nothing is said, and they send none.

    Attributes:
        group: seals what goes to the group.
        rotations: how often the next key came into use.
        unconfirmed: how often one came into use that somebody had not confirmed.

    """

    def __init__(
        self,
        session: int,
        incarnation: int,
        cipher: Cipher,
        rng: Random,
        *,
        now_ns: int,
        admits: Callable[[str], bool] | None = None,
        signed: bool = False,
        sources: Callable[[], list[str]] | None = None,
    ) -> None:
        self._signer = BlockSigner(rng.randbytes(KEY_BYTES)) if signed else None
        self._session, self._incarnation = session, incarnation
        self._cipher, self._rng, self._admits = cipher, rng, admits
        self._sources = sources
        self._order = 0
        self._ids: set[bytes] = set()
        self.group = self._make()
        self._next: SealingKey | None = None
        self._switch_ns = 0
        self._rotate_ns = now_ns + ROTATE_NS
        self._holders: dict[int, _Holder] = {}
        self._unjoined: OrderedDict[int, None] = OrderedDict()  # the last one heard is the last
        self._openers: dict[bytes, OpeningKey] = {}
        # Who lacks the newest key, and when it is sent again, after which wait: the next one first.
        self._lacking: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self.rotations = self.unconfirmed = 0

    def _make(self) -> SealingKey:
        secret = self._make_secret()
        return (
            SealingKey(secret) if self._signer is None else SignedSealingKey(secret, self._signer)
        )

    def _make_secret(self) -> Secret:
        secret = make_secret(self._cipher, self._rng)
        while secret.id in self._ids:
            secret = make_secret(self._cipher, self._rng)
        self._ids.add(secret.id)
        return secret

    @property
    def receivers(self) -> int:
        """How many subscribers have keys."""
        return len(self._holders)

    @property
    def is_drained(self) -> bool:
        """Whether all whose connections are there have confirmed the newest key."""
        return self._next is None and not self._lacking

    def receive_held(
        self, requester: bytes, frame: Frame, *, now_ns: int, user: str = ""
    ) -> bytes | None:
        """Take KEYS_HELD; returns the KEYS that answer it, or None where none are missing.

        `FrameError` where it is malformed, the user may not have them, or it is another user's.
        """
        body = read_held(frame)
        if self._admits is not None and not self._admits(user):
            raise FrameError("access")
        subscriber, ids = body.subscriber, set(body.ids)
        holder = self._find(subscriber, user)
        if holder is None:
            if not body.asks:
                return None  # it was dismissed meanwhile
            holder = self._add(subscriber)
            holder.user = user
        if not holder.joined:
            self._unjoined[subscriber] = None
            self._unjoined.move_to_end(subscriber)
        self._hear(subscriber, holder, requester)
        newest = self._next or self.group
        has_all = newest.secret.id in ids and self.group.secret.id in ids
        if has_all:
            self._lacking.pop(subscriber, None)
        if not body.asks:
            return None
        if subscriber in self._lacking:  # it is answered now
            self._lacking[subscriber] = now_ns + AGAIN_NS, 2 * AGAIN_NS
            self._lacking.move_to_end(subscriber)
        if holder.openers.keys() & ids:
            return None if has_all else self._keys_of()
        # One that has no key of its own may be another process: that would count from 0 again.
        return self._keys_of(self._make_own(subscriber, holder))

    def admit(self, subscriber: int, requester: bytes, user: str = "") -> None:
        """Count a subscriber as joined, if it has asked for keys: rotations wait for it.

        It is called whenever a subscriber says that it is there. `FrameError` where it is another
        user's.
        """
        holder = self._find(subscriber, user)
        if holder is None:
            return
        self._hear(subscriber, holder, requester)
        if not holder.joined:
            holder.joined = True
            self._unjoined.pop(subscriber, None)

    def requester_gone(self, requester: bytes) -> None:
        """Note that a connection has ended: whose it was is sent no keys until it is heard again.

        It stays joined until it is dismissed.
        """
        for subscriber, holder in self._holders.items():
            if holder.requester != requester:
                continue
            holder.requester, holder.is_gone = b"", True
            self._lacking.pop(subscriber, None)

    def dismiss(self, subscriber: int) -> None:
        """Forget a subscriber: it gets no more keys, and what it seals is not opened."""
        holder = self._holders.pop(subscriber, None)
        if holder is None:
            return
        self._unjoined.pop(subscriber, None)
        for name in holder.openers:
            self._openers.pop(name, None)
            self._ids.discard(name)
        self._lacking.pop(subscriber, None)

    def open(self, data: bytes | memoryview) -> tuple[int, bytes]:
        """Open a datagram of a subscriber; returns whose it is, and its content."""
        opener = self._openers.get(require_sealed(data))
        if opener is None:
            raise FrameError("key")
        return opener.owner, opener.open(data)

    def rotate(self, *, now_ns: int) -> None:
        """Begin to use another key, unless that has begun."""
        if self._next is None:
            self._begin(now_ns, CONFIRM_NS)

    def revoke(self, user: str, *, now_ns: int) -> int:
        """Forget a user's subscribers and use a key that they do not have; returns their number."""
        revoked = [one for one, holder in self._holders.items() if holder.user == user]
        for subscriber in revoked:
            self.dismiss(subscriber)
        if revoked:
            self._begin(now_ns, REVOKE_NS)
        return len(revoked)

    def check_users(self, may: Callable[[str], bool], *, now_ns: int) -> int:
        """Revoke the users that may not have the keys any more; returns how many those are."""
        users = {holder.user for holder in self._holders.values()}
        revoked = [user for user in users if not may(user)]
        for user in revoked:
            self.revoke(user, now_ns=now_ns)
        return len(revoked)

    def handle_timer(self, *, now_ns: int) -> list[tuple[bytes, bytes]]:
        """Do what is due; returns (requester, KEYS) that are to be sent."""
        if self._next is None and (
            now_ns >= self._rotate_ns or self.group.counter >= DATAGRAMS_MAX
        ):
            self._begin(now_ns, CONFIRM_NS)
        if self._next is not None and now_ns >= self._switch_due_ns():
            self._ids.discard(self.group.secret.id)
            self.group, self._next = self._next, None
            self.rotations += 1
            self.unconfirmed += self._is_waited_for()
        made: list[tuple[bytes, bytes]] = []
        frame = b""
        while self._lacking and len(made) < AT_ONCE:
            subscriber, (due_ns, wait_ns) = next(iter(self._lacking.items()))
            if due_ns > now_ns:
                break
            del self._lacking[subscriber]
            # In the order of their times, nearly: nobody is sent them sooner, or much later.
            self._lacking[subscriber] = now_ns + wait_ns, min(2 * wait_ns, AGAIN_NS_MAX)
            frame = frame or self._keys_of()
            made.append((self._holders[subscriber].requester, frame))
        return made

    def next_deadline_ns(self) -> int:
        """Return when `handle_timer` has something to do."""
        due_ns = self._rotate_ns
        if self._next is not None:
            due_ns = self._switch_due_ns()
        if self._lacking:
            due_ns = min(due_ns, next(iter(self._lacking.values()))[0])
        return due_ns

    def _begin(self, now_ns: int, wait_ns: int) -> None:
        if self._next is not None:
            self._ids.discard(self._next.secret.id)
        self._order += 1
        self._next = self._make()
        self._switch_ns, self._rotate_ns = now_ns + wait_ns, now_ns + ROTATE_NS
        self._lacking.clear()
        for one, holder in self._holders.items():
            if not holder.is_gone:
                self._lacking[one] = now_ns, AGAIN_NS

    def _switch_due_ns(self) -> int:
        """Return when the next key is used, as far as is known; 0 where nobody is waited for."""
        return self._switch_ns if self._is_waited_for() else 0

    def _is_waited_for(self) -> bool:
        """Whether somebody who has joined lacks the newest key."""
        return any(self._holders[one].joined for one in self._lacking)

    def _find(self, subscriber: int, user: str) -> _Holder | None:
        holder = self._holders.get(subscriber)
        if holder is not None and holder.user != user:
            raise FrameError("subscriber")
        return holder

    def _hear(self, subscriber: int, holder: _Holder, requester: bytes) -> None:
        """Note over which connection one is heard; over another one it is sent what it lacks."""
        if holder.requester == requester:
            return
        holder.requester = requester
        if holder.is_gone:
            holder.is_gone = False
        elif subscriber not in self._lacking:
            return
        self._lacking[subscriber] = 0, AGAIN_NS
        self._lacking.move_to_end(subscriber, last=False)

    def _add(self, subscriber: int) -> _Holder:
        if len(self._unjoined) >= UNJOINED_MAX or len(self._holders) >= HOLDERS_MAX:
            if not self._unjoined:
                raise FrameError("subscribers")
            self.dismiss(next(iter(self._unjoined)))
        holder = self._holders[subscriber] = _Holder()
        return holder

    def _make_own(self, subscriber: int, holder: _Holder) -> OpeningKey:
        opener = OpeningKey(self._make_secret(), subscriber)
        name = opener.secret.id
        holder.openers[name] = self._openers[name] = opener
        if len(holder.openers) > OWN_MAX:
            oldest = next(iter(holder.openers))
            del holder.openers[oldest], self._openers[oldest]
            self._ids.discard(oldest)
        return opener

    def _keys_of(self, opener: OpeningKey | None = None) -> bytes:
        """Return KEYS, with what a subscriber seals with where that was made for this answer."""
        order = self._order - (self._next is not None)
        group = [entry_of(self.group.secret, order, self.group.counter)]
        if self._next is not None:
            group.append(entry_of(self._next.secret, self._order, self._next.counter))
        own = None if opener is None else entry_of(opener.secret, 0)
        signer = None if self._signer is None else self._signer.public
        sources = [] if self._sources is None else self._sources()
        body = Keys(self._incarnation, group, own, signer, tuple(sources[:SOURCES_MAX]))
        return wire.control_frame(Kind.KEYS, self._session, body)
