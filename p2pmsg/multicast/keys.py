"""The keys of sealed multicasts: what goes over the recovery channel, and what subscribers hold.

::

    publisher                                     subscriber
        │ ◀──────── KEYS_HELD(subscriber, ids, asks) │  in place of PROBE, as long as it has none
        │ ── KEYS(incarnation, the group's, this one's own, sources) ▶│
        │ ◀────────────── KEYS_HELD(subscriber, ids) │  confirms

A sealed group has one key for all that its publisher sends, and one for what each subscriber sends
back. No I/O and no clock.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, Final

from p2pmsg import codec, control
from p2pmsg.multicast.seal import (
    CIPHERS,
    Opened,
    OpeningKey,
    SealingKey,
    Secret,
    key_id,
    require_cryptography,
)
from p2pmsg.multicast.signing import KEY_BYTES, BlockVerifier
from p2pmsg.wire import Frame, FrameError

KEYS_MAX: Final = 8
"""Keys of one session that a subscriber holds; the oldest is forgotten first."""
SESSIONS_MAX: Final = 4096
OWN_MAX: Final = 65_536
"""Own keys that are remembered as used, also of sessions that were forgotten: none counts again."""

SOURCES_MAX: Final = 64

Bytes4 = Annotated[bytes, codec.Meta(min_length=4, max_length=4)]
Source = Annotated[str, codec.Meta(max_length=80)]


class KeyEntry(codec.Struct, array_like=True):
    """One key, over the recovery channel; its text shows the id only."""

    id: Bytes4
    cipher: Annotated[str, codec.Meta(max_length=32)]
    salt: Bytes4
    key: Annotated[bytes, codec.Meta(min_length=16, max_length=32)]
    order: control.Sequence
    """The later it was made, the higher."""
    counter: control.Sequence = 0
    """Datagrams below were sent before this was said: they are never to be opened."""

    def __repr__(self) -> str:
        return f"KeyEntry({self.id.hex()})"


class Keys(codec.Struct, array_like=True):
    """Publisher to a subscriber of its sealed multicast."""

    incarnation: control.Id
    """Of the publisher's process, which has other keys than the one before it."""
    group: Annotated[list[KeyEntry], codec.Meta(min_length=1, max_length=KEYS_MAX)]
    """Those that its datagrams are sealed with, now and next."""
    own: KeyEntry | None = None
    """What this subscriber seals its datagrams with; nobody else gets it, and it comes only once:
    so there are never two that count with it."""
    signer: Annotated[bytes, codec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)] | None = None
    """By which what its datagrams contain is verified, with Ed25519. Nil: they are not signed."""
    sources: Annotated[tuple[Source, ...], codec.Meta(max_length=SOURCES_MAX)] = ()
    """Where its datagrams come from, and answers go to: see `source_of`."""


class KeysHeld(codec.Struct, array_like=True):
    """Subscriber to publisher: these I have."""

    subscriber: control.Id
    ids: Annotated[list[Bytes4], codec.Meta(max_length=2 * KEYS_MAX)]
    asks: bool = False
    """Whether the others are to be sent; otherwise it only confirms what came."""


_decode_keys: Final = codec.make_decoder(Keys).decode
_decode_held: Final = codec.make_decoder(KeysHeld).decode


def read_keys(frame: Frame) -> Keys:
    """Return the body of KEYS; `FrameError` where it does not fit."""
    body: Keys = control.decoded(frame, _decode_keys)
    return body


def read_held(frame: Frame) -> KeysHeld:
    """Return the body of KEYS_HELD; `FrameError` where it does not fit."""
    body: KeysHeld = control.decoded(frame, _decode_held)
    return body


def source_of(address: Any) -> str:
    """Return the text of an address that datagrams come from: `HOST:PORT`, without a zone.

    An address in memory is its own text.
    """
    if not isinstance(address, tuple):
        return str(address)
    return f"{address[0].partition('%')[0]}:{address[1]}"


def entry_of(secret: Secret, order: int, counter: int = 0) -> KeyEntry:
    """Return how a key goes over the recovery channel."""
    return KeyEntry(secret.id, secret.cipher, secret.salt, secret.key, order, counter)


def _secret_of(entry: KeyEntry) -> Secret:
    for cipher in CIPHERS:
        if cipher == entry.cipher:
            secret = Secret(entry.id, cipher, entry.salt, entry.key)
            secret.check()
            return secret
    raise FrameError("cipher")


class _Session:
    """What is held of one publisher's session."""

    __slots__ = ("active", "incarnation", "keys", "own", "sources", "verifier")

    def __init__(self, incarnation: int, signer: bytes | None) -> None:
        self.begin(incarnation, signer)
        self.active = -1  # the order of the newest key that opened anything: no older one does
        self.keys: dict[bytes, OpeningKey] = {}
        self.own: SealingKey | None = None
        self.sources: frozenset[str] = frozenset()

    def begin(self, incarnation: int, signer: bytes | None) -> None:
        """Note another process of its publisher, and by which key it signs."""
        try:
            self.verifier = None if signer is None else BlockVerifier(signer)
        except ValueError:
            raise FrameError("keys") from None
        self.incarnation = incarnation

    @property
    def signer(self) -> bytes | None:
        """The key by which its datagrams are verified."""
        return None if self.verifier is None else self.verifier.public

    def opening(self, secret: Secret, session: int, entry: KeyEntry) -> OpeningKey:
        """Return what opens datagrams of a key."""
        verify = None if self.verifier is None else self.verifier.verify
        return OpeningKey(secret, session, order=entry.order, first=entry.counter, verify=verify)


