"""A subscriber's keys of sealed groups: asked for, asked for again, and confirmed. No I/O.

::

    a session is announced, and no keys are held ──▶ KEYS_HELD, in place of the PROBE
    datagrams of a key that is not held          ──▶ KEYS_HELD, if they are longer than that
    the recovery connection is there again       ──▶ KEYS_HELD: KEYS may have been lost with it
    KEYS ──▶ they are held, and KEYS_HELD confirms them
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from p2pmsg.multicast.keys import Keyring, KeysHeld, read_keys, source_of
from p2pmsg.multicast.seal import Opened
from p2pmsg.subscriber.effects import Effects
from p2pmsg.subscriber.sessions import Session
from p2pmsg.wire import Frame, FrameError, Kind
from recovery.retry import RetryPolicy

_MS: Final = 1_000_000
RETRY: Final = RetryPolicy(10 * _MS, 1000 * _MS)
"""Between two questions for keys."""
QUESTION_BYTES: Final = 160
"""Datagrams of keys that are not held lead to a question when they have so many bytes: nobody can
make this subscriber send more than it was sent."""
WARN_NS: Final = 60_000 * _MS


class GroupKeyClient:
    """Holds the keys; `MissingExtraError` without the package `cryptography`.

    Args:
        subscriber: its id.
        peers: the sessions by their ids.
        effects: takes the questions.
        invalid: counts the datagrams that were dropped, by reason.
        signed_only: take no keys of publishers that do not sign.

    Attributes:
        keyring: the keys that are held.

    """

    def __init__(
        self,
        subscriber: int,
        peers: Mapping[int, Session],
        effects: Effects,
        invalid: Counter[str],
        *,
        signed_only: bool = False,
    ) -> None:
        self._signed_only = signed_only
        self._forged = 0
        self._warn_ns = -WARN_NS
        self.keyring = Keyring()
        self._subscriber = subscriber
        self._peers = peers
        self._effects = effects
        self._invalid = invalid
        self._outdated: set[int] = set()
        self._unknown_bytes = 0
        self._due_ns = self._tries = 0

    def begin_with(self, peer: Session) -> bool:
        """Ask a session's publisher for keys before anything else; False: they are held."""
        session = peer.session
        if self.keyring.holds(session) and session not in self._outdated:
            return False
        self._say_held(peer, asks=True)
        return True

    def begin_incarnation(self, session: int) -> None:
        """Note that a session's publisher was started again, and has other keys."""
        self._outdated.add(session)

    def ask_again(self, peer: Session) -> None:
        """Ask for what is missing over a recovery connection that had broken and is there again."""
        if not peer.gone and peer.direct and self.keyring.holds(peer.session):
            self._say_held(peer, asks=True)

    def forget(self, session: int) -> None:
        """Forget the keys of a session."""
        self._outdated.discard(session)
        self.keyring.forget(session)

    def receive_keys(self, peer: Session, frame: Frame, now_ns: int) -> None:
        """Take keys, and confirm them; `FrameError` where they are none."""
        body = read_keys(frame)
        if self._signed_only and body.signer is None:
            text = (
                f"publisher {peer.name!r} (session {peer.session:016x}) does not sign its "
                "datagrams, and this subscriber has source='signed': nothing of it is received"
            )
            self._warn(0, peer.session, text, now_ns)
            raise FrameError("unsigned")
        self.keyring.take(peer.session, body)
        self._outdated.discard(peer.session)
        self._tries = 0
        self._say_held(peer, asks=False)

    def open_train(
        self, line: int, data: memoryview, at: int, segment: int, address: Any, now_ns: int
    ) -> Opened | None:
        """Open the datagrams from `at` on that have one key.

        None: the first one has a key that is not held. `FrameError` where it is not sealed, or
        comes from another address than its publisher's: so nobody uses up the counter of what is
        on its way by sending a copy of it.
        """

        def check(session: int) -> None:
            peer = self._peers.get(session)
            state = None if peer is None else peer.group
            if peer is None or state is None:
                raise FrameError("session")
            if peer.probe is None and state.sources.get(line, address) != address:
                raise FrameError("source")  # else its echo may show that it has another address

        opened = self.keyring.open_train(line, data, at, segment, self._invalid, check)
        if self._invalid["signature"] != self._forged:
            count = self._invalid["signature"] - self._forged
            text = (
                f"{count} datagrams sealed with the group's key were not signed by its publisher: "
                "a member of the group, or who has a member's keys, forges them. They were dropped"
            )
            owner = 0 if opened is None else opened.key.owner
            if self._warn(line, owner, text, now_ns):
                self._forged = self._invalid["signature"]
        if opened is None:
            if not self._is_awaited(line, address):
                self._invalid["key"] += 1
            self._on_unknown(line, min(segment, len(data) - at), address, now_ns)
        return opened

    def believes(self, peer: Session, line: int, address: Any, now_ns: int) -> bool:
        """Whether a session's publisher has said that its datagrams come from there.

        An echo that comes from elsewhere may be a copy: who repeats one would else get our answers.
        """
        if self.keyring.states(peer.session, address):
            return True
        self._invalid["place"] += 1
        text = (
            f"datagrams of publisher {peer.name!r} (session {peer.session:016x}) come from "
            f"{source_of(address)}, and it did not say so: address translation, another address "
            "since it was started, or an unknown sender that repeats them. What is lost is asked "
            "for over the recovery channel only"
        )
        self._warn(line, peer.session, text, now_ns)
        return False

    def seal(self, peer: Session, frame: bytes) -> bytes | None:
        """Return the datagram of a frame for a session's publisher; None: there is no key yet."""
        own = self.keyring.own(peer.session)
        return None if own is None else own.seal(frame)

    def _warn(self, line: int, session: int, text: str, now_ns: int) -> bool:
        """Warn, at most once a minute; returns whether it did."""
        is_due = now_ns - self._warn_ns >= WARN_NS
        if is_due:
            self._warn_ns = now_ns
            self._effects.warn(line, session, text)
        return is_due

    def _is_awaited(self, line: int, address: Any) -> bool:
        """Whether the keys of who sends from there were asked for, and have not come yet."""
        return any(
            not self.keyring.holds(peer.session) or peer.session in self._outdated
            for peer in self._peers.values()
            if peer.group is not None and peer.group.sources.get(line, address) == address
        )

    def _on_unknown(self, line: int, size: int, address: Any, now_ns: int) -> None:
        """Ask for the key of a datagram, unless that was done just now: anybody sends some."""
        self._unknown_bytes = min(self._unknown_bytes + size, 2 * QUESTION_BYTES)
        if now_ns < self._due_ns:
            return
        for peer in self._peers.values():
            state = peer.group
            if peer.gone or state is None or not peer.direct:
                continue
            if state.sources.get(line, address) != address or self._unknown_bytes < QUESTION_BYTES:
                continue
            self._unknown_bytes -= QUESTION_BYTES
            self._due_ns = now_ns + RETRY.wait_ns(self._tries)
            self._tries += 1
            self._say_held(peer, asks=True)

    def _say_held(self, peer: Session, *, asks: bool) -> None:
        body = KeysHeld(self._subscriber, self.keyring.ids(peer.session), asks)
        self._effects.send(peer.session, Kind.KEYS_HELD, peer.session, body)
