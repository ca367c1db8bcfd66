"""What is denied to a puller over one connection: by the pusher, or to that by a file here."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from p2pmsg.control import Denied
from p2pmsg.errors import AccessDeniedError, denied_by_peer
from p2pmsg.wire import FrameError

if TYPE_CHECKING:
    from p2pmsg.security.access_rules import AccessRules

DENIED_NS: Final = 1_000_000_000
"""How often a puller asks again where something is denied: the rules may have changed."""
_AGAIN_NS: Final = 5_000_000_000
"""How often it is reported that something is still denied."""


class PusherAccess:
    """Whether a pusher may push here, and what is denied now.

    Attributes:
        denial: what is denied now; None: nothing.
        unreported: a denial that is still to be raised, or None.

    """

    __slots__ = ("_access_rules", "_due_ns", "_user", "denial", "unreported")

    def __init__(self) -> None:
        self.denial: AccessDeniedError | None = None
        self.unreported: AccessDeniedError | None = None
        self._due_ns = 0
        self._access_rules: AccessRules | None = None
        self._user: Callable[[], str] = lambda: ""

    def use(self, access_rules: "AccessRules | None", user: Callable[[], str]) -> None:
        """Ask these rights about the pusher; `user` returns whose key its connection has."""
        self._access_rules, self._user = access_rules, user

    def may_push(self, name: str) -> bool:
        """Whether a pusher of this name may push here."""
        return self._access_rules is None or self._access_rules.may(self._user(), "push", name)

    def on_ours(self, name: str, *, now_ns: int) -> None:
        """Note that a pusher may not push here."""
        assert self._access_rules is not None
        why = self._access_rules.why(self._user(), "push", name)
        text = f"the key of the pusher {name!r} has no right to it here: {why}"
        self._note(AccessDeniedError("push", name, text), now_ns)

    def on_theirs(self, denied: Denied, *, now_ns: int) -> None:
        """Note that a pusher gives us no right to `pull`; `FrameError` where it says else."""
        if denied.verb != "pull" or not denied.patterns:
            raise FrameError("verb")
        name = denied.patterns[0]
        self._note(denied_by_peer("pull", name, f"the pusher {name!r}", denied.why), now_ns)

    def allow(self) -> None:
        """Note that nothing is denied any more."""
        self.denial = self.unreported = None

    def take_unreported(self) -> AccessDeniedError | None:
        """Return what is to be raised now, once."""
        error, self.unreported = self.unreported, None
        return error

    def _note(self, error: AccessDeniedError, now_ns: int) -> None:
        is_new = self.denial is None or str(self.denial) != str(error)
        if is_new or now_ns >= self._due_ns:
            self.unreported = error
            self._due_ns = now_ns + _AGAIN_NS
        self.denial = error
