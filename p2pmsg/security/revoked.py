"""Rights where there is no access file: who is known may do everything, until it is no more."""

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

LOOK_NS: Final = 1_000_000_000
"""How often the file of known peers is looked at, at most."""
_PRESENT_MAX: Final = 65_536


class Unlimited:
    """What peers may do without an access file. Safe to use from several threads.

    It is asked as `p2pmsg.security.rights.Rights` is.

    Args:
        unknown: returns those of some user ids that are not known any more; None: nothing has
            changed since it was called last. Default: all stay known.
        clock: monotonic time in ns.

    Attributes:
        version: grows when somebody was revoked, or is known no more, or again.

    """

    def __init__(
        self,
        unknown: Callable[[Collection[str]], list[str] | None] = lambda users: None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.version = 0
        self._unknown = unknown
        self._clock = clock
        self._lock = threading.Lock()
        self._due_ns = clock() + LOOK_NS
        self._present: set[str] = set()
        self._revoked: frozenset[str] = frozenset()
        self._ended: frozenset[str] = frozenset()
        """Those that were revoked, and those that are known no more."""

    def may(self, user: str, verb: str, topic: str) -> bool:
        """Return whether a user may, for a topic, or for all that a prefix and `*` mean."""
        return user not in self._ended

    def why(self, user: str, verb: str, topic: str) -> str:
        """Return why a user may not."""
        return "the key was revoked" if user in self._revoked else "the key is known no more"

    def who(self, user: str) -> str:
        """Return who a user is, for people: its user id."""
        return user or "a peer without a key"

    def covers(self, user: str, verb: str, prefix: bytes) -> bool:
        """Return whether a user may have all frames that begin so."""
        return user not in self._ended

    def has_any(self, user: str, verb: str) -> bool:
        """Return whether a user has a right at all, for any topic."""
        return user not in self._ended

    def has_limit(self, user: str) -> bool:
        """Return whether a user may have only a part of the history of any topic: nobody."""
        return False

    def history_ns(self, user: str, topic: str) -> int | None:
        """Return how old what a user is sent again of a topic may be: as old as is."""
        return None

    def revoke_users(self, users: Iterable[str]) -> None:
        """Deny everything to these user ids from now on, while the process runs."""
        with self._lock:
            self._revoked |= frozenset(users)
            self._end(self._ended | self._revoked)

    @property
    def revoked(self) -> frozenset[str]:
        """The user ids whose connections are to end: revoked, or known no more."""
        return self._ended

    def is_revoked(self, user: str) -> bool:
        """Return whether a user was revoked, or is known no more."""
        return user in self._ended

    def was_revoked(self, user: str) -> bool:
        """Return whether a user was revoked, and is not only known no more."""
        return user in self._revoked

    def is_known(self, user: str) -> bool:
        """Return whether a user may connect, which was looked at when it did."""
        return user not in self._ended

    def admit(self, user: str) -> bool:
        """Note that a user connects that is known; False where it was revoked."""
        with self._lock:
            if user in self._revoked:
                return False
            if len(self._present) < _PRESENT_MAX:
                self._present.add(user)
            if user in self._ended:  # it is known again
                self._end(self._ended - {user})
            return True

    def refresh(self) -> bool:
        """Look whether all that have connected are still known; return whether anything changed.

        It looks at the file once a second at most, and is cheap otherwise.
        """
        now_ns = self._clock()
        if now_ns < self._due_ns or not self._lock.acquire(blocking=False):
            return False
        try:
            self._due_ns = now_ns + LOOK_NS
            unknown = self._unknown(self._present)
            if unknown is None:
                return False
            ended = self._revoked | frozenset(unknown)
            if ended == self._ended:
                return False
            self._end(ended)
            return True
        finally:
            self._lock.release()

    def _end(self, users: frozenset[str]) -> None:
        self._ended = users
        self.version += 1
