"""Who may ask a responder for what; asked by user id."""

import time

import transports
from p2pmsg.security.access_rules import AccessRules, DenialLog
from p2pmsg.sync.access_watch import AccessWatch


class RequestAccess:
    """Decides for one responder.

    Args:
        access_rules: who may what.
        server: its socket.

    Attributes:
        denials: counts and logs what was denied.

    """

    def __init__(self, access_rules: AccessRules, server: transports.ZmqQueueServer) -> None:
        self._access_rules = access_rules
        self._watch = AccessWatch(access_rules, None, server)
        self.denials = DenialLog(f"the responder at {server.endpoint}", access_rules)

    def check(self) -> None:
        """Do what follows from rights that have changed; called by who receives."""
        if self._watch.poll():
            self._watch.end_revoked()

    def may(self, user: str, topic: str) -> bool:
        """Whether a user may ask for a topic."""
        return self._access_rules.may(user, "request", topic)

    def deny(self, user: str, topic: str) -> str:
        """Note that a user was denied a topic; return why, for the user."""
        return self.denials.note(user, "request", topic, now_ns=time.monotonic_ns())
