"""Who may ask a responder for what; asked by user id."""

import time

import transports
from p2pmsg.security.rights import DenialLog, Rights
from p2pmsg.sync.rights import RightsWatch


class RequestRights:
    """Decides for one responder.

    Args:
        rights: who may what.
        server: its socket.

    Attributes:
        denials: counts and logs what was denied.

    """

    def __init__(self, rights: Rights, server: transports.ZmqQueueServer) -> None:
        self._rights = rights
        self._watch = RightsWatch(rights, None, server)
        self.denials = DenialLog(f"the responder at {server.endpoint}", rights)

    def check(self) -> None:
        """Do what follows from rights that have changed; called by who receives."""
        if self._watch.look():
            self._watch.end_revoked()

    def may(self, user: str, topic: str) -> bool:
        """Whether a user may ask for a topic."""
        return self._rights.may(user, "request", topic)

    def deny(self, user: str, topic: str) -> str:
        """Note that a user was denied a topic; return why, for the user."""
        return self.denials.note(user, "request", topic, now_ns=time.monotonic_ns())
