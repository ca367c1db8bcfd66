"""Rights at the sockets: which prefixes a user may subscribe to, and changes of the rules."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import transports
from p2pmsg import wire
from p2pmsg.errors import ConfigError
from p2pmsg.wire import Kind

if TYPE_CHECKING:
    from p2pmsg.security.rights import Rights
    from p2pmsg.security.settings import Security

_WELCOME: Final = wire.control_prefix(Kind.WELCOME)
_OF_ONE: Final = (wire.control_prefix(Kind.ECHO), wire.control_prefix(Kind.HEARTBEAT))
_OF_ONE_BYTES: Final = len(wire.control_prefix(Kind.ECHO, 0))


def prefixes_allowed(rights: "Rights") -> Callable[[str, bytes], bool]:
    """Return what says whether a user may have all frames that begin with a prefix.

    Of control frames these are the welcome, and the echo or a relay's heartbeat of one id: what is
    for all others would say too much.
    """

    def allows(user: str, prefix: bytes) -> bool:
        if not rights.is_known(user):
            return False
        if prefix[:1] != b"\0":
            return rights.covers(user, "subscribe", prefix)
        if prefix.startswith(_WELCOME):
            return True
        return len(prefix) >= _OF_ONE_BYTES and prefix.startswith(_OF_ONE)

    return allows


class RightsWatch:
    """Has subscriptions decided on again where the rights have changed, and ends who is revoked.

    Args:
        rights: who may what.
        sender: the data socket, or what sends to a multicast; None: there is none.
        server: the socket for requests.

    """

    def __init__(
        self, rights: "Rights", sender: object, server: transports.ZmqRecoveryServer
    ) -> None:
        self.rights = rights
        self._sender = sender
        self._server = server
        self._changes = rights.changes()
        self._revoked = rights.revoked

    def may_read_all(self, user: str) -> bool:
        """Whether a user may have the keys of a sealed multicast."""
        return self.rights.is_known(user) and self.rights.may(user, "subscribe", "*")

    def look(self) -> bool:
        """Look at the files, and do as `check`; for owners without a lock that others wait for."""
        self.rights.refresh()
        return self.check()

    def check(self) -> bool:
        """Return whether they have changed since the last call. Called under the lock."""
        if not self._changes.check():
            return False
        if isinstance(self._sender, transports.ZmqSender) and self._sender.allowed is not None:
            self._sender.allowed.recheck()
        return True

    def end_revoked(self) -> frozenset[str]:
        """End the connections of those who were revoked since the last call; return who.

        Called under the lock, by the owner of the recovery socket.
        """
        revoked = self.rights.revoked
        users, self._revoked = revoked - self._revoked, revoked
        for user in sorted(users):
            if isinstance(self._sender, transports.ZmqSender) and self._sender.allowed is not None:
                self._sender.allowed.end_user(user)
            self._server.end_user(user)
        return users


def revoke_here(security: "Security | None", who: str) -> list[str]:
    """Revoke a peer's keys; the caller ends its connections. Raises as `Publisher.revoke`."""
    if security is None:
        raise ConfigError("security", "given, for somebody to be revoked", None)
    return security.revoke(who)
