"""Whether a server may publish, or relay, what comes from it; and what servers deny to us.

A server is known by the key that its connection was made with. Without rights all may do
everything, and nothing here is asked.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from p2pmsg import control
from p2pmsg.errors import AccessDeniedError, denied_by_peer
from p2pmsg.subscriber.route import Route
from p2pmsg.subscriber.sessions import Session
from p2pmsg.wire import FrameError

DENIALS_MAX: Final = 4096
"""Denials that are remembered, so that each is reported once; further ones are counted only."""


class AccessRules(Protocol):
    """Who may what, by user id; `p2pmsg.security.access_rules.AccessRules` is one."""

    def may(self, user: str, verb: str, topic: str) -> bool:
        """Return whether a user may, for a topic, or for all that a prefix and `*` mean."""

    def has_any(self, user: str, verb: str) -> bool:
        """Return whether a user has a right at all, for any topic."""


class Denial(NamedTuple):
    """Something that may not be: `publisher` denies it to us, or (`is_ours`) we deny it to it."""

    verb: str
    topic: str
    publisher: str
    is_ours: bool
    why: str = ""
    """What the other side says of it: which rule."""

    def as_error(self) -> AccessDeniedError:
        """Return what the application gets, or the log."""
        publisher = f"publisher {self.publisher!r}"
        if not self.is_ours:
            return denied_by_peer(self.verb, self.topic, publisher, self.why)
        why = f"the key of {publisher} has no right to it here"
        return AccessDeniedError(self.verb, self.topic, why)


class Denials:
    """What was denied, to be reported once each, and once more where it was allowed meanwhile.

    Attributes:
        waiting: those that are not reported yet, oldest first.
        count: how many there were. Where more than `DENIALS_MAX` are denied at a time, others count
            each time.

    """

    def __init__(self) -> None:
        self.waiting: list[Denial] = []
        self.count = 0
        self._known: set[Denial] = set()

    def note(self, denial: Denial) -> None:
        """Note one, if it is new."""
        known = denial._replace(why="")
        if known in self._known:
            return
        self.count += 1
        if len(self._known) >= DENIALS_MAX or len(self.waiting) >= DENIALS_MAX:
            return
        self._known.add(known)
        self.waiting.append(denial)

    def allow(self, verb: str, topic: str, publisher: str) -> None:
        """Note that we allow something: it is reported again once it is denied again."""
        if self._known:
            self._known.discard(Denial(verb, topic, publisher, is_ours=True))

    def answered(self, publisher: str, denied: Collection[str] = ()) -> None:
        """Note that a publisher denies these topics and prefixes to us, and no others.

        With `*` among them, perhaps others.
        """
        if self._known and "*" not in denied:
            others = set(denied)
            self._known -= {
                known
                for known in self._known
                if known.publisher == publisher and not known.is_ours and known.topic not in others
            }

    def take(self) -> Denial | None:
        """Take out the oldest one that is not reported yet."""
        return self.waiting.pop(0) if self.waiting else None


class Servers:
    """Checks what comes from servers.

    Args:
        access_rules: who may what.
        users: the user id of each connection's server.
        denials: takes what is denied.

    """

    def __init__(self, access_rules: AccessRules, users: Sequence[str], denials: Denials) -> None:
        self._access_rules = access_rules
        self.users = users
        self._denials = denials

    def check_any(self, line: int, verb: str, name: str) -> bool:
        """Whether the server of a connection may do this for any topic; note it if not."""
        if self._access_rules.has_any(self.users[line], verb):
            self._denials.allow(verb, "*", name)
            return True
        self._denials.note(Denial(verb, "*", name, is_ours=True))
        return False

    def may(self, line: int, session: Session, topic: str, *, is_relay: bool) -> bool:
        """Whether the server of a connection may send this; note it if not."""
        user = self.users[line]
        if not is_relay and user != session.own.user:
            return False  # another one's session
        return self._may(user, topic, session.name, is_relay=is_relay)

    def check_frame(self, line: int, session: Session, topic: str, *, is_relay: bool) -> None:
        """Raise `FrameError` unless the server of a connection may send this."""
        if not self.may(line, session, topic, is_relay=is_relay):
            raise FrameError("denied")

    def check_route(self, route: Route, session: Session, topic: str) -> None:
        """Raise `FrameError` unless the server of a route may send this."""
        is_relay = route.hops > 0
        user = self.users[route.line] if is_relay else session.own.user
        if not self._may(user, topic, session.name, is_relay=is_relay):
            raise FrameError("denied")

    def allowed(self, heads: control.Heads, route: Route, session: Session) -> control.Heads:
        """Return the heads of what the server of a route may send."""
        is_relay = route.hops > 0
        user = self.users[route.line] if is_relay else session.own.user
        given = heads.streams
        heads.streams = [
            head for head in given if self._may(user, head.topic, session.name, is_relay=is_relay)
        ]
        if len(heads.streams) < len(given):
            kept = {head.topic for head in heads.streams}
            heads.denied = [*heads.denied, *(h.topic for h in given if h.topic not in kept)]
        return heads

    def _may(self, user: str, topic: str, name: str, *, is_relay: bool) -> bool:
        verb = "relay" if is_relay else "publish"
        if self._access_rules.may(user, verb, topic):
            self._denials.allow(verb, topic, name)
            return True
        self._denials.note(Denial(verb, topic, name, is_ours=True))
        return False
