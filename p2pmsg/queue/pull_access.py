"""Who may take jobs of a queue, and who may administer it; asked by user id."""

from typing import TYPE_CHECKING

import transports

if TYPE_CHECKING:
    from p2pmsg.security.access_rules import AccessRules
    from p2pmsg.security.access_watch import AccessWatch
    from p2pmsg.security.settings import Security


class PullAccess:
    """Decides for one queue.

    Args:
        access_rules: who may what.
        queue: its name.
        place: where it is, for people.

    Attributes:
        denials: counts and logs what was denied.

    """

    __slots__ = ("_access_rules", "_queue", "denials")

    def __init__(self, access_rules: "AccessRules", queue: str, place: str) -> None:
        from p2pmsg.security.access_rules import DenialLog

        self._access_rules = access_rules
        self._queue = queue
        self.denials = DenialLog(place, access_rules)

    def may_pull(self, user: str) -> bool:
        """Whether a user may take jobs, and say what became of them."""
        return self._access_rules.may(user, "pull", self._queue)

    def may_admin(self, user: str) -> bool:
        """Whether a user may read dead letters, and act on them."""
        return self._access_rules.may(user, "admin", self._queue)

    def deny(self, user: str, verb: str, *, now_ns: int) -> str:
        """Note that a user was denied this; return why, for the user."""
        return self.denials.note(user, verb, self._queue, now_ns=now_ns)


def access_of(
    security: "Security | None", name: str, server: transports.RecoveryServer
) -> "tuple[PullAccess | None, AccessWatch | None]":
    """Return who may pull, and what follows changes of that; None without security."""
    if security is None:
        return None, None
    from p2pmsg.security.access_watch import AccessWatch

    access_rules = PullAccess(security.grants, name, f"the pusher {name!r}")
    return access_rules, AccessWatch(security.grants, None, server)
