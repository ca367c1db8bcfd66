"""Who may take jobs of a queue, and who may administer it; asked by user id."""

from p2pmsg.security.rights import DenialLog, Rights


class PullRights:
    """Decides for one queue.

    Args:
        rights: who may what.
        queue: its name.
        place: where it is, for people.

    Attributes:
        denials: counts and logs what was denied.

    """

    __slots__ = ("_queue", "_rights", "denials")

    def __init__(self, rights: Rights, queue: str, place: str) -> None:
        self._rights = rights
        self._queue = queue
        self.denials = DenialLog(place, rights)

    def may_pull(self, user: str) -> bool:
        """Whether a user may take jobs, and say what became of them."""
        return self._rights.may(user, "pull", self._queue)

    def may_admin(self, user: str) -> bool:
        """Whether a user may read dead letters, and act on them."""
        return self._rights.may(user, "admin", self._queue)

    def deny(self, user: str, verb: str, *, now_ns: int) -> str:
        """Note that a user was denied this; return why, for the user."""
        return self.denials.note(user, verb, self._queue, now_ns=now_ns)
