"""An access file in use: read again when it changes, and asked by user id.

A user id is what a socket says of the other end: its public key, as text (base64url).
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from p2pmsg.errors import ConfigError
from p2pmsg.security.access import Access, Decision, parse_access_file, read_access
from transports import key_text
from transports.endpoint import is_key_text
from transports.own_log import own_log as _log

LOOK_NS: Final = 1_000_000_000
"""How often the file's time is looked at, at most."""
_YOUNG_NS: Final = 2_000_000_000
"""A file that was changed so shortly ago is read at each look."""
_DECISIONS_MAX: Final = 65_536


class Rights:
    """What peers may do, by an access file. Safe to use from several threads.

    Args:
        path: the access file.
        name_of: returns the name of a user id, where other files than this one name peers.
        changes: returns how often those names have changed; asked once a second at most.
        clock: monotonic time in ns.

    Attributes:
        path: as given.
        version: grows when answers may have changed: the file, a name, or somebody was revoked.

    Raises:
        ConfigError: the file is none; `field` says where it is wrong.
        OSError: it cannot be read.

    """

    def __init__(
        self,
        path: str | Path,
        name_of: Callable[[str], str | None] = lambda user: None,
        changes: Callable[[], int] = lambda: 0,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.path = Path(path)
        self.version = 0
        self._name_of = name_of
        self._find_changes = changes
        self._changes = changes()
        self._clock = clock
        self._lock = threading.Lock()
        self._revoked: frozenset[str] = frozenset()
        self._names: dict[str, str | None] = {}
        self._due_ns = clock() + LOOK_NS
        self._seen: tuple[int, int, int, int] | None = None
        self._complaint = ""
        content = read_access(self.path)
        self._content: bytes | None = content
        self._take(parse_access_file(self.path, content))
        self._is_empty = not self._access.rules

    def _take(self, access: Access) -> None:
        self._access = access
        self._own_names = {key_text(key): name for name, key in access.peers.items()}
        self._changed()

    def _changed(self) -> None:
        self._names = {user: self._find_name(user) for user in list(self._names)}
        self._decisions: dict[tuple[str, str, str], Decision] = {}
        self.version += 1

    def name_of(self, user: str) -> str | None:
        """Return the name of a user id, by the access file or else by another one; or None."""
        names = self._names
        try:
            return names[user]
        except KeyError:
            name = self._find_name(user)
            if len(names) >= _DECISIONS_MAX:
                names.clear()
            names[user] = name
            return name

    def _find_name(self, user: str) -> str | None:
        return self._own_names.get(user) or (self._name_of(user) if user else None)

    def decide(self, user: str, verb: str, topic: str) -> Decision:
        """Return whether a user may; a topic that ends in `*` means all that begin so."""
        key = (user, verb, topic)
        decisions = self._decisions
        decision = decisions.get(key)
        if decision is None:
            name = self.name_of(user)
            if user in self._revoked or name is None:
                who = name or user or "a peer without a key"
                decision = Decision(allowed=False, who=who, verb=verb, topic=topic)
            else:
                decision = self._access.decide(name, verb, topic)
            if len(decisions) >= _DECISIONS_MAX:
                decisions.clear()
            decisions[key] = decision
        return decision

    def may(self, user: str, verb: str, topic: str) -> bool:
        """Return whether a user may, for a topic, or for all that a prefix and `*` mean."""
        return self.decide(user, verb, topic).allowed

    def why(self, user: str, verb: str, topic: str) -> str:
        """Return why a user may not, in words that it may read: which rule, not what it says."""
        if user in self._revoked:
            return "the key was revoked"
        if self.name_of(user) is None:
            return "the key has no name"
        rule = self.decide(user, verb, topic).rule
        return "no rule gives it" if rule is None else f"{rule} denies it"

    def who(self, user: str) -> str:
        """Return who a user is, for people: its name, or its user id."""
        return self.name_of(user) or user or "a peer without a key"

    def covers(self, user: str, verb: str, prefix: bytes) -> bool:
        """Return whether a user may have all frames that begin so; see `Access.covers`."""
        name = self.name_of(user)
        if user in self._revoked or name is None:
            return False
        return self._access.covers(name, verb, prefix).allowed

    def history_ns(self, user: str, topic: str) -> int | None:
        """Return how old what a user is sent again of a topic may be, in ns; None: as old as is."""
        return self.decide(user, "subscribe", topic).replay_max_ns

    def has_limit(self, user: str) -> bool:
        """Return whether a user may have only a part of the history of any topic."""
        name = self.name_of(user)
        return name is not None and self._access.has_limit(name)

    def has_any(self, user: str, verb: str) -> bool:
        """Return whether a user has a right at all, for any topic."""
        name = self.name_of(user)
        if user in self._revoked or name is None:
            return False
        return self._access.has_any(name, verb)

    def revoke(self, who: str) -> list[str]:
        """Deny everything to a peer from now on; return the user ids that it has.

        It holds while the process runs. A name that gets another key has its rights again.

        Args:
            who: a name, or a user id.

        Raises:
            ConfigError: there is no such peer.

        """
        users = self.users_of(who)
        if not users and is_key_text(who):
            users = [who]  # perhaps it comes later
        if not users:
            raise ConfigError("who", "the name of a peer that is known, or its key", who)
        self.revoke_users(users)
        return users

    def users_of(self, who: str) -> list[str]:
        """Return the user ids of a name, by the access file and of those that came; or its own."""
        names = {**self._names, **self._own_names}
        return [user for user, name in names.items() if who in (user, name)]

    def revoke_users(self, users: Iterable[str]) -> None:
        """Do as `revoke`, to user ids."""
        with self._lock:
            self._revoked |= frozenset(users)
            self._changed()

    @property
    def revoked(self) -> frozenset[str]:
        """The user ids that were revoked."""
        return self._revoked

    def is_known(self, user: str) -> bool:
        """Return whether a user has a name, and was not revoked."""
        return user not in self._revoked and self.name_of(user) is not None

    def is_revoked(self, user: str) -> bool:
        """Return whether `revoke` was called for a user."""
        return user in self._revoked

    def was_revoked(self, user: str) -> bool:
        """Return whether `revoke` was called for a user; as `is_revoked` here."""
        return user in self._revoked

    def admit(self, user: str) -> bool:
        """Return whether a user that is known may connect: it was not revoked."""
        return user not in self._revoked

    def refresh(self) -> bool:
        """Read the file again if it changed; return whether anything did.

        It looks at the file once a second at most, and is cheap otherwise. A file that is broken,
        or gone, is logged once for each change, and the rules that were stay.
        """
        now_ns = self._clock()
        if now_ns < self._due_ns or not self._lock.acquire(blocking=False):
            return False
        try:
            self._due_ns = now_ns + LOOK_NS
            version = self.version
            self._refresh_names()
            self._read()
            return self.version != version
        finally:
            self._lock.release()

    def _refresh_names(self) -> None:
        changes = self._find_changes()
        if changes == self._changes:
            return
        self._changes = changes
        if any(self._find_name(user) != name for user, name in list(self._names.items())):
            self._changed()

    def _read(self) -> None:
        """Read the file if it has changed, or may have."""
        try:
            found = os.stat(self.path)
            seen = found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
            if seen == self._seen:
                return
            # What is so young may change again within the same time stamp of the file system.
            self._seen = seen if time.time_ns() - found.st_mtime_ns > _YOUNG_NS else None
            content = read_access(self.path)
            if content == self._content:
                self._complaint = ""
                self._is_empty = not self._access.rules
                return
            access = parse_access_file(self.path, content)
            if self._is_just_emptied(access):
                self._seen = None
                self._complain(f"access file {str(self.path)!r} has no rules, and is read again")
                return
            self._content = content
        except ConfigError as error:
            self._content, self._is_empty = None, False
            self._complain(f"{error}")
        except OSError as error:
            self._seen = None
            why = error.strerror or type(error).__name__
            self._complain(f"access file {str(self.path)!r} cannot be read: {why}")
        else:
            self._complaint = ""
            self._take(access)
            _log.info("access file %r was read: %d rules", str(self.path), len(access.rules))

    def _is_just_emptied(self, access: Access) -> bool:
        """Whether the file has lost all rules since the last look: an editor empties it first."""
        was_empty, self._is_empty = self._is_empty, not access.rules
        return self._is_empty and not was_empty

    def _complain(self, what: str) -> None:
        """Log what is wrong with the file; once, while it stays so."""
        if what != self._complaint:
            self._complaint = what
            _log.error("%s; the rules that were read before stay", what)