class Keyring:
    """The keys of the sealed groups that a subscriber has joined.

    It raises `MissingExtraError` without the package `cryptography`. A key of one session opens
    nothing of another one: the caller compares `Opened.key.owner` with what the frame says.
    """

    def __init__(self) -> None:
        require_cryptography()
        self._sessions: dict[int, _Session] = {}
        self._keys: dict[bytes, OpeningKey] = {}
        self._last: OpeningKey | None = None
        self._used: OrderedDict[tuple[int, bytes], None] = OrderedDict()

    def take(self, session: int, body: Keys) -> None:
        """Take keys that a session's publisher sent; `FrameError` where they cannot be."""
        held = self._sessions.get(session)
        secrets = [(_secret_of(entry), entry) for entry in body.group]
        own = None if body.own is None else _secret_of(body.own)
        for secret, _ in secrets:
            known = self._keys.get(secret.id)
            if known is not None and (known.owner != session or known.secret != secret):
                raise FrameError("keys")
        if held is None:
            if len(self._sessions) >= SESSIONS_MAX:
                raise FrameError("sessions")
            held = self._sessions[session] = _Session(body.incarnation, body.signer)
        if held.incarnation != body.incarnation:
            held.begin(body.incarnation, body.signer)
            held.active = -1
            for key in held.keys.values():
                key.order = -1
        elif held.signer != body.signer:
            raise FrameError("keys")
        held.sources = frozenset(body.sources)
        for secret, entry in secrets:
            if secret.id not in held.keys and entry.order >= held.active:
                key = held.opening(secret, session, entry)
                held.keys[secret.id] = self._keys[secret.id] = key
        while len(held.keys) > KEYS_MAX:
            self._forget_key(next(iter(held.keys.values())))
        if own is not None and (session, own.id) not in self._used:
            held.own = SealingKey(own)
            self._used[session, own.id] = None
            if len(self._used) > OWN_MAX:
                self._used.popitem(last=False)

    def ids(self, session: int) -> list[bytes]:
        """Return the ids of what is held of a session, for KEYS_HELD."""
        held = self._sessions.get(session)
        if held is None:
            return []
        return ([] if held.own is None else [held.own.secret.id]) + list(held.keys)

    def own(self, session: int) -> SealingKey | None:
        """Return what seals datagrams to a session's publisher; None: there is none yet."""
        held = self._sessions.get(session)
        return None if held is None else held.own

    def states(self, session: int, address: Any) -> bool:
        """Whether a session's publisher has said that its datagrams come from an address."""
        held = self._sessions.get(session)
        return held is not None and source_of(address) in held.sources

    def holds(self, session: int) -> bool:
        """Whether there are keys of a session."""
        return session in self._sessions

    def open_train(
        self,
        line: int,
        data: memoryview,
        at: int,
        segment: int,
        invalid: Counter[str],
        check: Callable[[int], None] | None = None,
    ) -> Opened | None:
        """Open the datagrams from `at` on that have one key; None: that of the first is unknown.

        The first that a later key opens ends those before it: who was given no later one forges
        nothing any more. What is still on its way is lost, and asked for. See
        `OpeningKey.open_train`. `check` is given the session whose key it is before anything is
        opened, and may raise. `FrameError` where the first datagram is not sealed.
        """
        name = require_sealed(data[at : at + segment])
        key = self._last
        if key is None or key.secret.id != name:
            key = self._keys.get(name)
            if key is None:
                return None
        if check is not None:
            check(key.owner)
        opened = key.open_train(line, data, at, segment, invalid)
        if key is not self._last and opened is not None and opened.datagrams:
            held = self._sessions[key.owner]
            if key.order > held.active:
                held.active = key.order
                for former in [one for one in held.keys.values() if one.order < key.order]:
                    self._forget_key(former)
            self._last = key
        return opened

    def forget(self, session: int) -> None:
        """Forget all of a session."""
        held = self._sessions.pop(session, None)
        if held is not None:
            for key in list(held.keys.values()):
                self._keys.pop(key.secret.id, None)
            self._last = None

    def _forget_key(self, key: OpeningKey) -> None:
        self._keys.pop(key.secret.id, None)
        held = self._sessions.get(key.owner)
        if held is not None:
            held.keys.pop(key.secret.id, None)
        if self._last is key:
            self._last = None


def require_sealed(data: bytes | memoryview) -> bytes:
    """Return which key a datagram was sealed with; `FrameError` where it was not sealed."""
    name = key_id(data)
    if name is None:
        raise FrameError("unsealed")
    return name
