"""Who may ask a responder for what; asked by user id."""

from p2pmsg.security.access_rules import AccessRules, DenialLog


class RequestAccess:
    """Decides for one responder.

    Args:
        access_rules: who may what.
        endpoint: the responder's.

    Attributes:
        denials: counts and logs what was denied.

    """

    def __init__(self, access_rules: AccessRules, endpoint: str) -> None:
        self._access_rules = access_rules
        self.denials = DenialLog(f"the responder at {endpoint}", access_rules)

    def may(self, user: str, topic: str) -> bool:
        """Whether a user may ask for a topic."""
        return self._access_rules.may(user, "request", topic)

    def deny(self, user: str, topic: str, now_ns: int) -> str:
        """Count that a user was denied a topic; return why, for the user."""
        return self.denials.note(user, "request", topic, now_ns=now_ns)
