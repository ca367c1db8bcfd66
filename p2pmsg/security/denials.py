"""What peers are denied: what is asked of the rights, and a log of it that nobody can fill."""

from collections import OrderedDict
from typing import Final, Protocol

from transports.own_log import own_log as _log

_AGAIN_NS: Final = 60 * 1_000_000_000
_LINES_A_PERIOD: Final = 20
_KNOWN_MAX: Final = 1024


class Asked(Protocol):
    """Who may what, by user id; `rights.Rights` is one, and `revoked.Unlimited`."""

    def may(self, user: str, verb: str, topic: str) -> bool:
        """Return whether a user may, for a topic, a method or a queue's name."""

    def why(self, user: str, verb: str, topic: str) -> str:
        """Return why a user may not: which rule, in words that it may read."""

    def who(self, user: str) -> str:
        """Return who that is, for people."""


class DenialLog:
    """Counts what one server denies, and logs it.

    A line for each peer, verb and topic, once a minute; 20 lines a minute in all, since a peer can
    ask for as many topics as it likes.

    Args:
        place: which server, for people.
        rights: who may what.

    Attributes:
        count: how many requests were denied.

    """

    def __init__(self, place: str, rights: Asked) -> None:
        self.count = 0
        self._place = place
        self._rights = rights
        self._said: OrderedDict[tuple[str, str, str], int] = OrderedDict()
        self._lines = self._left_out = self._period_ns = 0

    def note(self, user: str, verb: str, topic: str, *, now_ns: int) -> str:
        """Count and log that a user was denied something; return why, for the user."""
        self.count += 1
        why = self._rights.why(user, verb, topic)
        key = user, verb, topic
        if now_ns < self._said.get(key, now_ns):
            return why
        if now_ns >= self._period_ns:
            if self._left_out:
                _log.warning("%s: %d more requests were denied", self._place, self._left_out)
            self._period_ns = now_ns + _AGAIN_NS
            self._lines = self._left_out = 0
        if self._lines >= _LINES_A_PERIOD:
            self._left_out += 1
            return why
        self._lines += 1
        self._said[key] = now_ns + _AGAIN_NS
        self._said.move_to_end(key)
        if len(self._said) > _KNOWN_MAX:
            self._said.popitem(last=False)
        _log.warning(
            "%s: denied: %r %s %r: %s", self._place, self._rights.who(user), verb, topic, why
        )
        return why
