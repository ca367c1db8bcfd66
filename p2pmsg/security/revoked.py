"""Rights where there is no access file: who is known may do everything, until it is revoked."""

from collections.abc import Iterable


class Unlimited:
    """What peers may do without an access file. Safe to use from several threads.

    It is asked as `p2pmsg.security.rights.Rights` is.

    Attributes:
        version: grows when somebody was revoked.

    """

    def __init__(self) -> None:
        self.version = 0
        self._revoked: frozenset[str] = frozenset()

    def may(self, user: str, verb: str, topic: str) -> bool:
        """Return whether a user may, for a topic, or for all that a prefix and `*` mean."""
        return user not in self._revoked

    def covers(self, user: str, verb: str, prefix: bytes) -> bool:
        """Return whether a user may have all frames that begin so."""
        return user not in self._revoked

    def has_any(self, user: str, verb: str) -> bool:
        """Return whether a user has a right at all, for any topic."""
        return user not in self._revoked

    def has_limit(self, user: str) -> bool:
        """Return whether a user may have only a part of the history of any topic: nobody."""
        return False

    def history_ns(self, user: str, topic: str) -> int | None:
        """Return how old what a user is sent again of a topic may be: as old as is."""
        return None

    def revoke_users(self, users: Iterable[str]) -> None:
        """Deny everything to these user ids from now on, while the process runs."""
        self._revoked |= frozenset(users)
        self.version += 1

    @property
    def revoked(self) -> frozenset[str]:
        """The user ids that were revoked."""
        return self._revoked

    def is_revoked(self, user: str) -> bool:
        """Return whether a user was revoked."""
        return user in self._revoked

    def is_known(self, user: str) -> bool:
        """Return whether a user may connect, which was looked at when it did."""
        return user not in self._revoked

    def refresh(self) -> bool:
        """Read again what has changed: there is no file."""
        return False
