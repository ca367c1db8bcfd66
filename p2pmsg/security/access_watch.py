"""AccessRules at the sockets: which prefixes a user may subscribe to, and changes of the rules."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg import wire
from p2pmsg.errors import ConfigError
from p2pmsg.wire import Kind

if TYPE_CHECKING:
    from p2pmsg.security.access_rules import AccessRules
    from p2pmsg.security.settings import Security

_WELCOME: Final = wire.control_prefix(Kind.WELCOME)
_OF_ONE: Final = (wire.control_prefix(Kind.ECHO), wire.control_prefix(Kind.HEARTBEAT))
_OF_ONE_BYTES: Final = len(wire.control_prefix(Kind.ECHO, 0))


def prefixes_allowed(access_rules: "AccessRules") -> Callable[[str, bytes], bool]:
    """Return what says whether a user may have all frames that begin with a prefix.

    Of control frames these are the welcome, and the echo or a relay's heartbeat of one id: what is
    for all others would say too much.
    """

    def allows(user: str, prefix: bytes) -> bool:
        if not access_rules.is_known(user):
            return False
        if prefix[:1] != b"\0":
            return access_rules.covers(user, "subscribe", prefix)
        if prefix.startswith(_WELCOME):
            return True
        return len(prefix) >= _OF_ONE_BYTES and prefix.startswith(_OF_ONE)

    return allows


class AccessWatch:
    """Says when the rights have changed, and ends at the sockets who has none any more.

    Args:
        access_rules: who may what.
        sender: the data socket, or what sends to a multicast. Default None: there is none.
        server: the socket for requests. Default None: there is none.

    Attributes:
        access_rules: as given.
        ended: who was revoked when the rights changed last.

    """

    def __init__(
        self,
        access_rules: "AccessRules",
        sender: object = None,
        server: transports.RecoveryServer | None = None,
    ) -> None:
        self.access_rules = access_rules
        self._sender = sender if isinstance(sender, transports.ZmqSender) else None
        self._server = server
        self._version = access_rules.version
        self._revoked = access_rules.revoked
        self.ended: frozenset[str] = frozenset()

    def may_read_all(self, user: str) -> bool:
        """Whether a user may have the keys of a sealed multicast."""
        return self.access_rules.is_known(user) and self.access_rules.may(user, "subscribe", "*")

    def poll(self) -> bool:
        """Look at the files, and do as `check`; for owners without a lock that others wait for."""
        self.access_rules.refresh()
        return self.check()

    def check(self) -> bool:
        """Return whether the rights have changed since the last call; called under the lock.

        Subscriptions are decided on again then, and the connections of who was revoked are ended.
        """
        before, self._version = self._version, self.access_rules.version
        if before == self._version:
            return False
        revoked = self.access_rules.revoked
        self.ended, self._revoked = revoked - self._revoked, revoked
        for user in sorted(self.ended):
            for bound in (self._sender, self._server):
                if bound is not None:
                    bound.connections.end_user(user)
        if self._sender is not None and self._sender.allowed is not None:
            self._sender.allowed.recheck()
        return True


def revoke_here(security: "Security | None", who: str) -> list[str]:
    """Revoke a peer's keys; the caller ends its connections. Raises as `Publisher.revoke`."""
    if security is None:
        raise ConfigError("security", "given, for somebody to be revoked", None)
    return security.revoke(who)
