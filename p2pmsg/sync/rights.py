"""Rights at the sockets: which prefixes a user may subscribe to, and changes of the rules."""

from collections.abc import Callable
from typing import Final

import transports
from p2pmsg import wire
from p2pmsg.security.rights import Rights
from p2pmsg.wire import Kind

_WELCOME: Final = wire.control_prefix(Kind.WELCOME)
_OF_ONE: Final = (wire.control_prefix(Kind.ECHO), wire.control_prefix(Kind.HEARTBEAT))
_OF_ONE_BYTES: Final = len(wire.control_prefix(Kind.ECHO, 0))


def prefixes_allowed(rights: Rights) -> Callable[[str, bytes], bool]:
    """Return what says whether a user may have all frames that begin with a prefix.

    Of control frames these are the welcome, and the echo or a relay's heartbeat of one id: what is
    for all others would say too much.
    """

    def allows(user: str, prefix: bytes) -> bool:
        if rights.name_of(user) is None or rights.is_revoked(user):
            return False
        if prefix[:1] != b"\0":
            return rights.covers(user, "subscribe", prefix)
        if prefix.startswith(_WELCOME):
            return True
        return len(prefix) >= _OF_ONE_BYTES and prefix.startswith(_OF_ONE)

    return allows


class RightsWatch:
    """Has subscriptions decided on again where the rights have changed."""

    def __init__(self, rights: Rights, sender: object) -> None:
        self.rights = rights
        self._sender = sender
        self._version = rights.version

    def may_read_all(self, user: str) -> bool:
        """Whether a user may have the keys of a sealed multicast."""
        rights = self.rights
        if rights.name_of(user) is None or rights.is_revoked(user):
            return False
        return rights.covers(user, "subscribe", b"")

    def check(self) -> bool:
        """Look whether they have; return it."""
        self.rights.refresh()
        if self.rights.version == self._version:
            return False
        self._version = self.rights.version
        if isinstance(self._sender, transports.ZmqSender) and self._sender.allowed is not None:
            self._sender.allowed.recheck()
        return True
