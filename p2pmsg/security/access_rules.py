"""What peers may do, asked by user id: by an access file or, without one, all that is known.

A user id is what a socket says of the other end: its public key, as text (base64url).
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from p2pmsg.errors import ConfigError
from p2pmsg.security.access import Access, Decision, parse_access_file
from p2pmsg.security.files import WatchedFile
from p2pmsg.security.trust import KnownPeers
from transports.curve import key_text
from transports.endpoint import is_key_text
from transports.own_log import own_log as _log

LOOK_NS: Final = 1_000_000_000
"""How often the files are looked at, at most."""
_DECISIONS_MAX: Final = 65_536
_AGAIN_NS: Final = 60 * 1_000_000_000
_LINES_A_PERIOD: Final = 20


class AccessRules:
    """What peers may do. Safe to use from several threads.

    Without an access file a peer may do everything, until it is revoked or its key is known no
    more; with one, what the rules give to its name.

    Args:
        known: the peers that are known.
        access: the access file. Default None: there is none.
        own: this peer's own user id, which is always known. Default: none.
        clock: monotonic time in ns.

    Attributes:
        version: grows when answers may have changed: by a file, or as somebody was revoked.
        revoked: the user ids whose connections are to end: revoked, or known no more.

    Raises:
        ConfigError: the file is none; `field` says where it is wrong.
        OSError: it cannot be read.

    """

    def __init__(
        self,
        known: KnownPeers,
        access: str | os.PathLike[str] | None = None,
        own: str = "",
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.version = 0
        self.revoked: frozenset[str] = frozenset()
        self._known, self._own, self._clock = known, own, clock
        self._file: WatchedFile[Access] | None = None
        if access is not None:
            path = os.fspath(access)
            self._file = WatchedFile(path, "access", lambda data: parse_access_file(path, data))
        self._access: Access | None = None
        self._known_names: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._present: set[str] = set()
        """The user ids of those that have connected, and were known then."""
        self._by_hand: frozenset[str] = frozenset()
        self._decisions: dict[tuple[str, str, str], Decision] = {}
        self._lock = threading.Lock()
        self._due_ns = 0
        self._check()

    def name_of(self, user: str) -> str | None:
        """Return the name of a user id, by the access file or else by the known peers; or None."""
        return self._names.get(user)

    def may(self, user: str, verb: str, topic: str) -> bool:
        """Return whether a user may, for a topic, or for all that a prefix and `*` mean."""
        if self._access is None:
            return user not in self.revoked
        return self._decide(user, verb, topic).allowed

    def why(self, user: str, verb: str, topic: str) -> str:
        """Return why a user may not, in words that it may read: which rule, not what it says."""
        if user in self.revoked:
            return "the key was revoked" if user in self._by_hand else "the key is known no more"
        if self._access is None or user not in self._names:
            return "the key has no name"
        rule = self._decide(user, verb, topic).rule
        return "no rule gives it" if rule is None else f"{rule} denies it"

    def who(self, user: str) -> str:
        """Return who a user is, for people: its name, or its user id."""
        return self._names.get(user) or user or "a peer without a key"

    def covers(self, user: str, verb: str, prefix: bytes) -> bool:
        """Return whether a user may have all frames that begin so; see `Access.covers`."""
        if self._access is None:
            return user not in self.revoked
        return self._access.covers(self._subject(user), verb, prefix).allowed

    def has_any(self, user: str, verb: str) -> bool:
        """Return whether a user has a right at all, for any topic."""
        if self._access is None:
            return user not in self.revoked
        return self._access.has_any(self._subject(user), verb)

    def has_limit(self, user: str) -> bool:
        """Return whether a user may have only a part of the history of any topic."""
        return self._access is not None and self._access.has_limit(self._subject(user))

    def history_ns(self, user: str, topic: str) -> int | None:
        """Return how old what a user is sent again of a topic may be, in ns; None: as old as is."""
        if self._access is None:
            return None
        return self._decide(user, "subscribe", topic).replay_max_ns

    def is_known(self, user: str) -> bool:
        """Return whether a user that has connected may go on: with an access file, by its name."""
        return user not in self.revoked and (self._access is None or user in self._names)

    def admits(self, user: str) -> bool:
        """Return whether a user that connects now is known; it is watched from now on."""
        with self._lock:
            self._check()
            if user in self._by_hand or (user != self._own and user not in self._names):
                return False
            self._present.add(user)
            return True

    def why_refused(self, user: str) -> str:
        """Return why `admits` refuses a user, for the log."""
        return "the key was revoked" if user in self._by_hand else "not among the known peers"

    def revoke(self, who: str) -> list[str]:
        """Deny everything to a peer from now on; return the user ids that it has.

        It holds while the process runs. A name that gets another key has its rights again.

        Args:
            who: a name, or a user id.

        Raises:
            ConfigError: there is no such peer.

        """
        with self._lock:
            self._check()
            users = {user for user, name in self._names.items() if who in (user, name)}
            if is_key_text(who):
                users.add(who)  # perhaps it comes later
            if not users:
                raise ConfigError("who", "the name of a peer that is known, or its key", who)
            self._by_hand |= users
            self._changed()
        return sorted(users)

    def refresh(self) -> bool:
        """Read the files again if they changed; return whether any did.

        It looks at them once a second at most, and is cheap otherwise.
        """
        now_ns = self._clock()
        if now_ns < self._due_ns or not self._lock.acquire(blocking=False):
            return False
        try:
            self._due_ns = now_ns + LOOK_NS
            return self._check()
        finally:
            self._lock.release()

    def _check(self) -> bool:
        """Take on what the files say now; return whether that has changed."""
        names = self._known.names()
        access = None if self._file is None else self._file.check()
        if names is self._known_names and access is self._access:
            return False
        self._known_names, self._access = names, access
        own = {} if access is None else {key_text(key): name for name, key in access.peers.items()}
        self._names = names | own
        self._changed()
        return True

    def _changed(self) -> None:
        self.revoked = self._by_hand | (self._present - self._names.keys() - {self._own})
        self._decisions = {}
        self.version += 1

    def _subject(self, user: str) -> str:
        """Return the name that the rules are asked for; "", which no rule means: there is none."""
        return "" if user in self.revoked else self._names.get(user, "")

    def _decide(self, user: str, verb: str, topic: str) -> Decision:
        decisions = self._decisions  # first: what is decided by older rules stays in the older one
        access, key = self._access, (user, verb, topic)
        assert access is not None
        decision = decisions.get(key)
        if decision is None:
            decision = access.decide(self._subject(user), verb, topic)
            if len(decisions) >= _DECISIONS_MAX:
                decisions.clear()
            decisions[key] = decision
        return decision


class DenialLog:
    """Counts what one server denies, and logs it.

    A line for each peer, verb and topic, once a minute; 20 lines a minute in all, since a peer can
    ask for as many topics as it likes.

    Args:
        place: which server, for people.
        access_rules: who may what.

    Attributes:
        count: how many requests were denied.

    """

    def __init__(self, place: str, access_rules: AccessRules) -> None:
        self.count = 0
        self._place = place
        self._access_rules = access_rules
        self._logged: set[tuple[str, str, str]] = set()
        self._left_out = self._until_ns = 0

    def note(self, user: str, verb: str, topic: str, *, now_ns: int) -> str:
        """Count and log that a user was denied something; return why, for the user."""
        self.count += 1
        why = self._access_rules.why(user, verb, topic)
        if now_ns >= self._until_ns:
            if self._left_out:
                _log.warning("%s: %d more requests were denied", self._place, self._left_out)
            self._until_ns, self._left_out = now_ns + _AGAIN_NS, 0
            self._logged.clear()
        key = user, verb, topic
        if key in self._logged:
            return why
        if len(self._logged) >= _LINES_A_PERIOD:
            self._left_out += 1
            return why
        self._logged.add(key)
        _log.warning(
            "%s: denied: %r %s %r: %s", self._place, self._access_rules.who(user), verb, topic, why
        )
        return why
